"""The memory tier of one Session: keeps the state where it outlives this rank, and answers the agent that asks for it.

Every step its small things; the whole state when something has failed, and on a cadence where a rank's death would lose
what no other rank holds. Knows nothing about how state becomes bytes (zrun.state.keeping).
"""

import time
from collections.abc import Callable
from typing import Any, Final

from zrun.core.deck import StopKind
from zrun.core.errors import CheckpointError
from zrun.core.notes import NoteKind
from zrun.state.agree import Agreement
from zrun.state.keeping import Held, Keeping
from zrun.state.kept import Whose
from zrun.state.parts import Parts
from zrun.state.places import on_this_node
from zrun.state.progress import Progress
from zrun.worker.memory_cadence import MemoryCadence
from zrun.worker.rank import ThisRank

_MOST: Final = 0.01
"""Part of a step that keeping its small things may take."""
_TRIED: Final = 10
"""Steps after the first ones, over which that is measured."""


class Memory:
    """`step_done` on the training thread at each step's end; the watcher thread asks by `sweep` whether anybody wants
    the state. Never raises for want of memory: it says so, and the disk has to do.
    """

    def __init__(self, here: ThisRank, agreement: Agreement, keeping: Keeping | None, every: str) -> None:
        """`keeping` None: there is no place on this node; the other ranks are told."""
        self._here, self._agreement, self._keeping = here, agreement, keeping
        self._cadence = MemoryCadence(agreement, every)
        self._answered = 0
        self._dones = 0
        self._cost_s = self._begun = 0.0
        if keeping is not None:
            here.sweepers.append(self.sweep)

    @property
    def holds(self) -> bool:
        return self._keeping is not None

    def step_done(self, progress: Progress, cursor: Callable[[], dict[str, Any]]) -> None:
        """The state after `progress.step` is whole; `cursor` gives that of the data when it is wanted.

        Collective at a few steps that all ranks know beforehand.
        """
        keeping = self._keeping
        if keeping is not None:
            try:
                keeping.step_done(progress, cursor)
            except Exception as error:  # a state_dict of the user's, a file that is gone: training goes on
                self._give_up(f"{type(error).__name__}: {error}")
            else:
                self._weigh(keeping)
        self._dones += 1
        if self._cadence.meets(progress.step, self._dones):
            self._meet(progress)

    def _meet(self, progress: Progress) -> None:
        keeping, cadence = self._keeping, self._cadence
        if not cadence.settled:
            cadence.settle(keeping.keys if keeping is not None else None)
        if not cadence.wanted:
            return
        held = keeping.copy() if keeping is not None else Held(progress.step, problem="there is no place for it")
        if held.problem:
            self._here.warn(f"no copy of the state could be made in memory: {held.problem}")
        elif not cadence.next_at:
            self._here.note(NoteKind.MEMORY, step=progress.step, bytes=held.bytes, seconds=held.seconds)
        cadence.copied(progress.step, held.seconds if not held.problem else None)

    def _weigh(self, keeping: Keeping) -> None:
        """Is it cheap enough to be done at every step?"""
        if self._dones < _TRIED:
            self._begun, self._cost_s = time.perf_counter(), 0.0
            return
        self._cost_s += keeping.cost_s
        if self._dones == 2 * _TRIED:
            passed_s = time.perf_counter() - self._begun
            if self._cost_s > _MOST * passed_s:
                share = self._cost_s / passed_s
                self._give_up(f"putting down what is small takes {share:.1%} of a step")

    def _give_up(self, why: str) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.close()
            self._here.note(NoteKind.HELD, step=None, problem=why)
            self._here.warn(f"the state is not kept in memory at a fault: {why}")

    def sweep(self, moved_on: bool) -> None:
        """In the watcher thread: is the state of now asked for?"""
        if moved_on:
            return
        request = self._here.stop_request()
        if request is None or request.kind is not StopKind.HOLD or request.sequence == self._answered:
            return
        if self._answer(ever=True):
            self._answered = request.sequence

    def finish(self) -> None:
        """The loop has ended well: all there is to keep is on disk."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.close()
            self._here.note(NoteKind.HELD, step=None, problem="the Session is over")

    def leave(self) -> None:
        """The script is raising: whatever can be kept is kept now."""
        self._answer(ever=False)

    def _answer(self, *, ever: bool) -> bool:
        keeping = self._keeping
        if keeping is None:
            return True
        held = keeping.hold(ever=ever, begins=lambda size: self._here.note(NoteKind.HOLDING, bytes=size))
        if held is None:
            return False
        self._here.note(
            NoteKind.HELD, step=held.step if not held.problem else None, bytes=held.bytes, seconds=held.seconds,
            problem=held.problem or None,
        )  # fmt: skip
        return True


def memory_of(here: ThisRank, parts: Parts, agreement: Agreement, job: str, fingerprint: dict[str, Any],
              threads: int) -> Memory:  # fmt: skip
    """Of this rank; after `claim`, when the attempt has its number."""
    every = here.settings.memory_every
    place = on_this_node().get(here.rank) if every != "off" and here.deck is not None else None
    keeping = None
    if place is not None and (reason := parts.not_in_memory()) is None:
        whose = Whose(job, here.attempt, agreement.rank, agreement.world_size)
        try:
            keeping = Keeping(parts, place, whose, fingerprint, threads)
        except (OSError, CheckpointError) as error:
            here.warn(f"the state is not kept in memory: {error}")
    elif place is not None:
        here.warn(f"the state is not kept in memory: {reason}")
    return Memory(here, agreement, keeping, every)
