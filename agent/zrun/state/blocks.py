"""One rank's block of a tensor: what it is called, where it sits in the whole, and who else holds the same.

Knows torch's DTensor, and nothing about files, models or optimizers.
"""

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeGuard

import torch
import torch.distributed as dist

from zrun.core.errors import CheckpointError


class Copies(StrEnum):
    """What is known about the same block on other ranks."""

    EQUAL = "equal"
    """Bit-equal by construction (DDP's parameters, a DTensor's replicas): any rank may write it."""
    FIRST = "first"
    """The lowest rank that holds it has the true one (buffers that DDP broadcasts)."""
    OWN = "own"
    """Nothing keeps them equal: where they differ, each rank's is kept."""


@dataclass(frozen=True, slots=True)
class Block:
    """`local` is the memory itself (on any device): read when saving, written in place when loading."""

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    local: torch.Tensor
    copies: Copies

    @classmethod
    def whole(cls, name: str, tensor: torch.Tensor) -> "Block":
        """A plain tensor that is all there is of it."""
        return cls(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor, Copies.OWN)

    @property
    def bytes(self) -> int:
        return self.local.numel() * self.local.element_size()

    @property
    def key(self) -> str:
        """The same on every rank that holds this very block."""
        return f"{self.name}@{','.join(map(str, self.offsets))}:{','.join(map(str, self.local.shape))}"


def block_of(name: str, tensor: torch.Tensor, copies: Copies) -> Block:
    """The block this rank holds of a tensor; the whole of it unless it is a DTensor."""
    plain = tensor.detach()
    if not is_sharded(plain):
        return Block(name, tuple(plain.shape), (0,) * plain.dim(), plain, copies)
    if any(placement.is_partial() for placement in plain.placements):
        raise CheckpointError(f"{name} is a DTensor with a pending sum (Partial); it has no value to save yet")
    return Block(name, tuple(plain.shape), _offsets(name, plain), plain.to_local(), _copies(plain.device_mesh.size()))


def is_sharded(tensor: torch.Tensor) -> TypeGuard[Any]:
    """Is it a DTensor? Without importing them: a script that has none shall not pay for them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _copies(ranks: int) -> Copies:
    """Equal names on ranks that do not work together (pipeline stages) may hide different tensors."""
    return Copies.EQUAL if ranks == (dist.get_world_size() if dist.is_initialized() else 1) else Copies.OWN


def _offsets(name: str, tensor: Any) -> tuple[int, ...]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if any(getattr(placement, "split_factor", 1) > 1 for placement in tensor.placements):
        return _strided_offsets(name, tensor)
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(min(int(offset), size) for offset, size in zip(offsets, tensor.shape, strict=True))


def _strided_offsets(name: str, tensor: Any) -> tuple[int, ...]:
    """Under tensor parallel fully_shard cuts what is left of each tensor: the inner mesh dimension came first.

    So this rank's block is one piece, cut out of the piece of its place in the tensor parallel group.
    """
    begin, size = [0] * tensor.dim(), [int(length) for length in tensor.shape]
    cuts = [(i, placement) for i, placement in enumerate(tensor.placements) if hasattr(placement, "dim")]
    strided = [cut for cut in cuts if getattr(cut[1], "split_factor", 1) > 1]
    for mesh_dim, placement in [cut for cut in cuts if cut not in strided] + strided[::-1]:
        axis = placement.dim
        parts, place = tensor.device_mesh.size(mesh_dim), tensor.device_mesh.get_local_rank(mesh_dim)
        step = -(-size[axis] // parts)
        first = min(place * step, size[axis])
        begin[axis], size[axis] = begin[axis] + first, min(step, size[axis] - first)
    local = tuple(int(length) for length in tensor.to_local().shape)
    if tuple(size) != local:
        raise CheckpointError(
            f"{name} is sharded {tensor.placements} into {local}, expected {tuple(size)}; not supported"
        )
    return tuple(begin)
