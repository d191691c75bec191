"""Progress read from what ranks print (`watchdog.log_pattern`), for scripts whose steps no hook can see.

A step that a rank's deck shows always counts more. Where one rank prints for all, its step is that of all that print
none. Knows nothing about files and limits. Times are time.monotonic().
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from zrun.core.deck import Phase
from zrun.core.deck_reader import DeckState

_BEFORE_STEPS: Final = {Phase.BOOT, Phase.SETUP}


@dataclass(frozen=True, slots=True)
class _Printed:
    step: int
    at: float
    step_s: float = 0.0
    changes: int = 1


class LogSteps:
    """Of the ranks of one attempt on this node; `pattern` has a group `step`, None: nothing is read."""

    def __init__(self, pattern: str | None) -> None:
        self._pattern = re.compile(pattern) if pattern is not None else None
        self._printed: dict[int, _Printed] = {}

    def heard(self, rank: int, texts: Sequence[str | tuple[str]], now: float) -> None:
        """What a rank has just printed, oldest first: whole lines, many in one text."""
        if self._pattern is None:
            return
        for text in reversed(texts):
            found = list(self._pattern.finditer(text if isinstance(text, str) else text[0]))
            if found:
                self._note(rank, int(found[-1]["step"]), now)
                return

    def _note(self, rank: int, step: int, now: float) -> None:
        before = self._printed.get(rank)
        if before is None:
            self._printed[rank] = _Printed(step, now)
        elif before.step != step:  # the same number once more is no progress
            took = (now - before.at) / max(1, step - before.step)
            self._printed[rank] = _Printed(step, now, took, before.changes + 1)

    def seen_in(self, decks: Mapping[int, DeckState]) -> dict[int, DeckState]:
        """The decks, with printed steps where they have none of their own."""
        if not self._printed:
            return dict(decks)
        leader = max(self._printed.values(), key=lambda printed: printed.at)
        return {
            rank: deck if deck.completed else _with(deck, self._printed.get(rank, leader))
            for rank, deck in decks.items()
        }


def _with(deck: DeckState, printed: _Printed) -> DeckState:
    phase = deck.phase
    if phase in _BEFORE_STEPS:
        phase = Phase.STEP if printed.changes > 1 else Phase.FIRST_STEP
    return replace(
        deck, phase=phase, step=printed.step, completed=printed.step, step_s=printed.step_s,
        progress=deck.progress + printed.changes, progress_at=max(deck.progress_at, printed.at),
    )  # fmt: skip
