"""How soon a hang is named, whether the right rank is, and how soon it is acted on: randomised trials at 50 ms steps.

    python benchmarks/hangs.py [--trials 50] [--seed 0] [--only FAULT]

Each trial is a whole job (torch, gloo, 2 or 4 ranks, patience 2 s) with one fault on a random rank and step. Times are
wall clock: the rank prints when the fault begins, the coordinator stamps its events. Ends with 1 if a bar is missed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

SCRIPT: Final = Path(__file__).resolve().parents[1] / "tests" / "e2e" / "scripts" / "stuck.py"
PATIENCE_S: Final = 2.0
NAMED_P50_S, NAMED_MAX_S = 3.0, 5.0
EVERYBODY: Final = {"loader", "kinds", "missing", "shapes"}
"""More than one rank is at fault: all, or the pair that does not fit together."""
FAULTS: Final = ("sleep", "spin", "stop", "gil", "loader", "shapes", "kinds", "missing", "early")


@dataclass(frozen=True)
class Trial:
    fault: str
    rank: int
    ranks: int
    step: int


@dataclass(frozen=True)
class Outcome:
    """Seconds; `named` from the fault, `decided` from the name, `acted` from the decision to the order that ends."""

    right: bool
    named: float
    decided: float
    acted: float
    words: str


def run(trial: Trial) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix="zrun-hangs-"))
    (folder / "job.yaml").write_text(
        f"name: bench\nnproc_per_node: {trial.ranks}\nwatchdog: {{patience: {PATIENCE_S:g}s}}\n"
        f"restart: {{backoff: {{crash: 0s..1s}}}}\n"
        f"run: {SCRIPT} {trial.fault} {trial.rank} {trial.step} --total {trial.step + 3}\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("ZRUN_")}
    env |= {"XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "zrun.cli.main", "launch", "job.yaml"]
    subprocess.run(launch, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    try:
        [run_dir] = (folder / "runs").iterdir()
        return judged(trial, run_dir)
    finally:
        shutil.rmtree(folder)


def judged(trial: Trial, run_dir: Path) -> Outcome:
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    began = max(fault_times(run_dir), default=0.0)
    opened = next((e for e in events if e.get("decision") == "incident-opened"), None)
    ordered = next((e for e in events if e.get("decision") == "order" and (e["order"] or {}).get("ending")), None)
    if opened is None or ordered is None or not began:
        return Outcome(False, float("nan"), float("nan"), float("nan"), "nobody was named")
    told = next((e for e in events if e.get("event") == "Suspected" and not e["cleared"]), None)
    incident = json.loads((run_dir / "incidents" / "0001" / "incident.json").read_text())
    decided = next((unix(e) for e in events if e.get("decision") == "patience-over"), None)
    first = decided if decided is not None else unix(opened)
    return Outcome(
        right(trial, told, incident), unix(opened) - began, first - unix(opened), unix(ordered) - first,
        incident["headline"],
    )  # fmt: skip


def right(trial: Trial, told: dict[str, Any] | None, incident: dict[str, Any]) -> bool:
    ranks = told["ranks"] if told is not None else [incident["rank"]]
    if trial.fault == "loader":
        return ranks == list(range(trial.ranks)) and incident["kind"] == "all-in-loader"
    if trial.fault in EVERYBODY:
        return trial.rank in ranks or any("different" in reason for reason in incident["because"])
    return ranks == [trial.rank]


def fault_times(run_dir: Path) -> list[float]:
    found = []
    for path in (run_dir / "logs" / "attempt-1").glob("rank-*.jsonl"):
        lines = (json.loads(line)["msg"] for line in path.read_text().splitlines())
        found += [float(line.split()[-1]) for line in lines if line.startswith("fault at ")]
    return found


def unix(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["ts"]).timestamp()


def drawn(count: int, seed: int, only: str) -> list[Trial]:
    """Each fault equally often, everything else at random."""
    draw = random.Random(seed)
    trials = []
    for number in range(count):
        ranks = draw.choice([2, 4])
        fault = only or FAULTS[number % len(FAULTS)]
        trials.append(Trial(fault, draw.randrange(ranks), ranks, draw.randint(25, 80)))
    return trials


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was begun is ended
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", choices=["", *FAULTS])
    options = parser.parse_args()
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for trial in drawn(options.trials, options.seed, options.only):
        seen = run(trial)
        outcomes[trial.fault].append(seen)
        mark = "ok" if seen.right else "WRONG"
        print(f"{mark:5} {trial.fault:8} rank {trial.rank} of {trial.ranks} at step {trial.step}: named after "
              f"{seen.named:.2f} s, decided {seen.decided:.2f} s later, acted {seen.acted:.2f} s later: {seen.words}",
              flush=True)  # fmt: skip
    return told(outcomes)


def told(outcomes: dict[str, list[Outcome]]) -> int:
    print(f"\n{'fault':10}{'trials':>7}{'right':>7}{'named p50':>11}{'max':>7}{'decided':>9}{'acted':>7}")
    for fault, seen in [*outcomes.items(), ("all", [one for some in outcomes.values() for one in some])]:
        named = [one.named for one in seen]
        print(f"{fault:10}{len(seen):7}{sum(one.right for one in seen):7}{statistics.median(named):11.2f}"
              f"{max(named):7.2f}{statistics.median(one.decided for one in seen):9.2f}"
              f"{statistics.median(one.acted for one in seen):7.2f}")  # fmt: skip
    everyone = [one for some in outcomes.values() for one in some]
    good = (
        all(one.right for one in everyone)
        and statistics.median(one.named for one in everyone) <= NAMED_P50_S
        and max(one.named for one in everyone) <= NAMED_MAX_S
    )
    print(
        f"bars (right in all, named p50 <= {NAMED_P50_S:g} s, max <= {NAMED_MAX_S:g} s): {'met' if good else 'MISSED'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
