"""Healthy jobs that look hung: none of them may be ended, and how often one is suspected is counted.

    python benchmarks/false_alarms.py [--steps 10000] [--only CASE]

Cases: noise (log-normal steps, evaluations, a 20 s compilation, 3 s pauses of the whole machine, twice as much load as
cores), save (a 20 s save on rank 0), loader (10 s without data), compile (20 s on one rank), suspend (SIGSTOP and
SIGCONT of everything by a scheduler). The watchdog has its defaults. Ends with 1 if a job was ended or restarted.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).resolve().with_name("noisy.py")
CASES: Final = ("save", "loader", "compile", "suspend", "noise")
PAUSE_S: Final = 3.0
SUSPEND_S: Final = 20.0


@dataclass(frozen=True)
class Seen:
    state: str
    attempts: int
    suspicions: int
    words: tuple[str, ...]
    seconds: float


class Case:
    """One job in a folder of its own, with its environment's mark on all its processes."""

    def __init__(self, name: str, steps: int) -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix="zrun-alarms-"))
        script = name if name != "suspend" else "none"
        (self.folder / "job.yaml").write_text(
            f"name: alarm\nnproc_per_node: 2\nrun: {SCRIPT} {script} {steps}\nrestart: {{policy: never}}\n"
        )
        env = {k: v for k, v in os.environ.items() if not k.startswith("ZRUN_")}
        env |= {"XDG_STATE_HOME": str(self.folder / "state"), "OMP_NUM_THREADS": "1", "NOISY_FOLDER": str(self.folder)}
        self.began = time.monotonic()
        self.launch = subprocess.Popen(
            [sys.executable, "-m", "zrun.cli.main", "launch", "job.yaml"], cwd=self.folder, env=env,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def over(self) -> bool:
        return self.launch.poll() is not None

    def stepping(self) -> bool:
        """Does the newest attempt make steps?"""
        return any('"AttemptStarted"' in path.read_text() for path in self.folder.glob("runs/*/events.jsonl"))

    def pids(self, *, ranks_only: bool) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(self.folder).encode() in environ and (not ranks_only or b"ZRUN_MARK=" in environ):
                found.append(int(entry.name))
        return found

    def pause(self, seconds: float, *, ranks_only: bool) -> None:
        """SIGSTOP of everything (or of the ranks and what started them), and SIGCONT."""
        pids = self.pids(ranks_only=ranks_only)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            if number is signal.SIGSTOP:
                time.sleep(seconds)

    def seen(self) -> Seen:
        [run_dir] = (self.folder / "runs").iterdir()
        verdict = json.loads((run_dir / "verdict.json").read_text())
        events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
        words = tuple(e["headline"] for e in events if e.get("decision") == "incident-opened")
        return Seen(verdict["state"], len(verdict["attempts"]), len(words), words, time.monotonic() - self.began)


def run(name: str, steps: int) -> Seen:
    case = Case(name, steps)
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(len(os.sched_getaffinity(0)) if name == "noise" else 0)]  # fmt: skip
    try:
        while not case.over() and not case.stepping():
            time.sleep(0.2)
        if name == "suspend" and not case.over():
            time.sleep(5.0)
            case.pause(SUSPEND_S, ranks_only=True)
        next_pause = time.monotonic() + 30.0
        while not case.over():
            if name == "noise" and time.monotonic() >= next_pause:
                case.pause(PAUSE_S, ranks_only=False)
                next_pause = time.monotonic() + 60.0
            time.sleep(0.2)
        return case.seen()
    finally:
        for process in load:
            process.kill()
            process.wait()
        shutil.rmtree(case.folder, ignore_errors=True)


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was begun is ended
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10000, help="of the noisy case")
    parser.add_argument("--only", default="", choices=["", *CASES])
    options = parser.parse_args()
    killed = 0
    for name in [options.only] if options.only else CASES:
        seen = run(name, options.steps if name == "noise" else 1000)
        bad = seen.state != "SUCCEEDED" or seen.attempts != 1
        killed += bad
        print(f"{name:8} {'KILLED' if bad else 'lived':7} {seen.state}, {seen.attempts} attempt(s), "
              f"{seen.seconds:.0f} s, suspected {seen.suspicions} x", flush=True)  # fmt: skip
        for text in seen.words:
            print(f"         suspected: {text}")
    print(f"false kills: {killed} (bar: 0)")
    return 1 if killed else 0


if __name__ == "__main__":
    sys.exit(main())
