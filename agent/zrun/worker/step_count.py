"""Numbers the steps of scripts that do not use Session, so that any script has steps and a watchdog.

A framework that numbers its own steps says so (zrun.integrations); else optimizers are counted: an outermost step
counts (ZeroRedundancyOptimizer steps an inner optimizer), and of several optimizers the one that steps most often. It
knows nothing about batches; where a Session counts, this does not.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from zrun.core.deck import Phase
from zrun.core.notes import NoteKind
from zrun.worker.rank import ThisRank

AFTER_TRAINING: Final = "after training"
"""The phase once a framework has left its loop: what the script does then may take long."""
_OUTSIDE: Final = {Phase.SETUP, Phase.FIRST_STEP, Phase.OWN}
"""Phases that a completed step ends. One completed within an evaluation or a save is part of it."""


class StepCount:
    """The steps of this process: completed ones only ever go up, also over several trainings in one script."""

    def __init__(self, rank: ThisRank) -> None:
        self.calls = 0
        """Steps of optimizers seen, inner ones too."""
        self.evaluating = False
        """Phase EVAL was entered because the model is in evaluation mode: training on ends it."""
        self._rank = rank
        self._inside: list[weakref.ref[Any]] = []
        self._round: weakref.WeakSet[Any] = weakref.WeakSet()
        self._step = 0
        self._warm = False
        """A step was completed: until then nothing tells how long the first one takes."""
        self._told = False
        self._offset = 0
        self._began_at = time.monotonic()
        self._thread = threading.get_ident()

    def here(self) -> bool:
        """In the thread that trains, of a rank whose script is not over: what others do (savers, loaders) is not it."""
        return threading.get_ident() == self._thread and self._rank.deck is not None and not self._rank.over

    # By optimizers

    def before(self, optimizer: Any) -> None:
        self._unwind(optimizer)  # if its last step raised, its end was never seen
        self._inside.append(weakref.ref(optimizer))

    def after(self, optimizer: Any) -> None:
        self.calls += 1
        self._unwind(optimizer)
        if self._inside or self._rank.session:
            return
        self._rank.progressed()
        self.trains_again()
        if not self._told:
            self._count(optimizer)

    def trains_again(self) -> None:
        if self.evaluating:
            self.evaluating = False
            self._rank.enter_phase(Phase.STEP)

    def _unwind(self, optimizer: Any) -> None:
        """Take `optimizer` and all begun within it from those inside a step."""
        alive = [inside for inside in self._inside if inside() is not None]
        at = next((index for index, inside in enumerate(alive) if inside() is optimizer), len(alive))
        self._inside = alive[:at]

    def _count(self, optimizer: Any) -> None:
        """Each optimizer steps once in a round; one that comes again begins the next. Dead ones do not count."""
        if len(self._round) and optimizer not in self._round:
            self._round.add(optimizer)
            return
        self._round.clear()
        self._round.add(optimizer)
        self._complete(self._step + 1)
        self._rank.begin_step(self._step + 1, None, time.time())

    def optimized(self) -> Iterator[list[Any]]:
        """The parameters of each optimizer that has stepped."""
        for optimizer in list(self._round):
            groups = getattr(optimizer, "param_groups", ())
            yield [parameter for group in groups for parameter in group.get("params", ())]

    # By a framework

    def training(self, done: int, total: int | None) -> None:
        """A framework enters its loop after `done` steps of `total`; from now on it tells."""
        if self._rank.session:
            return
        self._told = True
        self._thread = threading.get_ident()
        self._offset = max(0, self._step - done)  # a second training in one script goes on where the first ended
        self._step = done + self._offset
        self._warm = False
        whole = total + self._offset if total else None
        if whole and self._rank.deck is not None:
            self._rank.deck.set_total(whole)
        self._rank.note(NoteKind.SESSION, resumed_step=self._step, total_steps=whole)
        self._rank.enter_phase(Phase.FIRST_STEP)

    def begun(self, step: int) -> None:
        if self._told and not self._rank.session:
            self._began_at = time.monotonic()
            self._warm = True
            self._rank.begin_step(step + self._offset, None, time.time())

    def completed(self, step: int) -> None:
        if not self._told or self._rank.session:
            return
        if step + self._offset > self._step:
            self._complete(step + self._offset)
        else:  # a part of a step
            self._rank.progressed()

    def trained(self) -> None:
        """The framework has left its loop."""
        if self._told and not self._rank.session:
            self._told = False
            self._rank.enter_phase(Phase.OWN, AFTER_TRAINING)

    def _complete(self, step: int) -> None:
        now = time.monotonic()
        if self._rank.phase()[0] in _OUTSIDE:
            self._rank.enter_phase(Phase.STEP)
        self._rank.complete_step(step, now - self._began_at if self._warm else 0.0)
        self._step = step
        self._warm = True
        self._began_at = now


def install(rank: ThisRank) -> StepCount:
    """Hooks for every optimizer of this process, also for those made before."""
    count = StepCount(rank)
    register_optimizer_step_pre_hook(_harmless(rank, count.before))
    register_optimizer_step_post_hook(_harmless(rank, count.after))
    return count


def _harmless(rank: ThisRank, tell: Callable[[Any], None]) -> Callable[..., None]:
    """An odd optimizer costs a warning; a compiled step (its graph ends here anyway) calls us as we are."""
    warned: list[str] = []

    def hook(optimizer: Any, *_: Any) -> None:
        try:
            tell(optimizer)
        except Exception as error:
            if not warned:
                warned.append(f"steps of {type(optimizer).__name__} are not seen: {type(error).__name__}: {error}")
                rank.warn(warned[0])

    return cast("Callable[..., None]", torch._disable_dynamo(hook))  # type: ignore[attr-defined]  # noqa: SLF001
