"""Checkpoints of one job as a rank uses them: restore, claim, save. All of them are collective.

A save is requested (copied, training goes on) and later durable; one is in flight at most. The folder's form and what
makes a checkpoint valid stand in zrun.core.manifest. Knows nothing about steps to come.
"""

import os
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from zrun.core import env
from zrun.core.errors import CheckpointError
from zrun.core.place import Place, place_of
from zrun.state import claims, commit
from zrun.state.agree import Agreement
from zrun.state.background import Background
from zrun.state.blocks import Block
from zrun.state.claims import Claim
from zrun.state.disk_errors import explained
from zrun.state.parts import Parts
from zrun.state.progress import Outcome, Progress, Restored, Saved
from zrun.state.remembering import Remembering
from zrun.state.restoring import Restorer
from zrun.state.saving import Saver, Staged, Stamp
from zrun.state.values import encode


class Checkpoints:
    """One rank's view of `directory`. All ranks make it, and call its methods in the same order."""

    def __init__(
        self,
        directory: Place,
        *,
        job: str,
        name: str,
        attempt: int,
        rank: int,
        world_size: int,
        seed: int,
        fresh: bool = False,
        allow_changed: Sequence[str] = (),
        warn: Callable[[str], None],
        keep_last: int | None = None,
        keep_every_steps: int | None = None,
        on_end: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        """`on_end` hears, in the background, how a save ended; not of one that a dead peer ended."""
        self.directory = directory
        self.attempt = attempt
        """0 until `claim` if the job has no agent to count attempts."""
        self._job = job
        self._name = name
        self._rank = rank
        self._seed = seed
        self._fresh = fresh
        self._allowed = frozenset(allow_changed)
        self._warn = warn
        self._keep = keep_last
        self._keep_every = keep_every_steps
        self._agreement = Agreement(rank, world_size)
        self._saver = Saver(
            directory, self._agreement, Agreement(rank, world_size, background=True), _cores(world_size), self._tell
        )
        self._background = Background("zrun-saver")
        self._on_end = on_end
        self._flight: Outcome | None = None
        self._elsewhere = False
        """The state came from another folder or was begun anew: what another run left here is put away."""
        self._reading: int | None = None
        self._claim: Claim | None = None

    def _tell(self, text: str) -> None:
        if self._rank == 0:
            self._warn(text)

    def restore(self, parts: Parts, resume: str, fingerprint: dict[str, Any]) -> Restored:
        """Load the newest state that is valid on every rank, in place; the same answer on every rank.

        `resume`: auto, never, or a folder of one checkpoint or of many. CheckpointError, on every rank, if there are
        checkpoints but none that is valid, if they are another run's, or if the newest one does not fit this job.
        """
        begun = time.monotonic()
        self._elsewhere = self._fresh or resume != "auto"
        if resume == "never":
            return Restored(None, None)
        if resume == "auto" and not self._fresh:
            remembering = Remembering(self._agreement, self._job, self._tell)
            recalled = remembering.restore(self.directory, parts, fingerprint | {"seed": self._seed})
            if recalled is not None:
                return replace(recalled, seconds=time.monotonic() - begun)
        restorer = Restorer(self._agreement, self._job, self._allowed, self._tell)
        folder = None if resume == "auto" else place_of(resume)
        result = restorer.restore(
            self.directory, folder, parts, fingerprint | {"seed": self._seed}, others=self._elsewhere
        )
        if result.path is not None and result.path.parent == self.directory and result.progress is not None:
            self._reading = result.progress.step
        return Restored(result.progress, result.path, result.skipped, time.monotonic() - begun)

    def claim(self, resumed_step: int) -> None:
        """Before the first step: from now on only this attempt, or a later one, may write here."""

        def act() -> list[Any]:
            if self._elsewhere:
                foreign = claims.others(self.directory, self._job)
                if foreign:
                    self._tell(f"another run's checkpoints were put into {claims.put_away(self.directory, foreign)}")
            made = claims.claim(self.directory, self._job, self.attempt, resumed_step)
            if made.unguarded:
                self._tell(
                    f"{self.directory.parent} knows no conditional PUT: two runs that begin here in the same moment "
                    "may both believe to be alone"
                )
            swept = commit.sweep(self.directory, made.attempt)
            if swept:
                self._tell(f"removed what earlier attempts left unfinished: {', '.join(swept)}")
            return [made.attempt, made.device, made.by, None]

        answer: list[Any] = [0, 0, "", None]
        if self._rank == 0:
            try:
                answer = act()
            except OSError as error:
                answer[-1] = _told(explained(error, self.directory))
            except CheckpointError as error:
                answer[-1] = _told(error)
        number, device, by, problem = self._agreement.from_first(answer)
        if problem is not None:
            raise CheckpointError(problem)
        self.attempt = number
        self._claim = Claim(self._job, number, resumed_step, device, by=by)

    @property
    def agreement(self) -> Agreement:
        """Of all ranks, on the training thread."""
        return self._agreement

    @property
    def cores(self) -> int:
        """This rank's share of the cores it may use."""
        return _cores(self._agreement.world_size)

    def from_first(self, value: Any) -> Any:
        """Rank 0's value on every rank; on the training thread."""
        return self._agreement.from_first(value)

    @property
    def in_flight(self) -> int | None:
        """The step of the save that was requested and not yet settled."""
        return self._flight.step if self._flight is not None else None

    @property
    def doing(self) -> str:
        """What the save in flight is at, in words."""
        return self._saver.doing

    def request(self, parts: Parts, progress: Progress, fingerprint: dict[str, Any]) -> None:
        """Copy the state of the step just done; it is written while training goes on, and told to `on_end`.

        Only when none is in flight. CheckpointError on every rank if the state of any cannot be saved.
        """
        begun = time.monotonic()
        claim = self._claim
        if claim is None:
            raise CheckpointError("save() before claim(): nothing would keep a dead attempt from writing here")
        if self._flight is not None:
            raise RuntimeError(f"the save of step {self._flight.step} is not settled")
        blocks: list[Block] = []
        values: dict[str, Any] = {}
        problem = None
        try:
            blocks, values = parts.flatten()
            own = {"run_state": progress.run_state, "quarantined": progress.quarantined}
            values["progress"] = encode(own, "progress")
        except CheckpointError as error:
            problem = str(error)
        except Exception as error:  # a state_dict of the user's; the other ranks wait to hear of it
            problem = f"{type(error).__name__}: {error}"
        staged = self._saver.stage(blocks, values, replace(progress, cursor=deepcopy(progress.cursor)), problem)
        stamp = Stamp(self._job, self._name, fingerprint | {"seed": self._seed})
        flight = Outcome(progress.step, progress.batch, time.monotonic() - begun)
        self._background.start(lambda: self._fly(staged, stamp, claim, flight, begun))
        self._flight = flight

    def _fly(self, staged: Staged, stamp: Stamp, claim: Claim, flight: Outcome, begun: float) -> None:
        """In the background; what it raises is kept for `settle`."""
        try:
            path, size = self._saver.commit(staged, stamp, claim)
            self._saver.doing = "removes old ones"
            pruned = self._prune()
            flight.saved = Saved(path, flight.step, size, time.monotonic() - begun, pruned)
        except BaseException as error:
            flight.error = error
        self._saver.doing = ""
        if flight.error is None or isinstance(flight.error, CheckpointError):
            self._on_end(flight)

    def wait(self, within_s: float | None = None) -> bool:
        """Is no save being written (any more)? Waits so long for it, without an end if None."""
        return self._background.wait(within_s)

    def settle(self) -> Saved | None:
        """How the save in flight ended, once it has; None if there was none.

        CheckpointError, on every rank, if it failed. A peer that died meanwhile makes the others raise the RuntimeError
        of the collective, as in training.
        """
        self._background.wait()
        flight, self._flight = self._flight, None
        if flight is not None and flight.error is not None:
            raise flight.error
        return flight.saved if flight is not None else None

    def save(self, parts: Parts, progress: Progress, fingerprint: dict[str, Any]) -> Saved:
        """Write a complete checkpoint of the step just done and wait for it."""
        self.request(parts, progress, fingerprint)
        saved = self.settle()
        assert saved is not None
        return saved

    def _prune(self) -> list[int]:
        if self._rank != 0 or self._keep is None:
            return []
        try:
            return commit.prune(self.directory, self._keep, self._keep_every, self._reading)
        except OSError as error:
            self._warn(f"old checkpoints in {self.directory} could not be removed: {error}")
            return []


def _told(error: CheckpointError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


def _cores(world_size: int) -> int:
    """This rank's share of the cores it may use."""
    here = int(env.get("LOCAL_WORLD_SIZE") or world_size)
    return len(os.sched_getaffinity(0)) // max(1, here)
