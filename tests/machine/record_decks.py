"""Records what the hang judge is shown of real jobs: `python -m tests.machine.record_decks [NAME ...]`.

Each job runs under `zrun launch` with torch, gloo, its agent and its decks; what is kept are the looks around the event,
in recorded_decks/NAME.json. `--missing` records those that are not there yet.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
INTO: Final = HERE / "recorded_decks"
SCRIPTS: Final = HERE.parent / "e2e" / "scripts"
BEFORE_S: Final = 6.0
AFTER_S: Final = 2.0


@dataclass(frozen=True)
class Recording:
    """`ranks` and `kind`: who has to be named as what; none for a healthy job. `freeze`: all ranks stopped for so long,
    `pause`: one rank.
    """

    run: str
    nproc: int
    kind: str = ""
    ranks: tuple[int, ...] = ()
    provable: bool = False
    freeze: float = 0.0
    pause: float = 0.0
    extra: str = ""


def stuck(fault: str, rank: int, nproc: int, kind: str, *ranks: int, provable: bool = False) -> Recording:
    return Recording(f"stuck.py {fault} {rank} 60", nproc, kind, ranks or (rank,), provable)


def well(run: str, nproc: int = 2, **more: Any) -> Recording:
    return Recording(run, nproc, **more)


RECORDINGS: Final = {
    "sleep-rank-0-of-2": stuck("sleep", 0, 2, "not-arrived"),
    "sleep-rank-1-of-2": stuck("sleep", 1, 2, "not-arrived"),
    "sleep-rank-2-of-3": stuck("sleep", 2, 3, "not-arrived"),
    "sleep-rank-2-of-4": stuck("sleep", 2, 4, "not-arrived"),
    "spin-rank-0-of-2": stuck("spin", 0, 2, "not-arrived"),
    "spin-rank-3-of-4": stuck("spin", 3, 4, "not-arrived"),
    "stop-rank-0-of-2": stuck("stop", 0, 2, "stopped", provable=True),
    "stop-rank-1-of-3": stuck("stop", 1, 3, "stopped", provable=True),
    "gil-rank-1-of-2": stuck("gil", 1, 2, "gil-held"),
    "gil-rank-0-of-3": stuck("gil", 0, 3, "gil-held"),
    "loader-of-all-2": stuck("loader", 0, 2, "all-in-loader", 0, 1),
    "loader-of-all-3": stuck("loader", 0, 3, "all-in-loader", 0, 1, 2),
    "loader-of-rank-0": stuck("one-loader", 0, 2, "in-loader"),
    "loader-of-rank-1-of-3": stuck("one-loader", 1, 3, "in-loader"),
    "kinds-rank-1-of-2": stuck("kinds", 1, 2, "mismatched", 0, 1, provable=True),
    "missing-rank-1-of-2": stuck("missing", 1, 2, "mismatched", 0, 1, provable=True),
    "spin-rank-1-of-3": stuck("spin", 1, 3, "not-arrived"),
    "mesh-late": Recording("mesh.py late 60", 4, "not-arrived", (3,)),
    "mesh-crossed": Recording("mesh.py crossed 60", 4, "deadlock", (0, 1), provable=True),
    "mesh-kinds": Recording("mesh.py kinds 60", 4, "mismatched", (0, 1), provable=True),
    "plain-ddp-stopped": Recording("with_fault.py stop:1:40 plain_ddp.py 90 0.05", 2, "stopped", (1,), provable=True),
    "plain-ddp-asleep": Recording("with_fault.py sleep:1:60 plain_ddp.py 90 0.05", 2, "not-arrived", (1,)),
    "toy-asleep": Recording("with_fault.py sleep:0:60 toy.py --steps 90", 2, "not-arrived", (0,)),
    "well-2": well("stuck.py none 0 0 --total 200"),
    "well-4": well("stuck.py none 0 0 --total 150", 4),
    "well-mesh": well("mesh.py none 150", 4),
    "well-ddp": well("plain_ddp.py 200 0.05"),
    "well-slow-steps": well("stuck.py none 0 0 --total 12 --pause 1.5"),
    "a-save-of-20-s": well("stuck.py write 0 60"),
    "suspended": well("stuck.py none 0 0 --total 200", freeze=4.0),
    "suspended-4": well("stuck.py none 0 0 --total 150", 4, freeze=3.0),
    "a-moment-stopped": well("stuck.py none 0 0 --total 200", pause=0.2),
}  # fmt: skip


def record(name: str, one: Recording) -> str:
    """Run the job and keep its looks; says what was seen."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run = " ".join(str(SCRIPTS / word) if word.endswith(".py") else word for word in one.run.split())
        (folder / "job.yaml").write_text(
            f"name: recorded\nnproc_per_node: {one.nproc}\nrun: {run}\nwatchdog: {{patience: 1s, on_hang: stop}}\n"
            f"restart: {{policy: never}}\n{one.extra}"
        )
        raw = folder / "looks.jsonl"
        env = {k: v for k, v in os.environ.items() if not k.startswith("ZRUN_")} | {
            "PYTHONPATH": str(HERE / "recording"), "E2E_RECORD_INTO": str(raw), "OMP_NUM_THREADS": "1",
            "XDG_STATE_HOME": str(folder / "state"),
        }  # fmt: skip
        launch = subprocess.Popen(
            [sys.executable, "-m", "zrun.cli.main", "launch", "job.yaml"], cwd=folder, env=env,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        disturb(launch, raw, one)
        launch.wait()
        looks = [json.loads(line) for line in raw.read_text().splitlines()]
    kept = around(looks)
    (INTO / f"{name}.json").write_text(
        "[\n" + ",\n".join(json.dumps(look, separators=(",", ":")) for look in kept) + "\n]\n"
    )
    return ", ".join(str(said) for look in looks for said in look["said"]) or "nothing"


def around(looks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a job that hung the looks around the first word, of another one those in its middle."""
    first = next((look["now"] for look in looks if look["said"]), None)
    if first is not None:
        return [look for look in looks if first - BEFORE_S <= look["now"] <= first + AFTER_S]
    return list(looks[-12:])


def disturb(launch: "subprocess.Popen[bytes]", raw: Path, one: Recording) -> None:
    """Stop all ranks, or one, for a while once the job steps."""
    seconds = one.freeze or one.pause
    while seconds and launch.poll() is None and len(steps := looks_at_steps(raw)) < 4:
        time.sleep(0.1)
    if not seconds or launch.poll() is not None:
        return
    pids = [row.pid for row in steps[-1]][: None if one.freeze else 1]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, number)
        time.sleep(seconds if number == signal.SIGSTOP else 0.0)


def looks_at_steps(raw: Path) -> list[Any]:
    import base64

    from zrun.core.deck import Phase
    from zrun.core.rows import unpack_rows

    lines = raw.read_text().splitlines() if raw.exists() else []
    rows = [unpack_rows(base64.b64decode(json.loads(line)["rows"])) for line in lines]
    return [some for some in rows if all(row.phase is Phase.STEP for row in some)]


def main() -> None:
    INTO.mkdir(exist_ok=True)
    wanted = [name for name in sys.argv[1:] if name in RECORDINGS] or list(RECORDINGS)
    for name in wanted:
        if "--missing" in sys.argv and (INTO / f"{name}.json").exists():
            continue
        print(f"{name}: {record(name, RECORDINGS[name])}", flush=True)


if __name__ == "__main__":
    main()
