"""Everything a training script handed over, as named blocks and JSON values, and back in place.

Names are stable: `model/<parameter>`, `optimizer/model/<parameter>/exp_avg`, `scheduler`, `scaler`, `extra:<name>`;
several of a kind are `model:<key>`. Knows nothing about files, steps or other ranks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from zrun.core.errors import CheckpointError
from zrun.state.blocks import Block, Copies, block_of, is_sharded
from zrun.state.ddp_state import DdpState
from zrun.state.fits import Layout
from zrun.state.names import Named, named
from zrun.state.optimizer import OptimizerPart, kind_of, layout_mark, pointers
from zrun.state.source import Source
from zrun.state.streams import Streams
from zrun.state.tensor_bytes import dtype_name
from zrun.state.values import decode, encode


def _by_name(kind: str, given: Any) -> dict[str, Any]:
    """One object, a list or a mapping -> part names."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        for key in given:
            if not isinstance(key, str) or set(key) & set("/#~"):
                raise CheckpointError(f"{kind} {key!r}: names are strings without '/', '#' and '~'")
        return {f"{kind}:{key}": value for key, value in given.items()}
    if isinstance(given, (list, tuple)):
        return {f"{kind}:{index}": value for index, value in enumerate(given)}
    return {kind: given}


class _Generator:
    """A torch.Generator of the script's as something with a state_dict."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._generator.set_state(state["state"])


def _stateful(value: Any) -> Any:
    return _Generator(value) if isinstance(value, torch.Generator) else value


def _kind(value: Any) -> str:
    return type(value).__qualname__.lstrip("_")


class Parts:
    """What Session was handed: single objects, lists, or dicts of names. Made on every rank before training begins.

    From now on the arrival order of each DDP's first gradients is noted (zrun.state.arrivals). With `streams` the
    script's own random streams are part of the state.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None = None,
        optimizers: Optimizer | Sequence[Optimizer] | Mapping[str, Optimizer] | None = None,
        schedulers: Any = None,
        scalers: Any = None,
        extras: Mapping[str, Any] | None = None,
        streams: Streams | None = None,
    ) -> None:
        extra = _by_name("extra", {key: _stateful(value) for key, value in (extras or {}).items()})
        self.models: dict[str, nn.Module] = _by_name("model", model) | {
            name: value for name, value in extra.items() if isinstance(value, nn.Module)
        }
        self.optimizers: dict[str, Optimizer] = _by_name("optimizer", optimizers)
        self.stateful: dict[str, Any] = (
            _by_name("scheduler", schedulers)
            | _by_name("scaler", scalers)
            | {name: value for name, value in extra.items() if not isinstance(value, nn.Module)}
        )
        for name, value in self.stateful.items():
            if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise CheckpointError(
                    f"{name} is a {type(value).__qualname__} without state_dict() and load_state_dict()"
                )
        self._streams = streams
        self._newest: dict[str, Named] = {}
        self._ddp = [
            DdpState(f"{part}/{name}", ddp) for part, held in self._named().items() for name, ddp in held.ddp.items()
        ]

    def obstacles(self) -> list[str]:
        """Why a resume cannot be exact, as far as it is known before the first step."""
        return [text for ddp in self._ddp for text in ddp.obstacles()]

    def not_in_memory(self) -> str | None:
        """Why no copy in memory is made of this state; None if it is."""
        tensors = [tensor for model in self.models.values() for tensor in model.parameters()]
        if any(tensor.device.type != "cpu" for tensor in tensors):
            return "it lies on a GPU, from which a copy beside a stuck kernel is not made yet"
        return None

    def _named(self) -> dict[str, Named]:
        for model in self.models.values():
            for module in model.modules():
                # Parameters that an evaluation left unsharded would look like whole ones.
                if hasattr(module, "set_reshard_after_forward") and hasattr(module, "reshard"):
                    module.reshard()  # type: ignore[operator]
        self._newest = {part: named(model) for part, model in self.models.items()}
        return self._newest

    def _optimizer_parts(self, held: Mapping[str, Named]) -> list[OptimizerPart]:
        names: dict[int, str] = {}
        synced: set[str] = set()
        for part, model in held.items():
            for name, parameter in model.parameters.items():
                names.setdefault(id(parameter), f"{part}/{name}")
            synced |= {f"{part}/{name}" for name in model.synced}
        return [
            OptimizerPart(name, optimizer, names, lambda n: Copies.EQUAL if n in synced else Copies.OWN)
            for name, optimizer in self.optimizers.items()
        ]

    def flatten(self) -> tuple[list[Block], dict[str, Any]]:
        """This rank's blocks (not copied: the live memory) and its values."""
        held = self._named()
        blocks: list[Block] = []
        values: dict[str, Any] = {}
        for part, model in held.items():
            blocks += _model_blocks(part, model)
            values[part] = {"aliases": model.aliases}
        for optimizer in self._optimizer_parts(held):
            optimizer.save(blocks, values)
        more, others = self.others(held)
        blocks += more
        _refuse_doubles(blocks)
        return blocks, values | others

    def others(self, held: Mapping[str, Named] | None = None) -> tuple[list[Block], dict[str, Any]]:
        """Of `flatten` all but models' tensors and optimizers: what is small as a rule, and must be asked for anew."""
        blocks, values = self.stateful_of({name: value.state_dict() for name, value in self.stateful.items()})
        for part, model in (held if held is not None else self._newest).items():
            for name, module in model.extra.items():
                key = f"{part}/{name}._extra_state"
                _take_apart(key, module.get_extra_state(), blocks, values)
        for ddp in self._ddp:
            ddp.save(blocks, values)
        if self._streams is not None:
            self._streams.save(blocks, values)
        return blocks, values

    def stateful_of(self, states: Mapping[str, Any]) -> tuple[list[Block], dict[str, Any]]:
        """What `flatten` has of schedulers, scalers and extras, from their state_dict()."""
        blocks: list[Block] = []
        values: dict[str, Any] = {}
        for name, state in states.items():
            _take_apart(name, state, blocks, values)
            values[f"kind/{name}"] = _kind(self.stateful[name])
        return blocks, values

    def plain_models(self) -> list[nn.Module]:
        """Those whose forward can be watched: a hook within a compiled call would break its graph."""
        return [
            model
            for name, model in self.models.items()
            if not name.startswith("extra:") and getattr(model, "_compiled_call_impl", None) is None
        ]

    def settled(self) -> bool:
        """Nothing but schedulers, scalers and extras changes among `others` once training goes on."""
        return (
            self._streams is None
            and not any(ddp.has_hook_state for ddp in self._ddp)
            and not any(model.extra for model in self._newest.values())
        )

    def buffers(self) -> set[str]:
        """Names of the blocks that a forward may change, as they were at the newest `flatten`."""
        return {f"{part}/{name}" for part, model in self._newest.items() for name in model.buffers}

    def layout_mark(self) -> tuple[Any, ...]:
        """Another one once `flatten` would give other blocks than before; cheap, and only as sure as it is cheap."""
        return *(layout_mark(optimizer) for optimizer in self.optimizers.values()), *self.buffer_mark()

    def buffer_mark(self) -> tuple[int, ...]:
        """Another one once a module has put another tensor in a buffer's place, or other memory under it."""
        return tuple(_whereabouts(home.get(name)) for model in self._newest.values() for home, name in model.homes)

    def replaced(self, blocks: Sequence[Block]) -> str | None:
        """The name of one among these of the newest `flatten` that is not the tensor in use now; sure, and dear."""
        now = {
            f"{part}/{name}": parameter.data_ptr()
            for part, model in self._newest.items()
            for name, parameter in model.parameters.items()
            if not is_sharded(parameter)
        }
        used = {pointer for optimizer in self.optimizers.values() for pointer in pointers(optimizer)}
        optimizers = tuple(f"{name}/" for name in self.optimizers)
        for block in blocks:
            pointer = block.local.data_ptr()
            in_use = pointer in used if block.name.startswith(optimizers) else now.get(block.name, pointer) == pointer
            if not in_use:
                return block.name
        return None

    def layout(self) -> Layout:
        """What must be the same in a checkpoint for it to fit (zrun.state.fits)."""
        held = self._named()
        tensors = {f"{part}/{name}": tensor for part, model in held.items() for name, tensor in _tensors_of(model)}
        return Layout(
            models=list(self.models),
            stateful={name: _kind(value) for name, value in self.stateful.items()},
            tensors={name: [dtype_name(t.dtype, name), *map(int, t.shape)] for name, t in tensors.items()},
            optimizers={name: kind_of(optimizer) for name, optimizer in self.optimizers.items()},
            groups={part.name: part.names() for part in self._optimizer_parts(held)},
        )

    def load(self, source: Source, skip: frozenset[str] = frozenset()) -> None:
        """Fill everything in place. Parts and tensors named in `skip` stay as they are.

        Raises CheckpointError or OSError; the state is then half loaded and must be loaded again from elsewhere.
        """
        held = self._named()
        for part, model in held.items():
            if part in skip:
                continue
            for block in _model_blocks(part, model):
                if block.name not in skip:
                    source.fill(block)
            for name, module in model.extra.items():
                key = f"{part}/{name}._extra_state"
                if key in source.values:
                    module.set_extra_state(decode(source.values[key], source.whole))
        for optimizer in self._optimizer_parts(held):
            if optimizer.name not in skip:
                optimizer.load(source, skip)
        for name, stateful in self.stateful.items():
            if name not in skip:
                stateful.load_state_dict(decode(source.values[name], source.whole))

    def resume(self, source: Source) -> list[str]:
        """The last thing after a load, on every rank: each DDP builds the buckets it had, then random streams go on
        where they were. Returns what is not as it was. Collective.
        """
        told = [text for ddp in self._ddp for text in ddp.resume(source)]
        return told + (self._streams.resume(source) if self._streams else [])


def _whereabouts(tensor: torch.Tensor | None) -> int:
    """The memory that `flatten` has seen is not given to anybody else while its blocks are kept."""
    return id(tensor) if tensor is None or is_sharded(tensor) else tensor.data_ptr()


def _take_apart(key: str, state: Any, blocks: list[Block], values: dict[str, Any]) -> None:
    loose: dict[str, torch.Tensor] = {}
    values[key] = encode(state, key, loose)
    blocks += [block_of(name, tensor, Copies.OWN) for name, tensor in loose.items()]


def _tensors_of(model: Named) -> list[tuple[str, torch.Tensor]]:
    return [*model.parameters.items(), *model.buffers.items()]


def _model_blocks(part: str, model: Named) -> list[Block]:
    blocks: list[Block] = []
    for name, parameter in model.parameters.items():
        equal = is_sharded(parameter) or name in model.synced
        blocks.append(block_of(f"{part}/{name}", parameter, Copies.EQUAL if equal else Copies.OWN))
    for name, buffer in model.buffers.items():
        copies = Copies.FIRST if name in model.broadcast else Copies.OWN
        blocks.append(block_of(f"{part}/{name}", buffer, copies))
    return blocks


def _refuse_doubles(blocks: Sequence[Block]) -> None:
    seen: set[str] = set()
    for block in blocks:
        if block.name in seen:
            raise CheckpointError(f"two tensors are both called {block.name}")
        seen.add(block.name)
