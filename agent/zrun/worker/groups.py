"""The default process group, made if the script has not made it; knows nothing about training."""

import atexit
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from zrun.state.agree import never_freed


def on_accelerator(models: Any) -> bool:
    """Does the first parameter found live on a CUDA device? `models`: a module, or a list or mapping of them."""
    if isinstance(models, nn.Module):
        first = next(iter(models.parameters()), None)
        return first is not None and first.is_cuda
    held = models.values() if isinstance(models, dict) else models or []
    return any(on_accelerator(model) for model in held)


def ensure_group(rank: int, world_size: int, models: Any) -> tuple[int, int]:
    """(rank, world size) of the default group; one of our making is taken down when the interpreter ends."""
    if not dist.is_available():
        return 0, 1
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if on_accelerator(models) and dist.is_nccl_available() else "gloo"
        if world_size > 1:
            dist.init_process_group(backend)
        else:  # alone, and perhaps not under torchrun: no address, no port
            dist.init_process_group(backend, store=_lonely_store(), rank=rank, world_size=1)
        atexit.register(_take_down)
    never_freed(dist.group.WORLD)  # a DDP model may be its last owner
    return dist.get_rank(), dist.get_world_size()


def _lonely_store() -> Any:
    from torch._C._distributed_c10d import HashStore

    return HashStore()


def _take_down() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def strategy_of(model: Any, optimizer: Any) -> str:
    """A word for people: how the model is spread over ranks."""
    models = (
        [model] if isinstance(model, nn.Module) else list(model.values() if isinstance(model, dict) else model or [])
    )
    optimizers = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    if any(hasattr(module, "set_reshard_after_forward") for held in models for module in held.modules()):
        return "fsdp"
    if any(type(held).__name__ == "ZeroRedundancyOptimizer" for held in optimizers):
        return "zero1"
    if any(isinstance(held, nn.parallel.DistributedDataParallel) for held in models):
        return "ddp"
    return "single" if not torch.distributed.is_initialized() or dist.get_world_size() == 1 else "own"
