"""The order in which an epoch visits its samples: a seeded bijection of [0, size) computed place by place.

Nothing is stored, so any place of any epoch costs the same, and seeking costs nothing. It knows nothing about batches,
ranks or world sizes, and needs no torch. The form is a Feistel network over the next power of two, walked until it
lands inside.
"""

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, Protocol

_MASK: Final = 0xFFFFFFFF
_ODD: Final = 0x45D9F3B  # small enough that a 32-bit number times it stays inside a signed 64-bit one
_ROUNDS: Final = 4  # of two half-rounds each


def _mix(half: Any, key: int) -> Any:
    """A keyed hash of a half, the same for an int and for a tensor of them."""
    half = ((half ^ key) * _ODD) & _MASK
    half = ((half ^ (half >> 16)) * _ODD) & _MASK
    return half ^ (half >> 16)


class Order:
    """One epoch's order. `size` must be in [1, 2**62]."""

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        if not 1 <= size <= 1 << 62:
            raise ValueError(f"an order needs between 1 and 2**62 samples, not {size}")
        self.size = size
        bits = (size - 1).bit_length()
        self._right_bits = bits - bits // 2
        self._left_mask = (1 << (bits // 2)) - 1
        self._right_mask = (1 << self._right_bits) - 1
        digest = hashlib.sha256(f"zrun order\0{seed}\0{epoch}".encode()).digest()
        self._keys = struct.unpack("<8I", digest)

    def permute(self, place: Any) -> Any:
        """One walk through the network; its answer may lie outside. For an int, or a tensor of them."""
        left, right = place >> self._right_bits, place & self._right_mask
        for turn in range(_ROUNDS):
            left = left ^ (_mix(right, self._keys[2 * turn]) & self._left_mask)
            right = right ^ (_mix(left, self._keys[2 * turn + 1]) & self._right_mask)
        return (left << self._right_bits) | right

    def sample(self, place: int) -> int:
        """The sample at one place."""
        if not 0 <= place < self.size:
            raise IndexError(f"place {place} is not in an epoch of {self.size} samples")
        place = self.permute(place)
        while place >= self.size:
            place = self.permute(place)
        return int(place)

    def samples(self, start: int, count: int) -> list[int]:
        """The samples at `count` places from `start` on."""
        if start < 0 or count < 0 or start + count > self.size:
            raise IndexError(f"places {start}..{start + count} are not in an epoch of {self.size} samples")
        return [self.sample(place) for place in range(start, start + count)]


class Epochs(Protocol):
    """Every epoch's order of one dataset."""

    size: int
    """Places in an epoch."""

    def samples(self, epoch: int, start: int, count: int) -> list[int]:
        """The samples at `count` places from `start` on."""


class Shuffled:
    """A new order of all samples each epoch."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._seed = seed

    def samples(self, epoch: int, start: int, count: int) -> list[int]:
        return Order(self.size, self._seed, epoch).samples(start, count)


class AsTheyLie:
    """0, 1, 2 …, each epoch."""

    def __init__(self, size: int) -> None:
        self.size = size

    def samples(self, epoch: int, start: int, count: int) -> list[int]:  # noqa: ARG002 - every epoch is the same
        return list(range(start, start + count))


class ShardByShard:
    """Shards of known lengths, read one after the other; shuffled, they take another order each epoch.

    Samples are counted over the shards as they lie: the first of shard 1 is number `lengths[0]`.
    """

    def __init__(self, lengths: Sequence[int], seed: int, *, shuffle: bool) -> None:
        self._lengths = lengths
        self._first = [0, *accumulate(lengths)]
        self.size = self._first[-1]
        self._seed = seed
        self._shuffle = shuffle
        self._visits: tuple[int, list[int], list[int]] = (-1, [], [])

    def samples(self, epoch: int, start: int, count: int) -> list[int]:
        if self._visits[0] != epoch:
            many = len(self._lengths)
            shards = Order(many, self._seed, epoch).samples(0, many) if self._shuffle else list(range(many))
            self._visits = (epoch, shards, [0, *accumulate(self._lengths[shard] for shard in shards)])
        _, shards, begins = self._visits
        found: list[int] = []
        while len(found) < count:
            place = start + len(found)
            visit = bisect_right(begins, place) - 1
            first = self._first[shards[visit]] + place - begins[visit]
            here = min(count - len(found), begins[visit + 1] - place)
            found.extend(range(first, first + here))
        return found
