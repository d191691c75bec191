"""One rank's share of a global batch, in parts, as arithmetic. Knows nothing about datasets or the order of samples."""

from dataclasses import dataclass


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
