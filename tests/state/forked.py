"""Ranks that are forked from one process with torch imported: a real process each, for the price of a fork.

Only what imports torch and computes nothing before may fork (an OpenMP pool of the parent's would hang its children).
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

DEADLINE_S = 200.0


def fork_ranks(world: int, folder: Path, act: Callable[[int], None]) -> list[int]:
    """Run `act(rank)` in `world` processes that share a gloo group; their statuses. A straggler is killed."""
    folder.mkdir(parents=True)
    pids = [os.fork() or _rank(rank, world, folder, act) for rank in range(world)]
    waiting, statuses = dict(enumerate(pids)), [0] * world
    give_up_at = time.monotonic() + DEADLINE_S
    while waiting:
        for rank, pid in list(waiting.items()):
            if time.monotonic() > give_up_at:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                statuses[rank] = os.waitstatus_to_exitcode(status)
                del waiting[rank]
        time.sleep(0.005)
    return statuses


def _rank(rank: int, world: int, folder: Path, act: Callable[[int], None]) -> int:
    code = 1
    output = os.open(folder / f"rank-{rank}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        import torch
        import torch.distributed as dist
        from torch.distributed import FileStore  # type: ignore[attr-defined]

        torch.set_num_threads(1)
        store = FileStore(str(folder / "store"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
        act(rank)
        dist.barrier()
        code = 0
    except BaseException:  # whatever it was: it must not run on as its parent
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
