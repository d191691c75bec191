"""Runs whole jobs as a user does: `zrun launch` with real torch processes; knows nothing about zrun's insides."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
ZRUN = [sys.executable, "-m", "zrun.cli.main"]


def until(what: str, check: Callable[[], Any], within_s: float = 90.0) -> Any:
    """Wait for a thing to be true and give it back; says what never came."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {within_s} s")


@dataclass
class Job:
    """One job in a folder of its own, launched zero or more times."""

    folder: Path
    env: dict[str, str]
    launches: list[subprocess.Popen[str]] = field(default_factory=list)

    def zrun(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*ZRUN, *arguments], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """`zrun launch job.yaml` in the background; output goes to launch-N.out."""
        number = len(self.launches) + 1
        with (self.folder / f"launch-{number}.out").open("w") as out:
            process = subprocess.Popen(
                [*ZRUN, "launch", "job.yaml", *arguments], cwd=self.folder, env=self.env, text=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.launches.append(process)
        return process

    def output(self, number: int = -1) -> str:
        count = len(self.launches)
        return (self.folder / f"launch-{count if number == -1 else number}.out").read_text(errors="replace")

    def finish(self, timeout: float = 150.0) -> int:
        try:
            return self.launches[-1].wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"launch did not end within {timeout} s:\n{self.story()}") from None

    def run(self, *arguments: str, timeout: float = 150.0) -> int:
        self.start(*arguments)
        return self.finish(timeout)

    @property
    def run_dir(self) -> Path:
        """The newest run's folder."""
        runs = sorted((self.folder / "runs").iterdir(), key=lambda p: p.stat().st_mtime)
        return runs[-1]

    @property
    def verdict(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.run_dir / "verdict.json").read_text())
        return value

    def status(self) -> dict[str, Any]:
        """Live status, {} while there is none."""
        done = self.zrun("status", "--json")
        try:
            value: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            return {}
        return value

    def ranks(self) -> dict[int, dict[str, Any]]:
        return {r["rank"]: r for node in self.status().get("nodes", []) for r in node["ranks"]}

    def wait_for_step(self, step: int, attempt: int = 1, within_s: float = 90.0) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            status = self.status()
            at = (status.get("attempt", 0), status.get("step") or 0)
            return status if at[0] > attempt or (at[0] == attempt and at[1] >= step) else None

        found: dict[str, Any] = self.until(f"step {step} of attempt {attempt}", there, within_s)
        return found

    def wait_for_state(self, state: str, within_s: float = 30.0) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            status = self.status()
            return status if status.get("state") == state else None

        found: dict[str, Any] = self.until(f"state {state}", there, within_s)
        return found

    def change(self, old: str, new: str) -> None:
        """Edit job.yaml."""
        path = self.folder / "job.yaml"
        before = path.read_text()
        assert old in before
        path.write_text(before.replace(old, new))

    def log_lines(self, attempt: int, rank: int) -> list[dict[str, Any]]:
        path = self.run_dir / "logs" / f"attempt-{attempt}" / f"rank-{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def weights(self) -> str:
        """The digest the script printed at its end."""
        for attempt in range(len(self.verdict["attempts"]), 0, -1):
            for line in reversed(self.log_lines(attempt, 0)):
                found = re.search(r"weights sha256=([0-9a-f]{64})", line["msg"])
                if found:
                    return found[1]
        raise AssertionError(f"no weights digest was printed:\n{self.story()}")

    def processes(self) -> list[int]:
        """Pids of anything that bears this job's name in its environment or works in its folder."""
        return sorted(pid for pid, env, argv in _processes() if str(self.folder) in env or str(self.folder) in argv)

    def marked(self) -> list[int]:
        """Pids of ranks and what they started (they bear ZRUN_MARK)."""
        return sorted(pid for pid, env, _ in _processes() if "ZRUN_MARK=" in env and str(self.folder) in env)

    def pid_of(self, what: str) -> int:
        """The pid of this run's coordinator, agent, keeper or supervisor."""
        found: list[int] = until(f"a {what} process", lambda: self.find(what), 20)
        return found[0]

    def find(self, what: str) -> list[int]:
        pattern = {
            "coordinator": r"coordinator", "agent": r"\bagent\b(?!.*keeper)", "keeper": r"keeper",
            "supervisor": r"supervisor",
        }[what]  # fmt: skip
        run = str(self.run_dir)
        return [pid for pid, _, argv in _processes() if run in argv and re.search(pattern, argv.replace(run, ""))]

    def story(self) -> str:
        """Everything a person needs to see why a test failed."""
        parts = [f"--- launch {n + 1}\n{self.output(n + 1)[-4000:]}" for n in range(len(self.launches))]
        for name in ("events.jsonl", "verdict.json", "supervisor.log", "coordinator.log", "agent.log"):
            path = self.run_dir / name
            if path.exists():
                parts.append(f"--- {name}\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(parts)

    def until(self, what: str, check: Callable[[], Any], within_s: float = 90.0) -> Any:
        """As the function, with the job's story when the thing never came."""
        try:
            return until(what, check, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def end(self) -> None:
        """Kill what is left (a failed test), so that the next test begins clean."""
        for _ in range(3):
            for pid in self.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        for process in self.launches:
            process.wait()


def _processes() -> Iterator[tuple[int, str, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environ = (entry / "environ").read_bytes().replace(b"\0", b"\n").decode("utf-8", "replace")
                argv = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z":
                yield int(entry.name), environ, argv


def job_yaml(name: str, run: str, *, nproc: int = 2, extra: str = "", restart: str = "", every: int = 10,
             standby: bool = False, memory: str = "auto") -> str:  # fmt: skip
    """`restart`: more fields for that block; `extra`: whole lines. Without `standby` a restart goes through torchrun: most
    jobs here are over before anybody had needed one, and two cores have enough to do.
    """
    more = f", {restart}" if restart else ""
    without = "" if standby or "standby:" in extra else "standby: {enabled: false}\n"
    return (
        f"name: {name}\nnproc_per_node: {nproc}\nrun: {run}\n"
        f"checkpoint: {{every: {every} steps, memory_every: {memory}}}\nstop_grace: 20s\nrestart: {{backoff: {{crash: 0s..1s}}{more}}}\n{without}{extra}"
    )


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """`make_job(run, fault="kill:1:13", extra=yaml)`: a job ready to launch; swept and checked at the end."""
    yield from _jobs_in(tmp_path)


@pytest.fixture(scope="module")
def make_job_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Job]]:
    """The same for a job that several tests of a file look at."""
    yield from _jobs_in(tmp_path_factory.mktemp("once"))


_undisturbed: dict[str, str] = {}


@pytest.fixture
def weights_of(make_job: Callable[..., Job]) -> Callable[..., str]:
    """`weights_of(run)`: the digest of a run that was never disturbed; computed once for each script."""

    def known(run: str, nproc: int = 2) -> str:
        key = f"{nproc} {run}"
        if key not in _undisturbed:
            job = make_job(run, nproc=nproc)
            assert job.run() == 0, job.story()
            _undisturbed[key] = job.weights()
        return _undisturbed[key]

    return known


def _jobs_in(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(run: str, *, name: str = "toy", fault: str = "", nproc: int = 2, extra: str = "", restart: str = "",
             every: int = 10, env: dict[str, str] | None = None, standby: bool = False,
             memory: str = "auto") -> Job:  # fmt: skip
        folder = tmp_path / f"job{len(jobs)}"
        folder.mkdir()
        if fault:
            run = f"{SCRIPTS / 'with_fault.py'} {fault} {run}"
        text = job_yaml(
            name, run, nproc=nproc, extra=extra, restart=restart, every=every, standby=standby, memory=memory
        )
        (folder / "job.yaml").write_text(text)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ZRUN_")}
        environment.pop("PYTHONUNBUFFERED", None)
        state = tmp_path / f"state{len(jobs)}"  # a command without a job's name must not find the test's other job
        environment |= {"XDG_STATE_HOME": str(state), "OMP_NUM_THREADS": "1", "E2E_FOLDER": str(folder)}
        job = Job(folder, environment | (env or {}))
        jobs.append(job)
        return job

    yield make
    left = {str(job.folder): job.processes() for job in jobs if (job.folder / "runs").exists()}
    for job in jobs:
        job.end()
    ours = [run.name for job in jobs for run in (job.folder / "runs").glob("*")]
    swept = [path for run in ours for path in Path("/dev/shm").glob(f"zrun-{run}-*")]
    for path in swept:
        shutil.rmtree(path)
    assert all(not pids for pids in left.values()), f"left behind: {left}"
    assert swept == [], "shared memory was left behind"
