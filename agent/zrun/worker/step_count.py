"""Counts optimizer steps for scripts that do not use Session, so that any script has steps and a watchdog.

An outermost step counts (ZeroRedundancyOptimizer steps an inner optimizer), and of several optimizers the one that
steps most often. It knows nothing about batches; where a Session counts, this does not.
"""

import time
from typing import Any, Final

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from zrun.core.deck import Phase
from zrun.worker.rank import ThisRank

_KEPT: Final = 64
"""Optimizers remembered; scripts that make one for each step must not make this grow."""


class StepCount:
    """Depth and counts of the optimizers of this process."""

    def __init__(self, rank: ThisRank) -> None:
        self._rank = rank
        self._stack: list[int] = []
        self._counts: dict[int, int] = {}
        self._step = 0
        self._began_at = time.monotonic()

    def before(self, optimizer: Any, *_: Any) -> None:
        if id(optimizer) in self._stack:  # its last step raised, so its end was never seen
            del self._stack[self._stack.index(id(optimizer)) :]
        self._stack.append(id(optimizer))

    def after(self, optimizer: Any, *_: Any) -> None:
        if id(optimizer) in self._stack:
            del self._stack[self._stack.index(id(optimizer)) :]
        if self._stack or self._rank.session:
            return
        if len(self._counts) >= _KEPT and id(optimizer) not in self._counts:
            self._counts.clear()
        count = self._counts[id(optimizer)] = self._counts.get(id(optimizer), 0) + 1
        if count > self._step:
            self._complete(count)

    def _complete(self, step: int) -> None:
        now = time.monotonic()
        if self._step == 0:
            self._rank.enter_phase(Phase.STEP)
        self._rank.complete_step(step, now - self._began_at if self._step else 0.0)
        self._step = step
        self._began_at = now
        self._rank.begin_step(step + 1, None, time.time())


def install(rank: ThisRank) -> None:
    """Hooks for every optimizer of this process."""
    count = StepCount(rank)
    register_optimizer_step_pre_hook(count.before)
    register_optimizer_step_post_hook(count.after)
