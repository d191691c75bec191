"""Restoring, claiming and saving for one Session, and saying so to the agent.

A save is requested between two steps, on all ranks, and written while training goes on; the next one waits for it. One
that fails is loud at once and training goes on, until so many in a row have failed that going on would mean to lose
everything. Knows nothing about steps in progress.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from zrun.core import env
from zrun.core.deck import Phase
from zrun.core.errors import CheckpointError
from zrun.core.notes import NoteKind
from zrun.core.place import place_of
from zrun.state import room
from zrun.state.checkpoints import Checkpoints
from zrun.state.disk_errors import DiskFullError
from zrun.state.parts import Parts
from zrun.state.progress import Outcome, Progress, Saved
from zrun.state.room import Retention
from zrun.worker import last_words
from zrun.worker.cadence import EverySeconds, EverySteps
from zrun.worker.memory import Memory, memory_of
from zrun.worker.rank import ThisRank

FAILURES_IN_A_ROW: Final = 3
"""So many saves of the cadence, one after the other, and the ranks raise: whatever is trained from then on is lost."""
_SLOW: Final = 2.0
"""A save that takes so many times the time between two of them is told."""
_SAID_EVERY_S: Final = 30.0
_ABANDONED_AFTER_S: Final = 10.0
"""When training has raised, the save in flight is given so long; what is not committed then is as if it never was."""


class Saving:
    """`directory` None: nothing is ever restored or saved. `number`, `world_size`: of the default process group."""

    def __init__(self, here: ThisRank, parts: Parts, number: int, world_size: int, seed: int) -> None:
        self._here = here
        self._parts = parts
        self._number = number
        self.fingerprint: dict[str, Any] = {}
        self._saved_step: int | None = None
        self._failures = 0
        self._last_error: CheckpointError | None = None
        self._requested_at = time.monotonic()
        self._cadence_s = 0.0
        """Training time from the last request to the moment at which the next save was due."""
        self._slowest = _SLOW
        self._waited_s = 0.0
        self._job = env.get(env.JOB) or "local"
        directory = env.get(env.CHECKPOINT_DIR)
        self._directory = place_of(directory) if directory else None
        self._checkpoints: Checkpoints | None = None
        self._cadence: EverySteps | EverySeconds = EverySteps(None)
        if self._directory is not None:
            settings = here.settings
            self._checkpoints = Checkpoints(
                self._directory, job=self._job, name=env.get(env.NAME) or "local",
                attempt=here.attempt, rank=number, world_size=world_size,
                seed=seed, fresh=settings.fresh, allow_changed=settings.allow_changed, warn=here.warn,
                keep_last=settings.keep_last, keep_every_steps=settings.keep_every_steps, on_end=self._ended,
            )  # fmt: skip
            if settings.save_every_s:
                self._cadence = EverySeconds(settings.save_every_s, self._checkpoints.from_first)
            else:
                self._cadence = EverySteps(settings.save_every_steps)

    def restore(self, total: int | None) -> Progress | None:
        """Load the newest state all ranks agree on, and claim the folder from there. None: there was none."""
        progress: Progress | None = None
        facts: dict[str, Any] = {"tier": None, "checkpoint": None, "skipped": []}
        if self._checkpoints is not None:
            found = self._checkpoints.restore(self._parts, self._here.settings.resume, self.fingerprint)
            progress = found.progress
            facts["skipped"] = [{"path": str(item["path"]), "reason": item["reason"]} for item in found.skipped]
            if progress is not None:
                facts |= {"tier": found.tier, "checkpoint": str(found.path) if found.path is not None else None}
                self._saved_step = progress.step if found.tier == "disk" else None
            self._look_for_room(total, resumed=progress is not None)
            self._checkpoints.claim(progress.step if progress else 0)
        step = progress.step if progress else 0
        self._here.note(NoteKind.SESSION, resumed_step=step, total_steps=total, **facts)
        env.put(env.RESUME_STEP, str(step))
        return progress

    def memory(self) -> Memory | None:
        """After `restore`, on every rank; None where nothing is ever restored."""
        checkpoints = self._checkpoints
        if checkpoints is None or self._here.deck is None:
            return None
        fingerprint = self.fingerprint | {"seed": self._here.settings.seed}
        memory = memory_of(self._here, self._parts, checkpoints.agreement, self._job, fingerprint, checkpoints.cores)
        if memory.holds:
            self._here.note(NoteKind.HOLDS)
        return memory

    def _look_for_room(self, total: int | None, *, resumed: bool) -> None:
        """On the first rank: CheckpointError if not even one checkpoint would fit, before an hour is trained for it."""
        keep = Retention(self._here.settings.keep_last, self._here.settings.keep_every_steps, total)
        if self._number == 0 and self._directory is not None:
            room.check(self._parts, self._directory, keep, resumed=resumed, warn=self._here.warn)

    def initial(self, progress: Progress) -> None:
        """Step 0, on disk before step 1."""
        if self._here.settings.save_initial:
            self.save_now(progress)

    def due(self, step: int) -> bool:
        """Asked once at each step's end, on every rank."""
        return self._cadence.due(step)

    def save(self, progress: Progress) -> None:
        """Request a save of the step just done; training goes on. On all ranks at the same step.

        CheckpointError, on every rank, if too many have failed in a row: the last chance is waited for.
        """
        with self._at_work() as checkpoints:
            begun = checkpoints is not None and self._request(checkpoints, progress)
            if checkpoints is not None and begun and self._failures >= FAILURES_IN_A_ROW - 1:
                self._settle(checkpoints)
        if self._failures >= FAILURES_IN_A_ROW:
            error = self._last_error
            raise CheckpointError(
                f"{self._failures} saves in a row failed, the last one of step {progress.step}: {error}",
                hint=error.hint if error is not None else "",
            )

    def save_now(self, progress: Progress) -> bool:
        """Save the step just done and wait until it is on disk; False if it failed. On all ranks at the same step."""
        with self._at_work() as checkpoints:
            if checkpoints is not None:
                self._request(checkpoints, progress)
                self._settle(checkpoints)
        return self._saved_step == progress.step

    def finish(self) -> None:
        """Wait for the save in flight; nothing is lost by going on afterwards."""
        with self._at_work() as checkpoints:
            if checkpoints is not None:
                self._settle(checkpoints)

    def abandon(self) -> None:
        """Training has raised: give the save in flight a moment, if the other ranks are still there for it."""
        checkpoints = self._checkpoints
        if checkpoints is not None and checkpoints.in_flight is not None and not checkpoints.wait(_ABANDONED_AFTER_S):
            self._here.warn(f"the save of step {checkpoints.in_flight} was not complete in time: there is none")

    @contextmanager
    def _at_work(self) -> Iterator[Checkpoints | None]:
        before = self._here.phase()
        if self._checkpoints is not None:
            self._here.enter_phase(Phase.SAVE)
        try:
            yield self._checkpoints
        except BaseException as error:  # passed on, a dead peer's outcry for one: it was raised in this phase
            last_words.raised_in(self._here, error)
            raise
        finally:
            if self._checkpoints is not None:
                self._here.enter_phase(*before)

    def _request(self, checkpoints: Checkpoints, progress: Progress) -> bool:
        """False: that step is saved already, or its state cannot be saved."""
        step = progress.step
        self._cadence_s = time.monotonic() - self._requested_at
        waited_s = self._settle(checkpoints, due=step) if checkpoints.in_flight != step else 0.0
        if step in (self._saved_step, checkpoints.in_flight):
            return False
        self._requested_at = time.monotonic()
        self._cadence.saved()
        if self._number == 0:
            self._here.note(NoteKind.SAVE_REQUESTED, step=step, batch=progress.batch, waited_s=waited_s)
        try:
            checkpoints.request(self._parts, progress, self.fingerprint)
        except CheckpointError as error:
            self._count(error)
            self._tell_failure(step, error)
            return False
        return True

    def _settle(self, checkpoints: Checkpoints, due: int | None = None) -> float:
        """Hear how the save in flight ended. Seconds that training stood still because the one of step `due` could not
        begin.
        """
        begun = time.monotonic()
        while not checkpoints.wait(_SAID_EVERY_S):
            self._say(
                f"training waits for the save of step {checkpoints.in_flight}, which {checkpoints.doing} since "
                f"{time.monotonic() - self._requested_at:.0f} s"
            )
        saved = None
        try:
            saved = checkpoints.settle()
        except CheckpointError as error:
            self._count(error)
        else:
            if saved is not None:
                self._saved_step, self._failures = saved.step, 0
        if due is None:
            return 0.0
        waited_s = time.monotonic() - begun
        self._waited_s += waited_s
        self._tell_if_slow(saved)
        return waited_s

    def _count(self, error: CheckpointError) -> None:
        self._failures += 1
        self._last_error = error

    def _ended(self, outcome: Outcome) -> None:
        """In the background, the moment it is known."""
        saved = outcome.saved
        if isinstance(outcome.error, CheckpointError):
            self._tell_failure(outcome.step, outcome.error)
        elif saved is not None and self._number == 0:
            self._here.note(
                NoteKind.CHECKPOINT, step=saved.step, batch=outcome.batch, path=str(saved.path), bytes=saved.bytes,
                seconds=saved.seconds, blocked_s=outcome.blocked_s, pruned=saved.pruned,
            )  # fmt: skip

    def _tell_failure(self, step: int, error: CheckpointError) -> None:
        hint = f" ({error.hint})" if error.hint else ""
        self._here.note(
            NoteKind.SAVE_FAILED, step=step, error=f"{error}{hint}", path=str(self._directory),
            disk_full=isinstance(error, DiskFullError),
        )  # fmt: skip
        self._here.warn(f"the save at step {step} failed, training goes on without it: {error}{hint}")

    def _tell_if_slow(self, saved: Saved | None) -> None:
        """Once, and again when it has become half as bad again."""
        if saved is None or saved.seconds <= self._slowest * self._cadence_s:
            return
        self._slowest = 1.5 * saved.seconds / self._cadence_s
        where = f"the disk of {self._directory}" if isinstance(self._directory, Path) else str(self._directory)
        self._say(
            f"{where} is slow: the save of step {saved.step} took {saved.seconds:.1f} s, "
            f"the next one was due after {self._cadence_s:.1f} s; training has waited {self._waited_s:.1f} s for saves"
        )

    def _say(self, text: str) -> None:
        if self._number == 0:
            self._here.warn(text)
