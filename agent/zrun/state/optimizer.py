"""An optimizer's state by parameter name, so that it fits another world size, grouping of ranks or strategy.

ZeroRedundancyOptimizer keeps a local optimizer over its share of the parameters; its state is taken from there and
the settings (lr, betas, …) from the outer groups, which the scheduler writes. Knows nothing about files.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from zrun.core.errors import CheckpointError
from zrun.state.blocks import Block, Copies, block_of, is_sharded
from zrun.state.source import Source
from zrun.state.values import decode, encode


def kind_of(optimizer: Optimizer) -> str:
    """The class that does the arithmetic: the local one under ZeroRedundancyOptimizer."""
    return type(_inner(optimizer)).__qualname__


def _inner(optimizer: Optimizer) -> Optimizer:
    # Its module costs a second to import, so it is only looked at where the script has imported it.
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    if module is None or not isinstance(optimizer, module.ZeroRedundancyOptimizer):
        return optimizer
    if optimizer._overlap_with_ddp:  # noqa: SLF001 - it has no public name
        raise CheckpointError("ZeroRedundancyOptimizer(overlap_with_ddp=True) cannot be saved or restored exactly")
    inner: Optimizer = optimizer.optim
    return inner


def settings_of(name: str, groups: Sequence[Mapping[str, Any]], tensors: dict[str, torch.Tensor]) -> list[Any]:
    """What a scheduler may change (lr, betas, …), group by group; tensors among it go into `tensors`."""
    return [
        {key: encode(value, f"{name}/group-{index}/{key}", tensors) for key, value in group.items() if key != "params"}
        for index, group in enumerate(groups)
    ]


def with_settings(entry: Mapping[str, Any], settings: Sequence[Any]) -> dict[str, Any]:
    """An optimizer's entry among the values with other settings."""
    groups = [{**group, "settings": own} for group, own in zip(entry["groups"], settings, strict=True)]
    return {**entry, "groups": groups}


def layout_mark(optimizer: Optimizer) -> tuple[Any, ...]:
    """Cheap, and another one once the optimizer keeps other tensors than before."""
    state = _inner(optimizer).state
    first: Mapping[str, Any] = next(iter(state.values()), {})
    return len(state), *(id(value) for value in first.values() if isinstance(value, torch.Tensor))


def pointers(optimizer: Optimizer) -> Iterator[int]:
    """Where the tensors lie that an optimizer keeps or is set to (of a DTensor this rank's part)."""
    for held in (*_inner(optimizer).state.values(), *optimizer.param_groups):
        for tensor in _tensors(list(held.values())):
            yield (tensor.to_local() if is_sharded(tensor) else tensor).data_ptr()


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


class OptimizerPart:
    """One optimizer under one name; `names` gives each parameter's full name (`model/0.weight`) by its id."""

    def __init__(
        self, name: str, optimizer: Optimizer, names: Mapping[int, str], copies: Callable[[str], Copies]
    ) -> None:
        self.name = name
        self.optimizer = optimizer
        self._names = names
        self._copies = copies
        self._inner = _inner(optimizer)

    def save(self, blocks: list[Block], values: dict[str, Any]) -> None:
        """Add the state's tensors to `blocks` and everything else to `values`."""
        tensors: dict[str, torch.Tensor] = {}
        settings = settings_of(self.name, self.optimizer.param_groups, tensors)
        groups = [{"settings": own, "names": names} for own, names in zip(settings, self.names(), strict=True)]
        values[self.name] = {"kind": kind_of(self.optimizer), "groups": groups}
        blocks.extend(block_of(name, tensor, Copies.OWN) for name, tensor in tensors.items())
        for parameter, state in self._inner.state.items():
            name = self._name(parameter)
            held: dict[str, torch.Tensor] = {}
            values[f"{self.name}/{name}"] = encode(dict(state), f"{self.name}/{name}", held)
            # A plain tensor beside a sharded parameter may be this rank's alone.
            copies = Copies.OWN if is_sharded(parameter) else self._copies(name)
            blocks.extend(block_of(key, tensor, copies) for key, tensor in held.items())

    def _name(self, parameter: torch.Tensor) -> str:
        try:
            return self._names[id(parameter)]
        except KeyError:
            raise CheckpointError(
                f"{self.name} holds a parameter of shape {tuple(parameter.shape)} that is in no model of this Session",
                hint="hand every model the optimizer works on to Session(model=...)",
            ) from None

    def names(self) -> list[list[str]]:
        """Parameter names, group by group, in the optimizer's order."""
        return [[self._name(parameter) for parameter in group["params"]] for group in self.optimizer.param_groups]

    def load(self, source: Source, skip: frozenset[str]) -> None:
        """Replace the state by the saved one; parameters in `skip` begin without state."""
        self._inner.state.clear()
        for group in self._inner.param_groups:
            for parameter in group["params"]:
                name = self._name(parameter)
                saved = source.values.get(f"{self.name}/{name}")
                if saved is not None and name not in skip:
                    self._inner.state[parameter] = self._state_of(parameter, group, saved, source)
        for mine, saved in zip(self.optimizer.param_groups, source.values[self.name]["groups"], strict=True):
            for key, value in saved["settings"].items():
                _set(mine, key, decode(value, source.whole))
        if self._inner is not self.optimizer:
            for outer, inner in zip(self.optimizer.param_groups, self._inner.param_groups, strict=True):
                inner.update({key: value for key, value in outer.items() if key != "params"})

    def _state_of(
        self, parameter: torch.Tensor, group: Mapping[str, Any], saved: Any, source: Source
    ) -> dict[str, Any]:
        on_device = bool(group.get("capturable") or group.get("fused"))

        def tensor(name: str) -> torch.Tensor:
            shape, dtype = source.shape(name), source.dtype(name)
            if shape == parameter.shape and parameter.dim():
                made = torch.zeros_like(parameter.detach(), dtype=dtype, memory_format=torch.preserve_format)
            else:
                # torch keeps step counters on the CPU unless the kernel wants them on the device.
                device = parameter.device if shape or on_device else torch.device("cpu")
                made = torch.zeros(shape, dtype=dtype, device=device)
            source.fill(block_of(name, made, Copies.EQUAL))
            return made

        state: dict[str, Any] = decode(saved, tensor)
        return state


def _set(group: dict[str, Any], key: str, value: Any) -> None:
    """A learning rate that is a tensor stays the same tensor: compiled steps hold on to it."""
    held = group.get(key)
    if isinstance(held, torch.Tensor) and isinstance(value, torch.Tensor) and held.shape == value.shape:
        with torch.no_grad():
            held.copy_(value)
    else:
        group[key] = value
