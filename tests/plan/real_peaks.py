"""Program of test_real_memory.py: trains the hybrid model two steps with each strategy and tells what it took.

`real_peaks.py MICRO_BATCH WRAP STRATEGY,… OUT` under torchrun. Peaks are the CPU allocator's own events.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.plan import hybrid_model


def held(tensors: Iterable[Any]) -> int:
    """Bytes of this rank's own part."""
    local = [one.to_local() if isinstance(one, DTensor) else one for one in tensors if isinstance(one, Tensor)]
    return sum(one.numel() * one.element_size() for one in local if one.dim())


def trained(strategy: str, wrap: str, micro_batch: int) -> dict[str, Any]:
    from parallel import optimizer_for, spread  # the example's, on the path since hybrid_model was imported

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        model = spread(hybrid_model.build(), strategy, wrap, torch.device("cpu"))
        optimizer = optimizer_for(model, strategy, 1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            hybrid_model.loss(model, micro_batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        inner: Any = getattr(optimizer, "optim", optimizer)
        state = [value for one in inner.state.values() for value in one.values()]
        found = {
            "parameters": held(model.parameters()),
            "gradients": held(one.grad for one in model.parameters()),
            "optimizer": held(state),
        }
    results: Any = watched.profiler
    events = [one for one in results.kineto_results.events() if one.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return {**found, "peak": peak}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    told = {one: trained(one, sys.argv[2], int(sys.argv[1])) for one in sys.argv[3].split(",")}
    if dist.get_rank() == 0:
        Path(sys.argv[4]).write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()
