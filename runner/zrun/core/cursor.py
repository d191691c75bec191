"""Where in the data a run stands, as arithmetic: from the ordinal of a global batch to its epoch and places. It knows
nothing about torch, datasets, ranks or the order of samples.

The ordinal counts global batches from 1 over the whole run. A batch never reaches over the end of an epoch: the rest
is a shorter batch, or is left out with `drop_last`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zrun.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Span:
    """One global batch: places [start, start + size) of an epoch's order."""

    epoch: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """How a dataset of `samples` is cut into global batches."""

    samples: int
    global_batch: int
    drop_last: bool

    def __post_init__(self) -> None:
        if self.global_batch < 1:
            raise UsageError(f"global_batch must be at least 1, not {self.global_batch}")
        if self.samples < 1:
            raise UsageError("the dataset is empty")
        if self.batches == 0:
            raise UsageError(
                f"global_batch {self.global_batch} is larger than the dataset ({self.samples} samples)",
                "take a smaller global_batch, or drop_last=False for one short batch an epoch",
            )

    @property
    def batches(self) -> int:
        """Global batches in an epoch."""
        whole, rest = divmod(self.samples, self.global_batch)
        return whole if self.drop_last or not rest else whole + 1

    def span(self, ordinal: int) -> Span:
        """The places of global batch `ordinal` (from 1)."""
        if ordinal < 1:
            raise ValueError(f"ordinals count from 1, not {ordinal}")
        epoch, batch = divmod(ordinal - 1, self.batches)
        start = batch * self.global_batch
        return Span(epoch, start, min(self.global_batch, self.samples - start))


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """The same for a stream, whose epochs are as long as they turn out to be.

    `ended`: of each epoch that is over, its global batches and its samples.
    """

    global_batch: int
    ended: Sequence[Sequence[int]] = ()

    def span(self, ordinal: int) -> Span:
        """In the epoch that still goes on, the batch is taken for a whole one."""
        if ordinal < 1:
            raise ValueError(f"ordinals count from 1, not {ordinal}")
        before = 0
        for epoch, (batches, samples) in enumerate(self.ended):
            if ordinal <= before + batches:
                start = (ordinal - before - 1) * self.global_batch
                return Span(epoch, start, max(0, min(self.global_batch, samples - start)))
            before += batches
        return Span(len(self.ended), (ordinal - before - 1) * self.global_batch, self.global_batch)
