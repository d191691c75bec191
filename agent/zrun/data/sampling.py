"""What runs beside the dataset, in loader workers too: fetch samples by key, seed each one, collate each part.

Randomness drawn inside `dataset[index]` (Python, NumPy, torch) is a function of (seed, epoch, index) alone: of no
rank, no worker and no earlier sample. It knows nothing about cursors and orders.
"""

import random
import struct
import sys
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import torch

Key = tuple[int, int]
"""(epoch, index)."""


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
    """A dataset as DataLoader sees it: asked for parts (lists of keys), it gives one collated batch for each part."""

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._seed = seed
        self._collate = collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: Key) -> Any:
        epoch, index = key
        seed_sample(sample_seed(self._seed, epoch, index))
        return self._dataset[index]

    def __getitems__(self, parts: list[list[Key]]) -> list[Any]:
        # The collation may draw as well (masking, mixing): it goes on from the part's last sample.
        return [self._collate([self[key] for key in part]) for part in parts]


def as_is(parts: list[Any]) -> list[Any]:
    """DataLoader's own collation: the parts are collated already."""
    return parts
