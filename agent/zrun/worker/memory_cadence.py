"""When the whole state is copied into memory though nothing has failed: only where a rank's death would lose it, and so
seldom that it takes a hundredth of the time. All ranks always give the same answer to the same step.

Knows nothing about what is copied.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from zrun.state.agree import Agreement

_FIRST: Final = 3
"""The step's end of the attempt at which it is agreed what is needed: optimizers have made their state by then."""
_PART: Final = 0.01
_LONGEST: Final = 10_000
_NEVER: Final = 0


class MemoryCadence:
    """`every`: auto, off, a number of steps ("50") or of seconds ("30.0s")."""

    def __init__(self, agreement: Agreement, every: str) -> None:
        self._agreement, self._every = agreement, every
        self.settled = False
        self.wanted = False
        self.next_at = 0
        """The step at whose end the next copy is made; 0 before the first."""
        self._begun = time.perf_counter()
        self._step = 0

    def meets(self, step: int, ends: int) -> bool:
        """Do all ranks meet at the end of `step`, the attempt's `ends`-th?"""
        if self._every == "off":
            return False
        if ends < _FIRST:
            self._begun, self._step = time.perf_counter(), step
        return ends == _FIRST if not self.settled else self.wanted and step >= self.next_at

    def settle(self, keys: Sequence[str] | None) -> None:
        """`keys`: what this rank holds. Collective."""
        numbers = self._agreement.numbers(_number(keys))
        lonely = any(count == 1 for count in Counter(numbers).values())
        self.wanted = _NEVER not in numbers and (lonely or self._every != "auto")
        self.settled = True

    def copied(self, step: int, seconds: float | None) -> None:
        """A copy took so long here; None: there is none. Collective: the slowest rank counts."""
        passed_s = time.perf_counter() - self._begun
        done = max(1, step - self._step)
        told = self._agreement.gather([seconds, passed_s / done])
        self._begun, self._step = time.perf_counter(), step
        if any(cost is None for cost, _ in told):
            self.wanted = False
            return
        cost_s, step_s = max(float(cost) for cost, _ in told), max(float(pace) for _, pace in told)
        self.next_at = step + self._distance(cost_s, max(step_s, 1e-6))

    def _distance(self, cost_s: float, step_s: float) -> int:
        if self._every.isdigit():
            return int(self._every)
        if self._every.endswith("s"):
            return max(1, round(float(self._every[:-1]) / step_s))
        return max(1, min(_LONGEST, round(cost_s / (_PART * step_s))))


def _number(keys: Sequence[str] | None) -> int:
    """The same for ranks that hold the same and keep it equal; `_NEVER` if there is no place for a copy."""
    if keys is None:
        return _NEVER
    text = json.dumps(sorted(keys)).encode()
    return int(hashlib.sha256(text).hexdigest()[:15], 16) or 1
