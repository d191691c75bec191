"""The two runs of a drill: the user's own job through the real `zrun launch`, undisturbed and disturbed.

Both lie in `drills/NAME-TIME/` beside the job file and leave alone what else there is of the job: its runs, its
checkpoints, its place in `zrun ls`. Knows nothing about what the runs should look like.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from zrun.core import env, private
from zrun.core.appointments import Drill
from zrun.core.errors import Exit, UsageError
from zrun.core.runfolder import RunFolder
from zrun.core.states import FINAL
from zrun.drill.faults import Placed, appointments
from zrun.drill.outside import Outside, read, run_in
from zrun.drill.traces import Traced, Traces
from zrun.spec.job import JobSpec

UNDISTURBED: Final = "undisturbed"
DISTURBED: Final = "disturbed"
_POLL_S: Final = 0.02
_STOPS_WITHIN_S: Final = 60.0
_LABEL: Final = 63
_MARK: Final = "-drill"
_CHECKPOINTS: Final = "checkpoints"

_ZRUN: Final = (sys.executable, "-P", "-m", "zrun.cli.main")

Tell = Callable[[str, int], None]
"""(which of the two runs, the step it has come to)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What to launch, as the person gave it. `within_s`: for each run."""

    file: Path
    spec: JobSpec
    arguments: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    within_s: float | None = None


@dataclass(slots=True)
class Ran:
    """One of the two runs, over."""

    name: str
    code: int
    seconds: float
    traced: Traced
    log: Path
    run: RunFolder | None
    verdict: dict[str, Any]
    events: list[dict[str, Any]]
    came: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Fault number -> when and where it came."""
    too_long: bool = False

    @property
    def state(self) -> str:
        return str(self.verdict.get("state") or "nothing is known of it")


def make_folder(asked: Asked) -> Path:
    """`drills/NAME-TIME` beside the job file. Raises UsageError."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    drills = asked.file.absolute().parent / "drills"
    folder = drills / f"{asked.spec.name}-{stamp}"
    count = 1
    while folder.exists():
        count += 1
        folder = drills / f"{asked.spec.name}-{stamp}-{count}"
    try:
        private.make_folder(folder)
    except OSError as error:
        raise UsageError(
            f"cannot write to {error.filename or folder}: {error.strerror}", "copy the job file to where you can write"
        ) from error
    return folder


def undisturbed(asked: Asked, folder: Path, tell: Tell) -> Ran:
    return _Run(asked, folder, UNDISTURBED, [], [], tell).run()


def disturbed(asked: Asked, folder: Path, faults: Sequence[Placed], overrides: Sequence[str], tell: Tell) -> Ran:
    return _Run(asked, folder, DISTURBED, faults, overrides, tell).run()


class _Run:
    def __init__(self, asked: Asked, folder: Path, name: str, faults: Sequence[Placed], overrides: Sequence[str],
                 tell: Tell) -> None:  # fmt: skip
        self._asked, self._name, self._tell = asked, name, tell
        self._faults = faults
        self._runs = folder / name
        self._log = folder / f"{name}.log"
        self._drill = Drill(str(folder / f"{name}-traces"), appointments(faults))
        self._command = _command(asked, self._runs, overrides)
        self._outside = Outside(self._drill, self._runs, faults, _CHECKPOINTS)
        self._traces = Traces(self._drill.traces)

    def run(self) -> Ran:
        for place in (self._runs, self._drill.traces, self._drill.came):
            private.make_folder(place)
        began = time.monotonic()
        deadline = None if self._asked.within_s is None else began + self._asked.within_s
        launches = 0
        while True:
            code, in_time = self._launch(deadline)
            launches += 1
            # Whom a preemption ended is launched again in just the same way.
            if code != Exit.PREEMPTED or launches > self._outside.preempted or not in_time:
                break
        seconds = time.monotonic() - began
        run = run_in(self._runs)
        if run is not None and read(run.verdict).get("state") not in FINAL:
            self._end_what_is_left(run)
        return Ran(
            self._name, code, seconds, self._traces.read(), self._log, run, read(run.verdict) if run else {},
            _events(run), self._came(), too_long=not in_time,
        )  # fmt: skip

    def _launch(self, deadline: float | None) -> tuple[int, bool]:
        """(exit code, was it over in time). However this ends, the job is not left running."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment(),
                start_new_session=True,  # a terminal's Ctrl-C is ours to hand on
            )  # fmt: skip
            self._outside.launch = process
            try:
                while process.poll() is None:
                    traced = self._traces.read()
                    self._outside.look(traced)
                    self._tell(self._name, traced.done_by_all(traced.attempt))
                    if deadline is not None and time.monotonic() > deadline:
                        return _stopped(process), False
                    time.sleep(_POLL_S)
            except BaseException:
                _stopped(process)
                raise
        return int(process.returncode), True

    def _end_what_is_left(self, run: RunFolder) -> None:
        """The viewer ended before its job (it was killed, or nobody answered it): the job must not go on alone."""
        command = [*_ZRUN, "stop", run.job]
        with self._log.open("ab") as log:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)

    def _environment(self) -> dict[str, str]:
        """Ours; on this machine whatever coordinator it names, and with what the ranks must know of the drill."""
        return {name: value for name, value in env.snapshot().items() if name != env.COORDINATOR} | {
            env.DRILL: self._drill.to_json()
        }

    def _came(self) -> dict[int, dict[str, Any]]:
        paths = {one.number: self._drill.came / f"{one.number}.json" for one in self._faults}
        return {number: read(path) for number, path in paths.items() if path.exists()}


def _command(asked: Asked, runs: Path, overrides: Sequence[str]) -> list[str]:
    name = asked.spec.name[: _LABEL - len(_MARK)] + _MARK
    # Last of all, so that nothing the person sets leads to the job's own checkpoints or name.
    own = [f"name={name}", f"checkpoint.dir={_CHECKPOINTS}", *overrides]
    return [
        *_ZRUN, "launch", str(asked.file), "--run-dir", str(runs),
        *(part for one in asked.variables for part in ("-e", one)),
        *(part for one in (*asked.overrides, *own) for part in ("--set", one)), "--", *asked.arguments,
    ]  # fmt: skip


def _stopped(process: "subprocess.Popen[bytes]") -> int:
    """Ctrl-C: gracefully; a second one at once."""
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(_STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    return process.wait()


def _events(run: RunFolder | None) -> list[dict[str, Any]]:
    if run is None or not run.events.exists():
        return []
    found: list[dict[str, Any]] = []
    for line in run.events.read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # the last one of a coordinator that was killed
    return found
