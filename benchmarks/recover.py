"""How long a start, a killed rank and a hang cost, under zrun and under plain torchrun, in one run.

    python benchmarks/recover.py [--trials 3]

Prints seconds (median [min..max]) and ratios: command -> first step; SIGKILL of a rank -> first step that had not
been done before, once right after the start (through torchrun) and once with standbys ready; a rank asleep before its
all_reduce -> named as suspect, -> first new step (patience 2 s).
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NEUTRAL = HERE / "neutral.py"
KILL_AT = 30


def steps(folder: Path) -> list[dict[str, Any]]:
    path = folder / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait(check: Callable[[], Any], within_s: float = 120.0) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(0.005)
    raise SystemExit("nothing happened within two minutes")


class Trial:
    """One run of the neutral script in a folder of its own."""

    def __init__(self, kind: str, *script_options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="zrun-bench-"))
        env = {**os.environ, "BENCH_FOLDER": str(self.folder), "OMP_NUM_THREADS": "1"}
        env["XDG_STATE_HOME"] = str(self.folder / "state")
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else torchrun's own gloo restarts hang in one of three runs
        options = [str(NEUTRAL), *script_options]
        if kind == "zrun":
            (self.folder / "job.yaml").write_text(
                "name: bench\nnproc_per_node: 2\ncheckpoint: {every: 20 steps}\nwatchdog: {patience: 2s}\n"
                f"restart: {{backoff: {{crash: 0s..1s}}}}\nrun: {' '.join([*options, '--session'])}\n"
            )
            command = [sys.executable, "-m", "zrun.cli.main", "launch", "job.yaml"]
        else:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                       "--max-restarts", "3", *options]  # fmt: skip
        self.out = (self.folder / "out").open("w")
        self.began = time.time()
        self.process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=self.out, stderr=self.out)

    def first_step(self) -> float:
        """Unix time of the first step."""
        return float(wait(lambda: steps(self.folder))[0]["t"])

    def at(self, step: int, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = wait(
            lambda: next((s for s in steps(self.folder) if s["rank"] == rank and s["step"] >= step), None)
        )
        return found

    def new_step_after(self, pid: int) -> float:
        """Unix time of the first step not done before, by a new process of rank 0."""
        best = max(s["step"] for s in steps(self.folder) if s["pid"] == pid)
        found = wait(lambda: next((s for s in steps(self.folder) if s["pid"] != pid and s["rank"] == 0
                                   and s["step"] > best), None))  # fmt: skip
        return float(found["t"])

    def standbys_ready(self) -> bool:
        return any('"ready": [0, 1]' in log.read_text() for log in self.folder.glob("runs/*/agent.log"))

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.out.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def start_and_kill(kind: str, *, standbys: bool = False) -> tuple[float, float]:
    """(command -> first step, SIGKILL of rank 1 -> first new step), seconds. `standbys`: once they are ready."""
    trial = Trial(kind, "--steps", "2000")
    try:
        start_s = trial.first_step() - trial.began
        if standbys:
            wait(trial.standbys_ready)
        victim = trial.at(KILL_AT, 1)["pid"]
        witness = trial.at(KILL_AT, 0)["pid"]
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        return start_s, trial.new_step_after(witness) - killed
    finally:
        trial.close()


def hang() -> tuple[float, float]:
    """(rank asleep -> suspect named in events.jsonl, -> first new step), seconds, under zrun."""
    trial = Trial("zrun", "--steps", "400", "--sleep-at", str(KILL_AT))
    try:
        witness = trial.at(KILL_AT - 1, 0)["pid"]
        slept = float(wait(lambda: (p := trial.folder / "slept").exists() and p.read_text()))
        events = next((trial.folder / "runs").iterdir()) / "events.jsonl"
        wait(lambda: '"Suspected"' in events.read_text() or "suspect" in events.read_text())
        named_s = time.time() - slept
        return named_s, trial.new_step_after(witness) - slept
    finally:
        trial.close()


def show(what: str, values: list[float]) -> float:
    middle = statistics.median(values)
    print(f"{what:<58} {middle:6.2f} s  [{min(values):.2f}..{max(values):.2f}]", flush=True)
    return middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=3)
    trials = parser.parse_args().trials
    both = {kind: [start_and_kill(kind) for _ in range(trials)] for kind in ("torchrun", "zrun")}
    warm = [start_and_kill("zrun", standbys=True)[1] for _ in range(trials)]
    hangs = [hang() for _ in range(trials)]
    start = {kind: show(f"{kind}: command -> first step", [t[0] for t in both[kind]]) for kind in both}
    kill = {kind: show(f"{kind}: SIGKILL of a rank -> first new step", [t[1] for t in both[kind]]) for kind in both}
    swap = show("zrun, standbys ready: SIGKILL of a rank -> first new step", warm)
    show("zrun: asleep before all_reduce -> suspect named", [h[0] for h in hangs])
    show("zrun: asleep before all_reduce -> first new step", [h[1] for h in hangs])
    print(
        f"ratio start {start['zrun'] / start['torchrun']:.2f}, recovery {kill['zrun'] / kill['torchrun']:.2f}, "
        f"with standbys {swap / kill['torchrun']:.2f}"
    )


if __name__ == "__main__":
    main()
