"""The shuffled order (zrun.core.order) computed for thousands of places at once. Knows nothing about batches."""

from typing import Final

import torch

from zrun.core.order import Order

_AT_ONCE: Final = 4096
"""Places computed together."""


def many(order: Order, start: int, count: int) -> list[int]:
    """As `order.samples`; for many places it costs far less."""
    if start < 0 or count < 0 or start + count > order.size:
        raise IndexError(f"places {start}..{start + count} are not in an epoch of {order.size} samples")
    at = order.permute(torch.arange(start, start + count, dtype=torch.int64, device="cpu"))
    outside = at >= order.size
    while bool(outside.any()):
        at[outside] = order.permute(at[outside])
        outside = at >= order.size
    found: list[int] = at.tolist()
    return found


class ShuffledInBlocks:
    """zrun.core.order.Shuffled, a block of places ahead of who asks."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._seed = seed
        self._order: tuple[int, Order] = (-1, Order(size, seed, 0))
        self._block: tuple[int, int, list[int]] = (-1, 0, [])

    def samples(self, epoch: int, start: int, count: int) -> list[int]:
        if self._order[0] != epoch:
            self._order = (epoch, Order(self.size, self._seed, epoch))
        of, first, block = self._block
        if of != epoch or not (first <= start and start + count <= first + len(block)):
            first, block = start, many(self._order[1], start, min(max(_AT_ONCE, count), self.size - start))
            self._block = (epoch, first, block)
        return block[start - first : start - first + count]
