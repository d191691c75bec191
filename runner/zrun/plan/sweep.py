"""A program for each rank of a short sweep: how long collectives of growing size take between the ranks of one node.

Runs under torchrun in the job's own python, so it needs torch alone and imports nothing of zrun. `sweep.py RANKS OUT`;
rank 0 writes OUT.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist

from zrun.plan.together import meet

SIZES: Final = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20)
"""Bytes of the whole tensor, gathered or before scattering."""
TRIES: Final = 5


def timed(op: str, count: int, device: torch.device) -> float:
    """Median seconds of one collective over `count` bytes, as the slowest rank saw them."""
    world = dist.get_world_size()
    whole = torch.zeros(count // 4 // world * world, device=device)
    part = torch.zeros(whole.numel() // world, device=device)
    took = []
    for _ in range(TRIES + 1):
        dist.barrier()
        began = time.perf_counter()
        if op == "all_gather":
            dist.all_gather_into_tensor(whole, part)
        elif op == "reduce_scatter":
            dist.reduce_scatter_tensor(part, whole)
        else:
            dist.all_reduce(whole)
        if device.type == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    mine = torch.tensor([median(took[1:])], device=device)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return float(mine.item())


def swept(ranks: int) -> dict[str, Any]:
    """NCCL where each rank has a GPU of its own, else gloo."""
    backend, device = meet(ranks)
    rows = [
        {"op": op, "bytes": count, "seconds": timed(op, count, device)}
        for op in ("all_gather", "reduce_scatter", "all_reduce")
        for count in SIZES
    ]
    return {"backend": backend, "ranks": dist.get_world_size(), "rows": rows}


if __name__ == "__main__":
    result = swept(int(sys.argv[1]))
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
