"""How long anything of a job lives on when its agent (or its keeper) is killed, with every nasty child at once.

    python benchmarks/agent_killed.py [--trials 5] [--ranks 2]

Each rank has loader workers blocked in a write of 1 MB to a pipe, loader workers with tensors, a shell that waits for a
child, one in a session of its own, a daemon without parent, session, descriptors or environment, and one that ignores
TERM. Prints seconds from SIGKILL to the end of the last of them, median [min..max], against the bar of 2 s.
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
from typing import Any, Final

from zrun.agent import proc_table
from zrun.agent.proc_table import Proc

SCRIPT: Final = Path(__file__).resolve().parents[1] / "tests" / "e2e" / "scripts" / "leaves_behind.py"
CHILDREN: Final = "bytes,tensors,wrapper,setsid,daemon,deaf"
BAR_S: Final = 2.0
FEWEST_A_RANK: Final = 10


def wait(check: Callable[[], Any], within_s: float = 120.0, every_s: float = 0.1) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(every_s)
    raise SystemExit("nothing happened within two minutes")


def find(run: str, what: str) -> int:
    """The pid of the agent or keeper of a run; 0 if there is none."""
    for pid in proc_table.pids():
        try:
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if run in argv and (("zrun.agent.keeper" in argv) if what == "keeper" else (" agent --embedded" in argv)):
            return pid
    return 0


def family(keeper: int) -> set[Proc]:
    pids = proc_table.descendants(keeper)
    return {found.proc for pid in pids if (found := proc_table.stat(pid)) is not None and found.alive}


def trial(ranks: int, victims: tuple[str, ...]) -> tuple[float, int]:
    """(seconds until the last was gone, how many there were)."""
    folder = Path(tempfile.mkdtemp(prefix="zrun-bench-"))
    env = {**os.environ, "E2E_FOLDER": str(folder), "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}
    (folder / "job.yaml").write_text(
        f"name: bench\nnproc_per_node: {ranks}\nrun: {SCRIPT} --steps 100000 --make {CHILDREN}\n"
    )
    zrun = [sys.executable, "-m", "zrun.cli.main"]
    launch = subprocess.Popen(
        [*zrun, "launch", "job.yaml"], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:

        def stepping() -> bool:
            said = subprocess.run([*zrun, "status", "--json"], cwd=folder, env=env, capture_output=True, check=False)
            return said.returncode == 0 and (json.loads(said.stdout).get("step") or 0) >= 3

        wait(stepping)
        procs = family(find(str(folder), "keeper"))
        assert len(procs) > ranks * FEWEST_A_RANK, f"only {len(procs)} processes"
        pids = [find(str(folder), what) for what in victims]
        began = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait(lambda: not any(map(proc_table.is_alive, procs)), every_s=0.005)
        return time.monotonic() - began, len(procs)
    finally:
        subprocess.run([*zrun, "stop", "--now"], cwd=folder, env=env, capture_output=True, check=False)
        launch.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was begun is ended
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    worst = 0.0
    for victims in (("agent",), ("keeper",), ("agent", "keeper")):
        seen = [trial(options.ranks, victims) for _ in range(options.trials)]
        took = [seconds for seconds, _ in seen]
        if victims == ("agent",):
            worst = max(took)
        print(
            f"{' and '.join(victims) + ' killed':24} {statistics.median(took):.2f} s "
            f"[{min(took):.2f}..{max(took):.2f}]  {min(count for _, count in seen)} processes"
        )
    print(f"bar: agent killed, nobody alive after {BAR_S:g} s: {'held' if worst <= BAR_S else 'MISSED'}")
    return int(worst > BAR_S)


if __name__ == "__main__":
    sys.exit(main())
