"""Where in the data a run stands, as arithmetic: from the ordinal of a global batch to its epoch and places, and each
rank's share of it. It knows nothing about torch, datasets or the order of samples.

The ordinal counts global batches from 1 over the whole run. A batch never reaches over the end of an epoch: the rest
is a shorter batch, or is left out with `drop_last`.
"""

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
class Cut:
    """One rank's share of a global batch in parts: as many on every rank, some perhaps empty.

    `parts` are [start, stop) within the global batch. A part's weight makes the mean over the global batch exact when
    each rank's loss is the mean over its part and gradients are averaged over ranks.
    """

    parts: list[tuple[int, int]]
    weights: list[float]

    @property
    def samples(self) -> int:
        return sum(stop - start for start, stop in self.parts)


def share_of(size: int, rank: int, world_size: int) -> tuple[int, int]:
    """[start, stop) of one rank's contiguous share; the first `size % world_size` ranks have one sample more."""
    each, more = divmod(size, world_size)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)


def cut(size: int, rank: int, world_size: int, micro_batch: int | None) -> Cut:
    """One rank's share of a batch of `size`, in parts of at most `micro_batch` samples (None: one part)."""
    start, stop = share_of(size, rank, world_size)
    largest = -(-size // world_size)
    step = micro_batch or largest
    parts: list[tuple[int, int]] = []
    for number in range(-(-largest // step)):
        first = min(start + number * step, stop)
        parts.append((first, min(first + step, stop)))
    return Cut(parts, [(last - first) * world_size / size for first, last in parts])
