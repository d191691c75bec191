"""The two clocks decisions go by: machine time, which survives the process, and silence time, which forgives stalls.

Knows nothing about what is timed. Wall clock is for people and is read elsewhere.
"""

import time
from collections.abc import Callable
from typing import Final

SWEEP_S: Final = 0.25
"""How often silence is judged."""


class MachineClock:
    """Seconds since the journal's first event; a later process goes on from the last journaled value."""

    def __init__(self, last: float = 0.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.restart(last)

    def restart(self, last: float) -> None:
        """Go on from this value now."""
        self._offset = last - self._monotonic()

    def now(self) -> float:
        return self._monotonic() + self._offset


class SilenceClock:
    """A clock that each sweep advances by the time passed, but at most by two periods.

    What is heard is stamped with it, so that when this process itself stood still (a stopped process, a slow disk)
    the others do not look silent: their reports lie unread in our sockets.
    """

    def __init__(self, period_s: float = SWEEP_S) -> None:
        self.period_s = period_s
        self.now = 0.0
        self._last: float | None = None

    def sweep(self, monotonic: float) -> float:
        """Advance by what passed since the last sweep; gives the new value."""
        if self._last is not None:
            self.now += min(max(monotonic - self._last, 0.0), 2 * self.period_s)
        self._last = monotonic
        return self.now
