"""Parameters and buffers of a model under the names they have without any wrapper around it.

DDP's `module.`, torch.compile's `_orig_mod.`, activation checkpointing's and FSDP's prefixes are left out by looking
at what each module is, so a user's own submodule called `module` keeps its name. Knows nothing about checkpoints.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from zrun.core.errors import CheckpointError
from zrun.state.comm_hooks import keeps_equal

_WRAPPED: Final = ("_orig_mod", "_checkpoint_wrapped_module")
"""Children that a wrapper alone has: their name is no part of a parameter's name."""


@dataclass(slots=True)
class Named:
    """What one model holds: each tensor once, under its first name; `aliases` are the other names of tied ones."""

    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    homes: list[tuple[Mapping[str, torch.Tensor | None], str]] = field(default_factory=list)
    """Where each of `buffers` is kept, in the same order: a module may put another tensor there."""
    extra: dict[str, nn.Module] = field(default_factory=dict)
    """Modules with a `get_extra_state` of their own, by name."""
    ddp: dict[str, DistributedDataParallel] = field(default_factory=dict)
    synced: set[str] = field(default_factory=set)
    """Parameters that a DDP keeps equal on all ranks."""
    broadcast: set[str] = field(default_factory=set)
    """Buffers that a DDP overwrites with rank 0's before each forward."""


def named(model: nn.Module) -> Named:
    """Walk a model; refuses FullyShardedDataParallel (flat parameters have no names of their own)."""
    found = Named()
    seen: dict[int, str] = {}
    for name, module, ddp in _walk(model, "", None):
        if isinstance(module, DistributedDataParallel):
            found.ddp[name] = module
        _take_parameters(found, seen, name, module, ddp)
        _take_buffers(found, seen, name, module, ddp)
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            found.extra[name] = module
    return found


@dataclass(frozen=True, slots=True)
class _Around:
    """The DDP around a module and the name it has in the whole model; `keeps` says if all ranks agree on a tensor."""

    ddp: DistributedDataParallel
    name: str

    def keeps(self, name: str) -> bool:
        if dist.get_world_size(self.ddp.process_group) != dist.get_world_size():
            return False  # ranks of other groups may hold another tensor of the same name
        if not keeps_equal(self.ddp):
            return False  # such a hook may leave each rank with parameters of its own
        return name.removeprefix(f"{self.name}.") not in self.ddp.parameters_to_ignore


def _walk(module: nn.Module, name: str, ddp: _Around | None) -> Iterator[tuple[str, nn.Module, _Around | None]]:
    if type(module).__name__ == "FullyShardedDataParallel":
        raise CheckpointError(
            f"{name or 'the model'} is wrapped in FullyShardedDataParallel, whose flat parameters are not supported",
            hint="use torch.distributed.fsdp.fully_shard",
        )
    yield name, module, ddp
    if isinstance(module, DistributedDataParallel):
        yield from _walk(module.module, name, _Around(module, name))
        return
    for child_name, child in module.named_children():
        wrapper_only = child_name in _WRAPPED
        yield from _walk(child, name if wrapper_only else f"{name}.{child_name}" if name else child_name, ddp)


def _take_parameters(found: Named, seen: dict[int, str], prefix: str, module: nn.Module, ddp: _Around | None) -> None:
    for own, parameter in module._parameters.items():  # noqa: SLF001 - named_parameters() would leave ties out
        if parameter is None:
            continue
        name = f"{prefix}.{own}" if prefix else own
        if id(parameter) in seen:
            if seen[id(parameter)] != name:
                found.aliases[name] = seen[id(parameter)]
            continue
        seen[id(parameter)] = name
        found.parameters[name] = parameter
        if ddp is not None and ddp.keeps(name):
            found.synced.add(name)


def _take_buffers(found: Named, seen: dict[int, str], prefix: str, module: nn.Module, ddp: _Around | None) -> None:
    for own, buffer in module._buffers.items():  # noqa: SLF001 - the only way to see which ones persist
        if buffer is None or own in module._non_persistent_buffers_set:  # noqa: SLF001 - as state_dict does
            continue
        name = f"{prefix}.{own}" if prefix else own
        if id(buffer) in seen:
            if seen[id(buffer)] != name:
                found.aliases[name] = seen[id(buffer)]
            continue
        seen[id(buffer)] = name
        found.buffers[name] = buffer
        found.homes.append((module._buffers, own))  # noqa: SLF001 - as above
        if ddp is not None and ddp.ddp.broadcast_buffers and ddp.keeps(name):
            found.broadcast.add(name)
