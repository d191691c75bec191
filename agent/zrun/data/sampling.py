"""What runs beside the dataset, in loader workers too: fetch samples by key, seed each one, collate each part.

Randomness drawn inside the dataset (Python, NumPy, torch) is a function of (seed, epoch, index) alone: of no
rank, no worker and no earlier sample. It knows nothing about cursors and orders.
"""

import random
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final

import torch

Key = tuple[int, int, int]
"""(epoch, index, draw): `draw` is what its randomness follows from, the index itself where each comes once an epoch."""
_KNOWN: Final = 0x7A72756E


def sample_seed(seed: int, epoch: int, draw: int) -> int:
    """64 bits from (seed, epoch, draw)."""
    packed = struct.pack("<qqq", seed & 0x7FFFFFFFFFFFFFFF, epoch, draw)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


def seed_sample(value: int) -> None:
    """Seed the generators a dataset draws from; NumPy only where something has imported it."""
    random.seed(value)
    torch.default_generator.manual_seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)


@contextmanager
def drawing_apart(value: int) -> Iterator[None]:
    """Seeded inside, and outside as if nothing had been drawn."""
    numpy = sys.modules.get("numpy")
    before = random.getstate(), torch.default_generator.get_state()
    numpys = numpy.random.get_state() if numpy is not None else None
    seed_sample(value)
    try:
        yield
    finally:
        random.setstate(before[0])
        torch.default_generator.set_state(before[1])
        if numpy is not None:
            numpy.random.set_state(numpys)


class Sampled:
    """A dataset as DataLoader sees it: asked for parts (lists of keys), it gives one collated batch for each part.

    Seeding each sample costs some 8 µs, and most datasets draw nothing. So a batch is first read without, and only if
    a generator has moved meanwhile it is read again with it; from then on every sample is seeded.
    """

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._seed = seed
        self._collate = collate
        self._draws = False

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: Key) -> Any:
        return self._read([key])[0]

    def __getitems__(self, parts: list[list[Key]]) -> list[Any]:
        if not self._draws:
            before = _first_draws_to_come()
            quiet = [self._collate(self._read(part, quiet=True)) for part in parts]
            if _draw() == before:
                return quiet
            self._draws = True
        # The collation may draw as well (masking, mixing): it goes on from the part's last sample.
        return [self._collate(self._read(part)) for part in parts]

    def _read(self, part: list[Key], *, quiet: bool = False) -> list[Any]:
        runs = getattr(self._dataset, "runs", None)
        indices = [index for _, index, _ in part]
        samples: Iterator[Any] = map(self._dataset.__getitem__, indices) if runs is None else runs(indices)
        found: list[Any] = []
        for epoch, _, draw in part:
            if not quiet:
                seed_sample(sample_seed(self._seed, epoch, draw))
            found.append(next(samples))
        return found


def _draw() -> tuple[Any, ...]:
    """One number from each generator."""
    numpy = sys.modules.get("numpy")
    drawn = torch.empty((), dtype=torch.int64, device="cpu").random_().item()
    return random.getrandbits(64), drawn, numpy.random.random_sample() if numpy is not None else None


_firsts: dict[bool, tuple[Any, ...]] = {}


def _first_draws_to_come() -> tuple[Any, ...]:
    """Put all generators at one known place; gives what `_draw` gives there. Whoever draws first sees it, once."""
    seed_sample(_KNOWN)
    with_numpy = "numpy" in sys.modules
    if with_numpy not in _firsts:
        _firsts[with_numpy] = _draw()
        seed_sample(_KNOWN)
    return _firsts[with_numpy]


def as_is(parts: Any) -> Any:
    """DataLoader's own collation: the parts are collated already."""
    return parts
