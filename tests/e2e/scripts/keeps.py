"""A small net with BatchNorm and dropout under `ddp`, `zero1`, `fsdp` or `hsdp`, with one fault by appointment.

`keeps.py STRATEGY STEPS [KIND:RANK:STEP:PLACE]`: in attempt 1, at that step, before, in the middle of or after its
backward, inside its optimizer.step, after it, or while the next batch is read. Prints each step, at the end a digest.
"""

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from zrun.worker import Loader, Session

STRATEGY, STEPS = sys.argv[1], int(sys.argv[2])
KIND, RANK, STEP, PLACE = sys.argv[3].split(":") if len(sys.argv) > 3 else ["", "-1", "-1", ""]
PAUSE_S = float(os.environ.get("KEEPS_PAUSE", "0.02"))
HERE = os.environ["RANK"] == RANK and os.environ.get("ZRUN_ATTEMPT", "1") == "1"


class Numbers(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.arange(8, dtype=torch.float32) * (index + 1) / 96 + torch.rand(8) * 0.1
        return x, x.sum(dim=0, keepdim=True)


def trip(step: int, place: str) -> None:
    if not HERE or step != int(STEP) or place != PLACE:
        return
    print(f"fault by appointment: {KIND}", flush=True)
    if KIND == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if KIND == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if KIND == "sleep":
        time.sleep(3600)
    raise ValueError("fault by appointment")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32)
        self.drop, self.last = torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.drop(self.norm(self.first(x)).relu()))
        return made


def wrapped(net: Net) -> tuple[torch.nn.Module, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    if STRATEGY in ("ddp", "zero1"):
        ddp = DistributedDataParallel(net, bucket_cap_mb=0.0001)
        if STRATEGY == "ddp":
            return ddp, torch.optim.AdamW(ddp.parameters(), lr=1e-2)
        return ddp, ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1e-2)
    world = dist.get_world_size()
    shape, names = ((world,), ("shard",)) if STRATEGY == "fsdp" else ((world // 2, 2), ("replicate", "shard"))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for module in (net.first, net.last):
        fully_shard(module, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, torch.optim.AdamW(net.parameters(), lr=1e-2)


def watch_backward(net: Net, step: Callable[[], int]) -> None:
    """In the middle of a backward: the last layer's gradients are reduced, the first one's are not."""
    net.norm.register_full_backward_hook(lambda *_: trip(step(), "backward"))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    model, opt = wrapped(net)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    register_optimizer_step_pre_hook(lambda *_: trip(run.step, "inside"))
    loader = Loader(Numbers(), global_batch=16)
    run = Session(model=model, optimizer=opt, scheduler=sched, data=loader)
    watch_backward(net, lambda: run.step)
    with run:
        for x, y in run.steps(total=STEPS):
            time.sleep(PAUSE_S)
            loss = torch.nn.functional.mse_loss(model(x), y)
            trip(run.step, "forward")
            (loss * run.weight).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            trip(run.step, "reduced")
            opt.step()
            trip(run.step, "stepped")
            sched.step()
            opt.zero_grad()
            run.state["seen"] = run.step
            print(f"done {run.step} {loss.item():.9f}", flush=True)
    digest(net)
    dist.destroy_process_group()


def digest(net: Net) -> None:
    state = hashlib.sha256()
    for name, tensor in net.state_dict().items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        # Running statistics are each rank's own where nothing broadcasts them: rank 0 prints its own.
        state.update(name.encode() + bytes(whole.contiguous().reshape(-1).view(torch.uint8).tolist()))
    if os.environ["RANK"] == "0":
        print(f"weights sha256={state.hexdigest()}")


if __name__ == "__main__":
    main()
