"""Faults that come from outside a rank: a damaged checkpoint, a killed agent or coordinator, a preemption.

Each comes once the job has made its step. A process is killed only if it is provably of this drill. Decides nothing
about what must follow.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from zrun.core.appointments import Drill
from zrun.core.manifest import scan
from zrun.core.runfolder import RunFolder
from zrun.drill.faults import Placed
from zrun.drill.traces import Traced

SUPERVISOR_FACTS: Final = "supervisor.json"
"""In a run's folder: {coordinator: {pid}, agent: {pid}}, as the supervisor tells it."""


class Outside:
    """For the disturbed run. `launch` is the process of `zrun launch` that runs now."""

    def __init__(self, drill: Drill, runs: Path, faults: Sequence[Placed], checkpoints: str) -> None:
        self._drill, self._runs, self._checkpoints = drill, runs, checkpoints
        self._waiting = [one for one in faults if one.kind.outside]
        self._by_kind: Mapping[str, Callable[[Placed, Traced], dict[str, Any] | None]] = {
            "corrupt-checkpoint": self._corrupt,
            "node-loss": lambda _, __: self._kill_program("agent"),
            "coordinator-kill": lambda _, __: self._kill_program("coordinator"),
            "preempt": lambda _, __: self._preempt(),
        }
        self.launch: subprocess.Popen[bytes] | None = None
        self.preempted = 0
        """How often the job was asked to make room."""

    def look(self, traced: Traced) -> None:
        """Bring about what is due, one at a time."""
        done = traced.done_by_any(traced.attempt)
        for one in self._waiting:
            if done < one.step:
                continue
            where = self._by_kind[one.kind.name](one, traced)
            if where is not None:
                self._waiting.remove(one)
                self._drill.comes(one.number, attempt=traced.attempt, step=done, rank=one.rank, **where)
                return

    def _run(self) -> RunFolder | None:
        return run_in(self._runs)

    def _kill_program(self, program: str) -> dict[str, Any] | None:
        run = self._run()
        pid = int((read(run.root / SUPERVISOR_FACTS).get(program) or {}).get("pid") or 0) if run else 0
        return {"pid": pid} if run is not None and pid and _killed(pid, str(run.root)) else None

    def _preempt(self) -> dict[str, Any] | None:
        if self.launch is None or self.launch.poll() is not None:
            return None
        self.preempted += 1
        self.launch.send_signal(signal.SIGTERM)
        return {}

    def _corrupt(self, one: Placed, traced: Traced) -> dict[str, Any] | None:
        """Damage the newest checkpoint, if it is of the step or a later one, and kill a rank so that it is read."""
        run = self._run()
        place = run.root / self._checkpoints if run is not None else Path()
        good = [f for f in scan(place) if f.state == "complete"] if run is not None else []
        pid = traced.pids.get((traced.attempt, one.rank or 0), 0)
        if not good or good[0].step < one.step or not pid:
            return None
        file = _flip_a_byte(place / good[0].path.name)
        return {"checkpoint": good[0].step, "file": str(file)} if _killed(pid, self._drill.folder) else None


def run_in(runs: Path) -> RunFolder | None:
    """The one run of a `--run-dir` of ours."""
    found = [path.parent for path in runs.glob("*/spec.json")]
    return RunFolder(found[0]) if found else None


def read(path: Path) -> dict[str, Any]:
    """{} for what is not there or half-written."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _flip_a_byte(checkpoint: Path) -> Path:
    """The last byte of its largest shard, which is a tensor's."""
    path = max(checkpoint.glob("*.safetensors"), key=lambda file: file.stat().st_size)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
        os.fsync(file.fileno())
    return path


def _killed(pid: int, belongs_to: str) -> bool:
    """SIGKILL it, if its command line or environment names that folder; by pidfd, so that it can be nobody else."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        own = b"".join(Path(f"/proc/{pid}/{what}").read_bytes() for what in ("cmdline", "environ"))
        if belongs_to.encode() not in own:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
