"""What a rank would hand on, sorted by how it changes: big blocks, small ones, and values, as they are at a step's end.

Settled values are only looked at then, and encoded when they are wanted. Knows nothing about files or threads.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from zrun.core.errors import CheckpointError
from zrun.state.blocks import Block, Copies
from zrun.state.optimizer import settings_of, with_settings
from zrun.state.parts import Parts
from zrun.state.progress import Progress
from zrun.state.tensor_bytes import dtype_name
from zrun.state.values import encode

_SMALL: Final = 1 << 20
_SMALL_IN_ALL: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Whose:
    job: str
    attempt: int
    rank: int
    world_size: int


class Kept:
    """Of one rank; `capture` at each step's end, `lay_out` when that says that something has moved."""

    def __init__(self, parts: Parts, whose: Whose) -> None:
        self._parts, self._whose = parts, whose
        self.progress = Progress()
        self._cursor: Callable[[], dict[str, Any]] = dict
        self.text = b""
        """The small values, as JSON; of the newest thorough capture."""
        self.moved = True
        """The newest capture does not fit the layout."""
        self.settled = False
        """Everything but settings, schedulers, scalers and progress stays as `lay_out` has found it."""
        self.watched: list[tuple[str, torch.Tensor]] = []
        """Tensors that nothing but an optimizer's step should change."""
        self.changed: list[torch.Tensor] = []
        """Small tensors that a forward may change."""
        self._values: dict[str, Any] = {}
        self._blocks: list[Block] = []
        self._loose: list[Block] = []
        self._mark: tuple[Any, ...] = ()
        self._buffer_mark: tuple[int, ...] = ()
        self._groups: dict[str, list[dict[str, Any]]] = {}
        self._states: dict[str, Any] = {}
        self._others: dict[str, Any] = {}
        self._fresh = False
        """The newest capture was a thorough one."""

    def capture(self, progress: Progress, cursor: Callable[[], dict[str, Any]], *, thorough: bool) -> None:
        """`thorough` False: values that are settled are not encoded yet, nor is the cursor asked for."""
        parts = self._parts
        self.progress, self._cursor = progress, cursor
        self._groups = {
            name: [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
            for name, optimizer in parts.optimizers.items()
        }
        if thorough:
            self._loose, self._others = parts.others()
            self.text = json.dumps(self._small_values(self._others), separators=(",", ":")).encode()
        else:
            self._states = {name: value.state_dict() for name, value in parts.stateful.items()}
        self._fresh = thorough
        self.moved = self._mark != self._layout_mark()

    @property
    def buffers_in_place(self) -> bool:
        return self._buffer_mark == self._parts.buffer_mark()

    def replaced(self) -> str | None:
        """A tensor that is not in use any more, though nothing at the step's end had told so."""
        return self._parts.replaced(self._blocks[len(self.changed) :])

    def lay_out(self) -> None:
        """After a thorough capture. CheckpointError if the state cannot be saved at all."""
        if not self._fresh:
            self.capture(self.progress, self._cursor, thorough=True)
        parts = self._parts
        blocks, values = parts.flatten()
        loose = {block.name for block in self._loose}
        own = [block for block in blocks if block.name not in loose]
        small = self._small_of(own)
        names = {block.name for block in small}
        others = [block for block in own if block.name not in names]
        self._blocks, self.changed = [*small, *others], [block.local for block in small]
        self._values = values
        optimizers = self._optimizers
        self.watched = [
            (b.name, b.local) for b in others if not b.name.startswith(optimizers) and not b.local.is_inference()
        ]
        self.settled = parts.settled() and not self._loose
        self._mark, self._buffer_mark = self._layout_mark(), parts.buffer_mark()
        self.moved = False

    @property
    def more_than_optimizers(self) -> bool:
        """Something else than optimizers may have to follow their step: an averaged model, for one."""
        return any(name.startswith("extra:") for name in self._parts.models)

    @property
    def small(self) -> list[torch.Tensor]:
        """Small tensors as they are: those that a forward may change, then the loose ones."""
        return [*self.changed, *(block.local for block in self._loose)]

    @property
    def keys(self) -> list[str]:
        """What this rank holds apart from the small things; under its own name where nothing keeps it equal."""
        own, optimizers = f"#{self._whose.rank}", self._optimizers
        return [
            f"{block.key}{own if block.copies is Copies.OWN and not block.name.startswith(optimizers) else ''}"
            for block in self._blocks[len(self.changed) :]
        ]

    def blocks_before(self, kept: Sequence[torch.Tensor]) -> list[Block]:
        """All blocks as they were at the last step's end; `kept`: the copies made then of what is small."""
        count = len(self.changed)
        small = [*self._blocks[:count], *self._loose]
        taken = [Block(b.name, b.shape, b.offsets, copy, b.copies) for b, copy in zip(small, kept, strict=True)]
        return [*taken, *self._blocks[count:]]

    def blocks_now(self) -> list[Block]:
        """All blocks as they are."""
        count = len(self.changed)
        return [*self._blocks[:count], *self._loose, *self._blocks[count:]]

    def about(self, step: int, blocks: Sequence[Block], fingerprint: dict[str, Any], *, done: bool) -> dict[str, Any]:
        """What is said of a copy of `blocks`; `done` False: it lacks the values that only the step's end would have."""
        if not self._fresh:
            loose, self._others = self._parts.stateful_of(self._states)
            if loose:
                raise CheckpointError(f"{loose[0].name} is a tensor that was not there before")
        small = self._small_values(self._others)
        optimizers = {name: with_settings(self._values[name], own) for name, own in small["settings"].items()}
        return {
            **self._fields(), "step": step, "done": done, "fingerprint": fingerprint,
            "cursor": small["cursor"], "batch": small["batch"], "strategy": small["strategy"],
            "values": {**self._values, **optimizers, **small["values"]},
            "blocks": [_described(block) for block in blocks], "small": len(self.changed) + len(self._loose),
        }  # fmt: skip

    def described(self) -> dict[str, Any]:
        """Of the page."""
        return {
            **self._fields(), "values": self._values, "optimizers": list(self._parts.optimizers),
            "blocks": [_described(block) for block in self.blocks_now()],
        }  # fmt: skip

    # -- parts ---------------------------------------------------------------------------------------------------

    def _fields(self) -> dict[str, Any]:
        whose = self._whose
        return {"job": whose.job, "attempt": whose.attempt, "rank": whose.rank, "world_size": whose.world_size}

    def _small_values(self, others: dict[str, Any]) -> dict[str, Any]:
        progress = self.progress
        own = {"run_state": progress.run_state, "quarantined": progress.quarantined}
        return {
            "values": {**others, "progress": encode(own, "progress")},
            "settings": {name: settings_of(name, groups, {}) for name, groups in self._groups.items()},
            "cursor": self._cursor(), "batch": progress.batch, "strategy": progress.strategy,
        }  # fmt: skip

    @property
    def _optimizers(self) -> tuple[str, ...]:
        return tuple(f"{name}/" for name in self._parts.optimizers)

    def _layout_mark(self) -> tuple[Any, ...]:
        return *self._parts.layout_mark(), *((block.name, block.local.shape) for block in self._loose)

    def _small_of(self, blocks: Sequence[Block]) -> list[Block]:
        """Buffers that a forward may change: where a step fails they are taken from before it."""
        buffers = self._parts.buffers()
        small: list[Block] = []
        room = _SMALL_IN_ALL
        for block in blocks:
            if block.name in buffers and block.copies is not Copies.EQUAL and block.bytes <= min(_SMALL, room):
                small.append(block)
                room -= block.bytes
        return small


def _described(block: Block) -> list[Any]:
    return [
        block.name, dtype_name(block.local.dtype, block.name), list(block.shape), list(block.offsets),
        list(block.local.shape), block.copies.value,
    ]  # fmt: skip
