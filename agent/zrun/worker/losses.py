"""Is the loss bad? `data.on_bad_loss`: not finite or far above what it was, on any rank, is an end on every rank.

The step is then not done: nothing of it is counted or saved, and what comes next is not decided here.
"""

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any, Final

from zrun.core.errors import BadLossError
from zrun.state.agree import Agreement
from zrun.worker.rank import ThisRank

LOSS: Final = "loss"
"""The name under which `run.report` is told of it."""
_LOOK_BACK: Final = 100
_ENOUGH: Final = 20
"""Losses in a row before one can be called far above them."""


class Losses:
    """Made on every rank, or on none."""

    def __init__(self, here: ThisRank, number: int, world_size: int) -> None:
        self._here = here
        self._agreement = Agreement(number, world_size)
        self._factor = here.settings.bad_loss_factor
        self._before: deque[float] = deque(maxlen=_LOOK_BACK)
        self._now: float | None = None
        self._missed = False

    def heard(self, metrics: Mapping[str, Any]) -> None:
        if LOSS in metrics:
            self._now = float(metrics[LOSS])

    def check(self, step: int) -> None:
        """At the end of a step, on every rank. Raises BadLossError on all if one has a bad loss."""
        told = self._agreement.gather([self._now is not None, self._flaw()])
        bad = {rank: flaw for rank, (_, flaw) in enumerate(told) if flaw}
        if bad:
            where = "every rank" if len(bad) == len(told) > 1 else f"rank {', '.join(map(str, bad))}"
            raise BadLossError(f"the loss of step {step} is {next(iter(bad.values()))} on {where}")
        if not self._missed and not any(heard for heard, _ in told) and self._agreement.rank == 0:
            self._missed = True
            self._here.warn("data.on_bad_loss sees no loss: report it in each step with run.report(loss=…)")
        if self._now is not None:
            self._before.append(self._now)
        self._now = None

    def _flaw(self) -> str | None:
        if self._now is None:
            return None
        if not math.isfinite(self._now):
            return str(self._now)
        if self._factor is None or len(self._before) < _ENOUGH:
            return None
        usual = median(map(abs, self._before))
        if abs(self._now) <= self._factor * usual:
            return None
        return f"{self._now:.6g}, more than {self._factor:g} times the usual {usual:.6g}"
