"""One model, five ways to spread it over ranks, and what differs: wrapping, optimizer, gradient sync, full weights."""

import ctypes
import hashlib
import os
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from model import HybridLM, Layer, SuperBlock
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "hsdp")


def start() -> torch.device:
    """Join the ranks torchrun has started; the device of this one."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
            torch.set_num_threads(1)  # the ranks share the cores
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def spread(model: HybridLM, strategy: str, wrap: str, device: torch.device) -> nn.Module:
    """ddp, zero1: whole weights on each rank. zero2: sharded, gathered once a step. zero3: gathered layer by layer.

    hsdp: sharded within a group, the same in each of two groups.
    """
    model.to(device)
    if strategy in {"ddp", "zero1"}:
        ddp: nn.Module = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
        return ddp
    world = dist.get_world_size()
    groups = 2 if strategy == "hsdp" and world % 2 == 0 else 1
    dims = (groups, world // groups) if strategy == "hsdp" else (world,)
    mesh = init_device_mesh(device.type, dims, mesh_dim_names=("replicate", "shard")[-len(dims) :])
    unit = Layer if wrap == "layer" else SuperBlock
    for module in [part for part in model.modules() if isinstance(part, unit)]:
        fully_shard(module, mesh=mesh, reshard_after_forward=strategy != "zero2")
    fully_shard(model, mesh=mesh, reshard_after_forward=strategy != "zero2")
    return model


def optimizer_for(model: nn.Module, strategy: str, lr: float) -> torch.optim.Optimizer:
    """AdamW; matrices decay, vectors (norms, rates) do not."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in parameters if one.dim() >= 2], "weight_decay": 0.1},
        {"params": [one for one in parameters if one.dim() < 2], "weight_decay": 0.0},
    ]
    if strategy == "zero1":
        return ZeroRedundancyOptimizer(groups, optimizer_class=torch.optim.AdamW, lr=lr, betas=(0.9, 0.95))
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def syncing(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Gradients cross between ranks at the last part of a step only."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    elif isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return nullcontext()


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over the full weights in fp32 in the order of their names. Every rank must take part."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    digest = hashlib.sha256()
    for _, value in sorted(inner.state_dict().items()):
        whole: Tensor = value.full_tensor() if isinstance(value, DTensor) else value
        whole = whole.detach().to("cpu", torch.float32).contiguous()
        digest.update((ctypes.c_char * (whole.numel() * 4)).from_address(whole.data_ptr()))
    return digest.hexdigest()
