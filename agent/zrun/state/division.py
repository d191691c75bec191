"""Which blocks this rank copies and writes, agreed by all ranks and kept from one save to the next.

What is known to be equal, or held by one rank alone, is settled while training stands still, by one number from each
rank; only a changed layout costs more. Where nothing keeps ranks equal, each copies its own, and the digests decide
in the background. Knows nothing about files.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from zrun.core.errors import CheckpointError
from zrun.state.agree import Agreement
from zrun.state.blocks import Block, Copies
from zrun.state.tensor_bytes import dtype_name, view_of
from zrun.state.writers import Held, assign

_FAILED = -1


def sha(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Division:
    """`settled`: index of a block this rank writes -> its name. `open`: blocks it copies until digests decide."""

    held: Sequence[Held]
    settled: Mapping[int, str]
    open: Sequence[int]
    any_open: bool
    """On any rank."""

    @property
    def copied(self) -> list[int]:
        return sorted({*self.settled, *self.open})


class Divider:
    """Keeps the newest division."""

    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self._layout: list[Any] = []
        self._number = 0
        self._kept: tuple[tuple[int, ...], Division] | None = None

    def divide(self, blocks: Sequence[Block], problem: str | None) -> Division:
        """Collective. CheckpointError on every rank if any has a problem, that is no blocks to divide."""
        held: list[Held] = []
        number = _FAILED
        if problem is None:
            layout = [(b.name, b.local.dtype, b.shape, b.offsets, b.local.shape, b.copies) for b in blocks]
            if layout != self._layout:
                try:
                    held = [_held(block) for block in blocks]
                    self._layout, self._number = layout, int(sha([list(asdict(h).values()) for h in held])[:15], 16)
                except CheckpointError as error:
                    problem = str(error)
            number = self._number if problem is None else _FAILED
        numbers = tuple(self.agreement.numbers(number))
        if _FAILED in numbers:
            failed = self.agreement.problems(problem)
            raise CheckpointError("; ".join(f"rank {rank}: {text}" for rank, text in failed.items()))
        if self._kept is None or self._kept[0] != numbers:
            self._kept = (numbers, self._divided(held or [_held(block) for block in blocks], numbers))
        return self._kept[1]

    def _divided(self, held: list[Held], numbers: Sequence[int]) -> Division:
        everyone = [held] * len(numbers)
        if len(set(numbers)) > 1:
            told = self.agreement.gather([list(asdict(h).values()) for h in held])
            everyone = [[Held(*fields) for fields in rank] for rank in told]
        if len(everyone) == 1:
            return Division(held, {index: h.name for index, h in enumerate(held)}, [], any_open=False)
        unsure = {h.name for rank in everyone for h in rank if h.copies == Copies.OWN}
        settled = [[index for index, h in enumerate(rank) if h.name not in unsure] for rank in everyone]
        plan = assign([[rank[index] for index in kept] for rank, kept in zip(everyone, settled, strict=True)])
        here = self.agreement.rank
        return Division(
            held, {settled[here][at]: name for at, name in plan[here].items()},
            [index for index, h in enumerate(held) if h.name in unsure], any_open=bool(unsure),
        )  # fmt: skip


def decided(agreement: Agreement, division: Division, copies: Mapping[int, torch.Tensor]) -> dict[int, str]:
    """What this rank writes, all in all; in the background. Collective."""
    if not division.any_open:
        return dict(division.settled)
    held = [replace(division.held[index], digest=_digest(copies[index])) for index in division.open]
    mine = [list(asdict(h).values()) for h in held]
    everyone = [held] * agreement.world_size
    if len(set(agreement.gather(sha(mine)))) > 1:
        everyone = [[Held(*fields) for fields in rank] for rank in agreement.gather(mine)]
    plan = assign(everyone)[agreement.rank]
    return {**division.settled, **{division.open[at]: name for at, name in plan.items()}}


def _digest(copy: torch.Tensor) -> str:
    return hashlib.sha256(view_of(copy)).hexdigest()[:32]


def _held(block: Block) -> Held:
    return Held(
        block.name,
        f"{dtype_name(block.local.dtype, block.name)}{list(block.shape)}",
        f"{list(block.offsets)}:{list(block.local.shape)}",
        block.bytes,
        block.copies.value,
    )
