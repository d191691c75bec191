"""Steps of 50 ms with one all_reduce each; at step STEP of attempt 1 something gets stuck: `stuck.py FAULT RANK STEP`.

sleep, spin, stop (SIGSTOP), gil (a C call that keeps the interpreter for 20 s), loader (every rank's data stops
coming), one-loader (RANK's alone), shapes (RANK brings twice as much), kinds (RANK broadcasts instead), missing (RANK
thinks that its data is over and waits at the last barrier), early (RANK ends with code 0), write (a torch.save to a
disk that takes 20 s), slow (RANK takes twice as long for every step), none. `--timeout S`: of the process group.
`--total N`: how many steps. It prints the moment at which the fault begins.
"""

import argparse
import ctypes
import os
import signal
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from zrun.worker import Loader, Session


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.stuck = False

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.stuck:
            time.sleep(3600)
        return torch.full((4,), float(index))


class Slow:
    """A file on a disk that takes its time."""

    def write(self, data: Any) -> int:
        time.sleep(20.0 / 40)
        return len(data)

    def flush(self) -> None:
        pass


def halt(fault: str) -> None:
    if fault == "sleep":
        time.sleep(3600)
    elif fault == "spin":
        while True:
            pass
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "gil":
        ctypes.PyDLL(None).sleep(20)
    elif fault == "write":
        state, disk = {str(i): torch.ones(1000) for i in range(30)}, Slow()
        torch.save(state, disk, _use_new_zipfile_serialization=False)  # type: ignore[arg-type]
    elif fault == "early":
        os._exit(0)


def reduce(fault: str, grad: torch.Tensor) -> None:
    """The step's collective, as `fault` has it on this rank."""
    if fault == "shapes":
        dist.all_reduce(torch.ones(2 * grad.numel()))
    elif fault == "kinds":
        dist.broadcast(grad, src=dist.get_rank())
    elif fault == "missing":
        dist.barrier()
    else:
        dist.all_reduce(grad)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault")
    parser.add_argument("rank", type=int)
    parser.add_argument("step", type=int)
    parser.add_argument("--total", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--timeout", type=float, default=1800.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
    data = Numbers()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    mine = os.environ.get("ZRUN_ATTEMPT", "1") == "1" and options.fault != "none"
    with Session(model=model, optimizer=optimizer, data=Loader(data, global_batch=2 * dist.get_world_size())) as run:
        for x in run.steps(total=options.total or options.step + 20):
            time.sleep(options.pause * (2 if options.fault == "slow" and dist.get_rank() == options.rank else 1))
            mine_now = mine and run.step == options.step and dist.get_rank() == options.rank
            if mine and run.step == options.step - 1:
                here = dist.get_rank() == options.rank
                data.stuck = options.fault == "loader" or (options.fault == "one-loader" and here)
            if mine and run.step == options.step - (options.fault.endswith("loader")):
                print(f"fault at {time.time():.3f}", flush=True)
            if mine_now:
                halt(options.fault)
            model(x).square().mean().backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                reduce(options.fault if mine_now else "", parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {run.step}")
    dist.barrier()


if __name__ == "__main__":
    main()
