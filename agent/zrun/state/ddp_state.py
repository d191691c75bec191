"""What a DistributedDataParallel holds beside the model: the buckets it has built, and its communication hook's state.

Knows nothing about the model's own tensors.
"""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from zrun.core.errors import CheckpointError
from zrun.state import comm_hooks
from zrun.state.arrivals import Arrivals
from zrun.state.blocks import Block, Copies, block_of
from zrun.state.source import Source
from zrun.state.values import decode, encode


class DdpState:
    """One DDP under the name of its place (`model/`, `model:g/body`). Notes its gradients' arrival from now on."""

    def __init__(self, name: str, ddp: DistributedDataParallel) -> None:
        self._name = name
        self._ddp = ddp
        self._arrivals = Arrivals(ddp)

    def obstacles(self) -> list[str]:
        """Why a resume cannot be exact, as far as it is known before anything was done."""
        found = [self._arrivals.obstacle()]
        unknown = comm_hooks.unknown_state(self._ddp)
        if unknown is not None:
            found.append(
                f"the communication hook's {unknown} is not saved, for it has no state_dict() and load_state_dict()"
            )
        return [text for text in found if text]

    @property
    def has_hook_state(self) -> bool:
        return bool(comm_hooks.states(self._ddp))

    def save(self, blocks: list[Block], values: dict[str, Any]) -> None:
        arrived = self._arrivals.state()
        if arrived is not None:
            values[f"arrival/{self._name}"] = arrived
        for index, state in enumerate(comm_hooks.states(self._ddp)):
            key = f"hook/{self._name}/{index}"
            loose: dict[str, torch.Tensor] = {}
            values[key] = encode(comm_hooks.state_of(state), key, loose)
            blocks += [block_of(name, tensor, Copies.OWN) for name, tensor in loose.items()]

    def resume(self, source: Source) -> list[str]:
        """After the load, on every rank: buckets first, for the hook runs meanwhile; then its state. Collective."""
        problem = self._arrivals.resume(source.values.get(f"arrival/{self._name}"))
        told = [problem] if problem else []
        for index, state in enumerate(comm_hooks.states(self._ddp)):
            key = f"hook/{self._name}/{index}"
            kind = type(state).__qualname__
            held = source.values.get(key)
            if held is None:
                told.append(f"the checkpoint holds no state of the communication hook ({kind}): it begins anew")
                continue
            if not source.same_world:
                told.append(f"{kind}: what each rank kept back of its gradients does not go to another world size")
            try:
                comm_hooks.restore(state, decode(held, source.whole), same_world=source.same_world)
            except CheckpointError as error:
                told.append(f"{kind} begins anew: {error}")
        return told
