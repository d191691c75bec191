"""When to save: every N steps, or every S seconds. All ranks always give the same answer to the same step.

By seconds, rank 0's clock decides. Ranks meet at a few steps that all of them know beforehand: there rank 0 says
whether it is time, and which step to meet at next. It knows nothing about checkpoints.
"""

import time
from collections.abc import Callable
from typing import Any, Final

_FURTHEST: Final = 10_000


class EverySteps:
    """`every` None: never."""

    def __init__(self, every: int | None) -> None:
        self._every = every

    def due(self, step: int) -> bool:
        """Asked once at each step's end."""
        return bool(self._every) and step % (self._every or 1) == 0

    def saved(self) -> None:
        """A save was just made."""


class EverySeconds:
    """`from_first` gives rank 0's value on every rank (a collective)."""

    def __init__(self, every_s: float, from_first: Callable[[Any], Any], clock: Callable[[], float] = time.monotonic,
                 ) -> None:  # fmt: skip
        self._every_s = every_s
        self._from_first = from_first
        self._clock = clock
        self._saved_at = clock()
        self._last: tuple[int, float] | None = None
        self._meet_at = 0

    def due(self, step: int) -> bool:
        """Asked once at each step's end; a collective at the steps agreed on."""
        if step < self._meet_at:
            return False
        now = self._clock()
        left_s = self._saved_at + self._every_s - now
        is_due = left_s <= 0
        wait_s = self._every_s if is_due else left_s
        pace = None
        if self._last is not None and step > self._last[0]:
            pace = (now - self._last[1]) / (step - self._last[0])
        # Half of what is left, so that a slower pace is noticed in time; then half of that, and so on.
        ahead = 1 if not pace else max(1, min(_FURTHEST, int(wait_s / pace / 2)))
        self._last = (step, now)
        is_due, ahead = self._from_first([is_due, ahead])
        self._meet_at = step + ahead
        return bool(is_due)

    def saved(self) -> None:
        """A save was just made, for whatever reason."""
        self._saved_at = self._clock()
