"""What a start and each fault cost, under zrun and under plain torchrun, in one run on one machine.

    python benchmarks/recover.py [--trials 3] [--only FAULT]

The same neutral script (DDP, gloo, 2 ranks, 50 ms steps). Prints a table: seconds from the fault to the moment it is
named, and to the first step that had not been done before (median [min..max]); completed steps that were done again;
and the ratio to torchrun. `kill`, `raise`, `stop` (SIGSTOP), `sleep` (before an all_reduce, patience 2 s) and `agent`
(killed) come once standbys are ready, `cold` is a kill before. torchrun never ends a rank that stands still.
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
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
NEUTRAL: Final = HERE / "neutral.py"
AFTER: Final = 30
FAULTS: Final = ("kill", "cold", "raise", "stop", "sleep", "agent")
UNDER_TORCHRUN: Final = ("cold", "kill", "raise")


@dataclass(frozen=True)
class Outcome:
    """Seconds; `again`: completed steps that were done once more."""

    start_s: float
    named_s: float | None
    back_s: float
    again: int


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

    def __init__(self, launcher: str, fault: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="zrun-bench-"))
        self.fault = fault
        env = {**os.environ, "BENCH_FOLDER": str(self.folder), "OMP_NUM_THREADS": "1"}
        env["XDG_STATE_HOME"] = str(self.folder / "state")
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else torchrun's own gloo restarts hang in one of three runs
        inside = ["--fault", fault] if fault in ("raise", "stop", "sleep") else []
        options = [str(NEUTRAL), "--steps", "2000", *inside]
        if launcher == "zrun":
            (self.folder / "job.yaml").write_text(
                "name: bench\nnproc_per_node: 2\ncheckpoint: {every: 20 steps}\nwatchdog: {patience: 2s}\n"
                "restart: {backoff: {crash: 0s..1s, hang: 0s..1s, node: 0s..1s}}\n"
                f"run: {' '.join([*options, '--session'])}\n"
            )
            command = [sys.executable, "-m", "zrun.cli.main", "launch", "job.yaml"]
        else:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                       "--max-restarts", "3", *options]  # fmt: skip
        self.out = (self.folder / "out").open("w")
        self.began = time.time()
        self.process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=self.out, stderr=self.out)

    def at(self, step: int, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = wait(
            lambda: next((s for s in steps(self.folder) if s["rank"] == rank and s["step"] >= step), None)
        )
        return found

    def strike(self) -> float:
        """Unix time of the fault."""
        if self.fault in ("cold", "kill"):
            struck = time.time()
            os.kill(self.at(AFTER, 1)["pid"], signal.SIGKILL)
            return struck
        if self.fault == "agent":
            struck = time.time()
            os.kill(self._agent(), signal.SIGKILL)
            return struck
        (self.folder / "now").touch()
        return float(wait(lambda: (p := self.folder / "fault").exists() and p.read_text()))

    def _agent(self) -> int:
        def look() -> int:
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        argv = (entry / "cmdline").read_bytes().split(b"\0")
                    except OSError:
                        continue
                    if b"agent" in argv and any(str(self.folder).encode() in word for word in argv):
                        return int(entry.name)
            return 0

        return int(wait(look))

    def back(self, pid: int) -> tuple[float, int]:
        """(Unix time of the first step not done before, by a new process of rank 0; steps done again until then)."""
        best = max(s["step"] for s in steps(self.folder) if s["pid"] == pid)

        def look() -> list[dict[str, Any]]:
            later = [s for s in steps(self.folder) if s["pid"] != pid and s["rank"] == 0]
            return later if later and later[-1]["step"] > best else []

        later = wait(look)
        return float(next(s["t"] for s in later if s["step"] > best)), sum(s["step"] <= best for s in later)

    def named(self) -> float | None:
        """Unix time at which the journal knew of it."""
        for log in self.folder.glob("runs/*/events.jsonl"):
            for line in log.read_text().splitlines():
                event = json.loads(line)
                if event.get("event") in ("Suspected", "RankEnded", "NodeGone"):
                    return datetime.fromisoformat(event["ts"]).timestamp()
        return None

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


def run(launcher: str, fault: str) -> Outcome:
    trial = Trial(launcher, fault)
    try:
        start_s = float(wait(lambda: steps(trial.folder))[0]["t"]) - trial.began
        witness = trial.at(AFTER, 0)["pid"]
        if launcher == "zrun" and fault != "cold":
            wait(trial.standbys_ready)
        struck = trial.strike()
        back, again = trial.back(witness)
        named = trial.named()
        return Outcome(start_s, named - struck if named is not None else None, back - struck, again)
    finally:
        trial.close()


def show(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}..{max(values):.2f}]" if values else "-"


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was begun is ended
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--only", choices=FAULTS)
    asked = parser.parse_args()
    faults = [asked.only] if asked.only else list(FAULTS)
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    print(f"{'fault':8}{'under':10}{'named after':24}{'first new step after':24}{'done again':12}ratio")
    for fault in faults:
        for launcher in ("torchrun", "zrun"):
            if launcher == "torchrun" and (fault not in UNDER_TORCHRUN or fault == "cold"):
                continue
            found = outcomes[fault, launcher] = [run(launcher, fault) for _ in range(asked.trials)]
            back = [one.back_s for one in found]
            plain = outcomes.get(("kill" if fault == "cold" else fault, "torchrun"))
            ratio = statistics.median(back) / statistics.median(one.back_s for one in plain) if plain else None
            again = "/".join(str(one.again) for one in found)
            named = show([one.named_s for one in found if one.named_s is not None])
            told = f"{ratio:.3f}" if launcher == "zrun" and ratio is not None else ""
            print(f"{fault:8}{launcher:10}{named:24}{show(back):24}{again:12}{told}", flush=True)
    starts = {who: [o.start_s for (_, one), found in outcomes.items() if one == who for o in found]
              for who in ("torchrun", "zrun")}  # fmt: skip
    for who, values in starts.items():
        print(f"{who}: command to first step {show(values)}")


if __name__ == "__main__":
    main()
