"""The order in which an epoch visits its samples: a seeded bijection of [0, size) computed place by place.

Nothing is stored, so any place of any epoch costs the same, and seeking costs nothing. It knows nothing about batches,
ranks or world sizes. The form is a Feistel network over the next power of two, walked until it lands inside.
"""

import hashlib
import struct
from typing import Any, Final

import torch

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

    def __init__(self, size: int, seed: int, epoch: int, *, shuffle: bool = True) -> None:
        if not 1 <= size <= 1 << 62:
            raise ValueError(f"an order needs between 1 and 2**62 samples, not {size}")
        self.size = size
        self._shuffle = shuffle
        bits = (size - 1).bit_length()
        self._right_bits = bits - bits // 2
        self._left_mask = (1 << (bits // 2)) - 1
        self._right_mask = (1 << self._right_bits) - 1
        digest = hashlib.sha256(f"zrun order\0{seed}\0{epoch}".encode()).digest()
        self._keys = struct.unpack("<8I", digest)

    def _permute(self, place: Any) -> Any:
        left, right = place >> self._right_bits, place & self._right_mask
        for turn in range(_ROUNDS):
            left = left ^ (_mix(right, self._keys[2 * turn]) & self._left_mask)
            right = right ^ (_mix(left, self._keys[2 * turn + 1]) & self._right_mask)
        return (left << self._right_bits) | right

    def sample(self, place: int) -> int:
        """The sample at one place."""
        if not 0 <= place < self.size:
            raise IndexError(f"place {place} is not in an epoch of {self.size} samples")
        if not self._shuffle:
            return place
        place = self._permute(place)
        while place >= self.size:
            place = self._permute(place)
        return int(place)

    def samples(self, start: int, count: int) -> list[int]:
        """The samples at `count` places from `start` on; many at once cost far less than one by one."""
        if start < 0 or count < 0 or start + count > self.size:
            raise IndexError(f"places {start}..{start + count} are not in an epoch of {self.size} samples")
        if not self._shuffle:
            return list(range(start, start + count))
        at = self._permute(torch.arange(start, start + count, dtype=torch.int64, device="cpu"))
        outside = at >= self.size
        while bool(outside.any()):
            at[outside] = self._permute(at[outside])
            outside = at >= self.size
        found: list[int] = at.tolist()
        return found
