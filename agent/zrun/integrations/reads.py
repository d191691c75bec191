"""What a DataLoader draws while it reads a batch, made a function of (seed, epoch, batch): the same after a resume.

Nothing of it depends on how many batches were read before, on what the model drew meanwhile, nor on the worker. Of a
stream the batch's number in the epoch takes the place of its samples' indices. Knows no framework.
"""

import functools
import hashlib
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from torch.utils.data import dataloader

from zrun.data.sampling import seed_sample

_READS: Final = "_zrun_reads"


class Reads:
    """One in each process: it is torch's own class that tells of each batch. Off until it has a seed."""

    def __init__(self) -> None:
        self.seed: int | None = None
        self.epoch = 0
        self._skip = 0
        self._late: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def off(self) -> None:
        self.seed = None

    def begin_epoch(self, seed: int, epoch: int) -> None:
        """What a sampler draws, and the seed of loader workers, follows from (seed, epoch), the same on all ranks."""
        self.seed, self.epoch = seed, epoch
        seed_sample(_mixed(seed, epoch, "epoch"))

    @contextmanager
    def skipping(self, batches: int) -> Iterator[None]:
        """Iterators made inside pass over their first batches without reading them; streams do not."""
        self._skip = batches
        try:
            yield
        finally:
            self._skip = 0

    def made(self, batches: Any) -> None:
        """A new iterator, before its workers take up anything."""
        if self._skip and batches._dataset_kind == dataloader._DatasetKind.Map:  # noqa: SLF001
            self._late[batches] = self._skip

    def follow(self, original: Callable[[Any], Any], batches: Any) -> Any:
        """In the place of `_next_index`: which samples come next. Seeds for them, here or in the worker."""
        for _ in range(self._late.pop(batches, 0)):
            original(batches)
        index = original(batches)
        if self.seed is None:
            return index
        stream = batches._dataset_kind != dataloader._DatasetKind.Map  # noqa: SLF001 - they have no public names
        alone = isinstance(batches, dataloader._SingleProcessDataLoaderIter)  # noqa: SLF001
        named = batches._num_yielded if stream else index  # noqa: SLF001
        value = _mixed(self.seed, self.epoch, repr(named))
        if alone:
            seed_sample(value)
        elif isinstance(index, list) and not stream:  # a stream's workers draw from their own seed, batch after batch
            return _Seeded(index, value)
        return index


class _Seeded(list[Any]):
    """Indices on their way to a worker: it is seeded as it takes them up, which is just before it reads."""

    def __init__(self, indices: list[Any], seed: int) -> None:
        super().__init__(indices)
        self._seed = seed

    def __reduce__(self) -> Any:
        return _taken_up, (list(self), self._seed)


def _taken_up(indices: list[Any], seed: int) -> list[Any]:
    seed_sample(seed)
    return indices


def reads() -> Reads | None:
    """This process's; None where this torch does not tell of batches any more."""
    iterator: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001
    original = getattr(iterator, "_next_index", None)
    if original is None:
        return None
    makes = iterator.__init__
    here: Reads | None = getattr(original, _READS, None)
    if here is None:
        here = Reads()

        def next_index(batches: Any) -> Any:
            return here.follow(original, batches)

        @functools.wraps(makes)
        def make(batches: Any, *given: Any, **named: Any) -> None:
            makes(batches, *given, **named)
            here.made(batches)

        setattr(next_index, _READS, here)
        iterator._next_index, iterator.__init__ = next_index, make  # noqa: SLF001
    return here


def _mixed(seed: int, epoch: int, what: str) -> int:
    packed = struct.pack("<qq", seed & 0x7FFFFFFFFFFFFFFF, epoch) + what.encode()
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8, person=b"zrun-reads").digest(), "little")
