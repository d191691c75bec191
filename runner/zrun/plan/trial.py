"""A program for each rank of `--measure-wrap`: a few real steps of a user's model for each way to wrap it.

Runs under torchrun in the job's own python and needs torch alone. `trial.py MODEL LOSS MICRO_BATCH RANKS OUT`; rank 0
writes OUT.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

sys.path.append(str(Path(__file__).resolve().parents[2]))  # at the end: nothing of the user's is hidden

from zrun.plan.probe import made, named, units
from zrun.plan.together import meet

STEPS: Final = 5
AUTO_PARTS: Final = 16
"""`auto` wraps a module as soon as what is not yet wrapped in it is this part of the model."""
COLLECTIVES: Final = {
    "c10d::_allgather_base_": "all_gather", "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::allreduce_": "all_reduce",
}  # fmt: skip
Step = Callable[[], None]


def candidates(model: nn.Module) -> dict[str, list[str]]:
    """Names of the modules to wrap, innermost first; ways that come to the same are kept once."""
    names = {id(module): name for name, module in model.named_modules()}
    found = {
        "layer": [names[id(one)] for one in units(model, outermost=False)],
        "superblock": [names[id(one)] for one in units(model, outermost=True)],
        "auto": by_size(model),
    }
    kept: dict[str, list[str]] = {}
    for name, one in found.items():
        if one and one not in kept.values():
            kept[name] = one
    return kept


def by_size(model: nn.Module) -> list[str]:
    """The policy of torch's size_based_auto_wrap_policy, with a part of the model instead of a fixed number."""
    least = sum(one.numel() for one in model.parameters()) / AUTO_PARTS
    wrapped: list[str] = []

    def left(name: str, module: nn.Module) -> int:
        """Parameters of a module that no unit inside it holds."""
        own = sum(one.numel() for one in module.parameters(recurse=False))
        inner = own + sum(left(f"{name}.{key}" if name else key, child) for key, child in module.named_children())
        if name and inner >= least and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            wrapped.append(name)
            return 0
        return inner

    left("", model)
    return wrapped


def tried(model_name: str, loss_name: str, micro_batch: int, names: list[str], device: torch.device) -> dict[str, Any]:
    """The median of a few steps after the first, and one more step under the profiler."""
    torch.manual_seed(0)
    model = made(model_name).to(device)
    parts = dict(model.named_modules())
    for name in names:
        fully_shard(parts[name])
    fully_shard(model)
    loss: Callable[[nn.Module, int], Tensor] = named(loss_name)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with torch.device(device):
            loss(model, micro_batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    took = [timed(step, device) for _ in range(STEPS + 1)]
    optimizer.zero_grad()
    held = local_bytes(model.parameters()) + local_bytes(
        value for state in optimizer.state.values() for value in state.values()
    )
    peak, calls = watched(step, held, device)
    return {"units": len(names), "step_s": median(took[1:]), "peak_bytes": peak, "collectives": calls}


def timed(step: Step, device: torch.device) -> float:
    """Of the slowest rank."""
    dist.barrier()
    began = time.perf_counter()
    step()
    mine = torch.tensor([time.perf_counter() - began], device=device)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return float(mine.item())


def watched(step: Step, held: int, device: torch.device) -> tuple[int, dict[str, int]]:
    """(peak bytes of this rank, collectives by kind) of one step; on a CPU from the allocator's own events."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=not cuda) as seen:
        step()
    results: Any = seen.profiler
    events = sorted(results.kineto_results.events(), key=lambda one: one.start_ns())
    calls = Counter(COLLECTIVES[one.name()] for one in events if one.name() in COLLECTIVES)
    now = peak = 0
    for event in events:
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return (torch.cuda.max_memory_allocated() if cuda else held + peak), dict(calls)


def local_bytes(tensors: Iterable[Any]) -> int:
    parts = [one.to_local() if isinstance(one, DTensor) else one for one in tensors if isinstance(one, Tensor)]
    return sum(one.numel() * one.element_size() for one in parts)


def main(model_name: str, loss_name: str, micro_batch: int, ranks: int) -> dict[str, Any]:
    backend, device = meet(ranks)
    with torch.device("meta"):
        ways = candidates(made(model_name))
    rows = [{"wrap": way, **tried(model_name, loss_name, micro_batch, names, device)} for way, names in ways.items()]
    return {"backend": backend, "ranks": ranks, "micro_batch": micro_batch, "rows": rows}


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    result = main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    if dist.get_rank() == 0:
        Path(sys.argv[5]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
