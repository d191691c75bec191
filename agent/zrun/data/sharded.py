"""A dataset in shards of known lengths, which is read in runs: `shards()` and `read(shard, start, count)`.

Seen from the Loader its samples are numbered over all shards, so it is cut, dealt out and sought like any other. It
knows nothing about the order in which shards are visited.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from zrun.core.errors import UsageError


def is_sharded(dataset: Any) -> bool:
    return callable(getattr(dataset, "shards", None)) and callable(getattr(dataset, "read", None))


class Sharded:
    """`dataset.shards()`: the number of samples in each; `dataset.read(shard, start, count)` gives just those."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.lengths = [int(length) for length in dataset.shards()]
        if any(length < 0 for length in self.lengths):
            raise UsageError("shards() says that a shard has fewer than 0 samples")
        self._first = [0, *accumulate(self.lengths)]

    def __len__(self) -> int:
        return self._first[-1]

    def runs(self, indices: list[int]) -> Iterator[Any]:
        """The samples, in order; neighbours in one shard come from one `read`."""
        at = 0
        while at < len(indices):
            shard = bisect_right(self._first, indices[at]) - 1
            count = 1
            while (at + count < len(indices) and indices[at + count] == indices[at] + count
                   and indices[at + count] < self._first[shard + 1]):  # fmt: skip
                count += 1
            given = 0
            for sample in self._dataset.read(shard, indices[at] - self._first[shard], count):
                given += 1
                yield sample
                if given == count:
                    break
            if given < count:
                raise UsageError(
                    f"read({shard}, {indices[at] - self._first[shard]}, {count}) gave {given} samples",
                    f"shards() says that shard {shard} has {self.lengths[shard]}",
                )
            at += count
