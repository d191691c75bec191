"""How long from a raise to its last words on disk, and until no rank is alive, whatever the others are doing.

    python benchmarks/raise_to_end.py [--trials 3]

Rank 1 raises in a step and then sits in its `finally` for a minute. The others, with 2 ranks one of these, with 4 all:
blocked in an all_reduce, waiting for a DataLoader worker, asleep with TERM ignored. Bars: words 0.1 s, end 2 s.
"""

import argparse
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

FAULT_AT = 5
STUCK_S = 60.0
BARS_S = (0.1, 2.0)
KINDS = ("all_reduce", "loader", "deaf")


# -- the script that the ranks run ----------------------------------------------------------------------------------


def rank_main(others: list[str]) -> None:
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    class Slow(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            time.sleep(STUCK_S)
            return index

    folder, rank = Path(os.environ["BENCH_FOLDER"]), int(os.environ["RANK"])
    kind = "raises" if rank == 1 else others[max(0, rank - 1)]
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    weight = torch.nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    for step in range(1, 10_000):
        if step == FAULT_AT and kind == "raises":
            raise_slowly(folder / "raised")
        if step == FAULT_AT and kind == "loader":
            next(iter(DataLoader(Slow(), num_workers=1)))
        if step == FAULT_AT and kind == "deaf":
            time.sleep(STUCK_S)
        weight.grad = torch.ones(8)
        dist.all_reduce(weight.grad)
        optimizer.step()
        time.sleep(0.02)


def raise_slowly(note: Path) -> None:
    time.sleep(1.0)  # the others are where they are to be
    partial = note.with_suffix(".tmp")
    partial.write_text(repr(time.time()))
    partial.rename(note)
    try:
        raise ValueError("fault by appointment")
    finally:
        time.sleep(STUCK_S)


# -- what is measured -----------------------------------------------------------------------------------------------


def wait(what: str, check: Callable[[], Any], within_s: float = 90.0) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(0.002)
    raise SystemExit(f"{what}: not within {within_s:g} s")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def has_words(folder: Path) -> bool:
    return any('"last-words"' in path.read_text() for path in folder.glob("runs/*/node-*/attempt-1/rank-1.notes"))


def trial(others: list[str]) -> tuple[float, float]:
    """Seconds from the raise to (last words on disk, no rank alive)."""
    folder = Path(tempfile.mkdtemp(prefix="zrun-bench-"))
    ranks = len(others) + 1
    shutil.copy(__file__, folder / "raising.py")  # not beside other programs, whose names may be those of modules
    (folder / "job.yaml").write_text(
        f"name: bench\nnproc_per_node: {ranks}\nstop_grace: 0s\nrestart: {{policy: never}}\n"
        f"run: raising.py {' '.join(others)}\n"
    )
    env = {**os.environ, "BENCH_FOLDER": str(folder), "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}
    with (folder / "out").open("w") as out:
        launch = subprocess.Popen(
            [sys.executable, "-m", "zrun.cli.main", "launch", "job.yaml"], cwd=folder, env=env, stdout=out, stderr=out
        )
    try:
        raised = float(wait("the raise", lambda: (p := folder / "raised").exists() and p.read_text()))
        pids = [int((folder / f"pid-{rank}").read_text()) for rank in range(ranks)]
        wait("last words", lambda: has_words(folder))
        words_s = time.time() - raised
        wait("the end of all ranks", lambda: not any(alive(pid) for pid in pids))
        ended_s = time.time() - raised
        code = launch.wait(30)
        if code != 100:
            raise SystemExit(f"launch ended with {code}, not with 100:\n{(folder / 'out').read_text()}")
        return words_s, ended_s
    finally:
        launch.kill()
        launch.wait()
        shutil.rmtree(folder, ignore_errors=True)


def show(what: str, values: list[float], bar_s: float) -> bool:
    kept = max(values) <= bar_s
    spread = f"[{min(values):.3f}..{max(values):.3f}]"
    print(f"{what:<52} {statistics.median(values):6.3f} s  {spread}  bar {bar_s:g} s {'' if kept else 'NOT '}kept",
          flush=True)  # fmt: skip
    return kept


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was begun is ended
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=3)
    trials = parser.parse_args().trials
    kept = True
    for others in ([kind] for kind in KINDS):
        kept = measure("2 ranks, the other: " + others[0], others, trials) and kept
    kept = measure("4 ranks, one of each", list(KINDS), trials) and kept
    raise SystemExit(0 if kept else 1)


def measure(what: str, others: list[str], trials: int) -> bool:
    found = [trial(others) for _ in range(trials)]
    words = show(f"{what}: raise -> words", [w for w, _ in found], BARS_S[0])
    return show(f"{what}: raise -> no rank alive", [e for _, e in found], BARS_S[1]) and words


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank_main(sys.argv[1:])
    else:
        main()
