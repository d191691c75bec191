"""Which ranks only look stuck: a stack that is inside a save or a compilation means work, and not a hang.

Stacks are taken of suspects alone, once when they are named and again every few seconds while they stand still.
Knows nothing about how stacks are taken.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from zrun.core.deck_reader import DeckState

AGAIN_S: Final = 5.0
FRESH_S: Final = 15.0
"""A stack older than this says nothing about now."""
_AT_WORK: Final = re.compile(
    r"torch/serialization\.py|torch/distributed/checkpoint/|safetensors/|torch/_dynamo/(convert_frame|symbolic_convert)\.py"
    r"|torch/_inductor/(async_compile|codecache|scheduler|graph|select_algorithm)\.py|triton/(compiler|runtime/build)"
    r"|torch/utils/cpp_extension\.py"
)
_MAIN: Final = re.compile(r'^Thread \S+ .*"MainThread"|^Current thread', re.MULTILINE)


def works(stack: str) -> bool:
    """Is the main thread inside a save, a load or a compilation? `stack` is faulthandler's or py-spy's."""
    return _AT_WORK.search(_of_main_thread(stack)) is not None


def _of_main_thread(stack: str) -> str:
    """Threads stand in blocks with an empty line between them; faulthandler names none, but ours is the last."""
    blocks = [block for block in stack.split("\n\n") if block.strip()]
    return next((block for block in blocks if _MAIN.search(block)), blocks[-1] if blocks else "")


@dataclass(frozen=True, slots=True)
class _Sample:
    place: tuple[int, int, int]
    at: float
    works: bool


class AtWork:
    """Of the ranks of one attempt on this node; times are time.monotonic()."""

    def __init__(self) -> None:
        self._samples: dict[int, _Sample] = {}

    def note(self, stacks: Mapping[int, str], decks: Mapping[int, DeckState], now: float) -> None:
        """Stacks that have just been taken."""
        for rank, stack in stacks.items():
            if rank in decks:
                self._samples[rank] = _Sample(_place(decks[rank]), now, works(stack))

    def due(self, decks: Mapping[int, DeckState], now: float) -> list[int]:
        """Ranks to look at again: they have not moved since the last time."""
        moved = [rank for rank, s in self._samples.items() if rank not in decks or _place(decks[rank]) != s.place]
        for rank in moved:
            del self._samples[rank]
        return [rank for rank, s in self._samples.items() if now - s.at >= AGAIN_S and not decks[rank].in_collective]

    def of(self, deck: DeckState, now: float) -> bool:
        sample = self._samples.get(deck.rank)
        return sample is not None and sample.works and sample.place == _place(deck) and now - sample.at < FRESH_S


def _place(deck: DeckState) -> tuple[int, int, int]:
    return deck.progress, deck.coll_seq, deck.coll_done
