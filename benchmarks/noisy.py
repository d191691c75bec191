"""A healthy job that looks bad now and then: `noisy.py CASE STEPS`, 2 ranks, nothing marked in the script.

noise     log-normal steps (sigma 0.6), 1 in 50 is 8 x as long; a long evaluation, a save, a long compilation
save      rank 0 writes a checkpoint to a slow disk for 20 s while the others wait
loader    the data of all ranks stalls for 10 s
compile   one rank compiles anew at step 500 (or half way) for 20 s
none      plain steps (what is done to it comes from outside)
"""

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

CASE, STEPS = sys.argv[1], int(sys.argv[2])
MEAN_S = float(os.environ.get("NOISY_MEAN_S", "0.02"))
RANK = int(os.environ["RANK"])


class SlowDisk:
    """Takes what torch.save gives it, 20 s in all."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, data: Any) -> int:
        time.sleep(0.25)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def compute(seconds: float) -> None:
    """Half of it on the CPU."""
    until = time.monotonic() + seconds / 2
    while time.monotonic() < until:
        torch.ones(64, 64) @ torch.ones(64, 64)
    time.sleep(seconds / 2)


def compiling(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(10000))


def extra(step: int) -> None:
    """What this case does beside its steps."""
    if CASE == "save" and step == STEPS // 2 and RANK == 0:
        disk = SlowDisk(Path(os.environ["NOISY_FOLDER"]) / "slow.pt")
        state = {str(i): torch.ones(100) for i in range(35)}
        torch.save(state, disk, _use_new_zipfile_serialization=False)  # type: ignore[arg-type]
    elif CASE == "loader" and step == STEPS // 2:
        time.sleep(10.0)
    elif CASE == "compile" and step == min(500, STEPS // 2) and RANK == 1:
        compiling(20.0)
    elif CASE == "noise" and step % 2000 == 1000:
        compute(6.0)
    elif CASE == "noise" and step == STEPS // 2 and RANK == 1:
        compiling(20.0)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    draw = random.Random(1000 + RANK)
    weight = torch.nn.Parameter(torch.ones(64))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for step in range(1, STEPS + 1):
        noise = draw.lognormvariate(-0.18, 0.6) * (8.0 if draw.random() < 0.02 else 1.0) if CASE == "noise" else 1.0
        compute(MEAN_S * noise)
        extra(step)
        grad = torch.ones(64)
        dist.all_reduce(grad)
        weight.grad = grad
        optimizer.step()
    dist.barrier()


if __name__ == "__main__":
    main()
