"""Time as a process lived it: a clock that does not count what was slept through, so that no stall accuses anybody.

Standard library only; knows nothing about leases or ranks.
"""

from typing import Final

LONGEST: Final = 0.5
"""Seconds; a longer pause between two ticks was a stall of this process (or of the machine) and counts nothing."""


class VirtualClock:
    """Advances only by ticks that follow each other within half a second."""

    def __init__(self, now: float) -> None:
        self._last = now
        self.time = 0.0

    def tick(self, now: float) -> float:
        """`now` is monotonic seconds; returns what was counted since the last tick."""
        passed = now - self._last
        self._last = now
        if not 0.0 < passed <= LONGEST:
            return 0.0
        self.time += passed
        return passed
