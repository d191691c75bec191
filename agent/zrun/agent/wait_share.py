"""Which part of its time a rank spends inside collectives, from its deck; knows nothing about other ranks.

In synchronous training all ranks take equally long for a step, so the one that is slow is the one that waits least.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from zrun.core.deck_reader import DeckState

STEPS: Final = 10
"""A share is taken over at least so many steps,"""
SECONDS: Final = 1.0
"""and at least so long."""


@dataclass(frozen=True, slots=True)
class _Moment:
    completed: int
    at: float
    waited_s: float


class WaitShares:
    """Of all ranks of one attempt on this node."""

    def __init__(self) -> None:
        self._began: dict[int, _Moment] = {}
        self._shares: dict[int, float] = {}

    def note(self, decks: Mapping[int, DeckState], now: float) -> None:
        """One look; `now` is time.monotonic()."""
        for rank, deck in decks.items():
            if not deck.completed or not deck.coll_seq:
                continue
            here = _Moment(deck.completed, now, _waited(deck, now))
            before = self._began.get(rank)
            if before is None or before.waited_s > here.waited_s + SECONDS:
                self._began[rank] = here
            elif here.completed - before.completed >= STEPS and here.at - before.at >= SECONDS:
                share = (here.waited_s - before.waited_s) / (here.at - before.at)
                self._shares[rank], self._began[rank] = min(1.0, max(0.0, share)), here

    def of(self, rank: int) -> float | None:
        """0..1 over its newest whole window, None before the first."""
        return self._shares.get(rank)


def _waited(deck: DeckState, now: float) -> float:
    """With the collective it is in; the end of a reduce-scatter is not always seen, so it is left out."""
    inside = deck.in_collective and not deck.coll_op.startswith("reduce_scatter")
    return deck.wait_s + (max(0.0, now - deck.coll_entered_at) if inside else 0.0)
