"""Checkpoints of one job as a rank uses them: restore, claim, save. All three are collective.

The folder's form and what makes a checkpoint valid stand in zrun.core.manifest. Knows nothing about steps to come.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zrun.core.errors import CheckpointError
from zrun.state import claims, commit
from zrun.state.agree import Agreement
from zrun.state.blocks import Block
from zrun.state.parts import Parts
from zrun.state.progress import Progress, Restored, Saved
from zrun.state.restoring import Restorer
from zrun.state.saving import Saver, Stamp


class Checkpoints:
    """One rank's view of `directory`. All ranks make it, and call its methods in the same order."""

    def __init__(
        self,
        directory: Path,
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
    ) -> None:
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
        self._saver = Saver(directory, self._agreement, self._tell)
        self._elsewhere = False
        """The state came from another folder or was begun anew: what another run left here is put away."""
        self._reading: int | None = None
        self._claimed = False

    def _tell(self, text: str) -> None:
        if self._rank == 0:
            self._warn(text)

    def restore(self, parts: Parts, resume: str, fingerprint: dict[str, Any]) -> Restored:
        """Load the newest checkpoint that is valid on every rank, in place; the same answer on every rank.

        `resume`: auto, never, or a folder of one checkpoint or of many. CheckpointError, on every rank, if there are
        checkpoints but none that is valid, if they are another run's, or if the newest one does not fit this job.
        """
        begun = time.monotonic()
        self._elsewhere = self._fresh or resume != "auto"
        if resume == "never":
            return Restored(None, None)
        restorer = Restorer(self._agreement, self._job, self._allowed, self._tell)
        folder = None if resume == "auto" else Path(resume)
        result = restorer.restore(
            self.directory, folder, parts, fingerprint | {"seed": self._seed}, others=self._elsewhere
        )
        if result.path is not None and result.path.parent == self.directory and result.progress is not None:
            self._reading = result.progress.step
        return Restored(result.progress, result.path, result.skipped, time.monotonic() - begun)

    def claim(self, resumed_step: int) -> None:
        """Before the first step: from now on only this attempt, or a later one, may write here."""

        def act() -> list[Any]:
            if self._elsewhere and self.directory.is_dir():
                foreign = claims.others(self.directory, self._job)
                if foreign:
                    self._tell(f"another run's checkpoints were put into {claims.put_away(self.directory, foreign)}")
            number = claims.claim(self.directory, self._job, self.attempt, resumed_step)
            swept = commit.sweep(self.directory, number)
            if swept:
                self._tell(f"removed what earlier attempts left unfinished: {', '.join(swept)}")
            return [number, None]

        answer: list[Any] = [0, None]
        if self._rank == 0:
            try:
                answer = act()
            except OSError as error:
                answer = [0, str(commit.explained(error, self.directory))]
            except CheckpointError as error:
                answer = [0, str(error)]
        number, problem = self._agreement.from_first(answer)
        if problem is not None:
            raise CheckpointError(problem)
        self.attempt = number
        self._claimed = True

    def save(self, parts: Parts, progress: Progress, fingerprint: dict[str, Any]) -> Saved:
        """Write a complete checkpoint of the step just done, or raise CheckpointError on every rank.

        A peer that dies meanwhile makes the others raise the RuntimeError of the collective, as in training.
        """
        begun = time.monotonic()
        if not self._claimed:
            raise CheckpointError("save() before claim(): nothing would keep a dead attempt from writing here")
        blocks: list[Block] = []
        values: dict[str, Any] = {}
        problem = None
        try:
            blocks, values = parts.flatten()
        except CheckpointError as error:
            problem = str(error)
        except Exception as error:  # a state_dict of the user's; the other ranks wait to hear of it
            problem = f"{type(error).__name__}: {error}"
        self._agreement_on(problem)
        stamp = Stamp(self._job, self._name, self.attempt, fingerprint | {"seed": self._seed})
        path, size = self._saver.save(blocks, values, progress, stamp)
        pruned = self._prune()
        return Saved(path, progress.step, size, time.monotonic() - begun, pruned)

    def _agreement_on(self, problem: str | None) -> None:
        failed = self._agreement.problems(problem)
        if failed:
            raise CheckpointError("; ".join(f"rank {rank}: {text}" for rank, text in failed.items()))

    def _prune(self) -> list[int]:
        if self._rank != 0 or self._keep is None:
            return []
        try:
            return commit.prune(self.directory, self._keep, self._keep_every, self._reading)
        except OSError as error:
            self._warn(f"old checkpoints in {self.directory} could not be removed: {error}")
            return []
