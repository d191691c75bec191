"""What runs beside the dataset, in loader workers too: fetch samples by key, seed each one, collate each part.

Randomness drawn inside `dataset[index]` (Python, NumPy, torch) is a function of (seed, epoch, index) alone: of no
rank, no worker and no earlier sample. It knows nothing about cursors and orders.
"""

import random
import struct
import sys
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import torch

Key = tuple[int, int]
"""(epoch, index)."""
_KNOWN: Final = 0x7A72756E


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """64 bits from (seed, epoch, index)."""
    packed = struct.pack("<qqq", seed & 0x7FFFFFFFFFFFFFFF, epoch, index)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


def seed_sample(value: int) -> None:
    """Seed the generators a dataset draws from; NumPy only where something has imported it."""
    random.seed(value)
    torch.default_generator.manual_seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & 0xFFFFFFFF)


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
        epoch, index = key
        seed_sample(sample_seed(self._seed, epoch, index))
        return self._dataset[index]

    def __getitems__(self, parts: list[list[Key]]) -> list[Any]:
        if not self._draws:
            before = _first_draws_to_come()
            quiet = [self._collate([self._dataset[index] for _, index in part]) for part in parts]
            if _draw() == before:
                return quiet
            self._draws = True
        # The collation may draw as well (masking, mixing): it goes on from the part's last sample.
        return [self._collate([self[key] for key in part]) for part in parts]


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


def as_is(parts: list[Any]) -> list[Any]:
    """DataLoader's own collation: the parts are collated already."""
    return parts
