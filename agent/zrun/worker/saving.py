"""Restoring, claiming and saving for one Session, and saying so to the agent; a failed save is loud and training goes
on. Knows nothing about steps in progress: it is called between them, on all ranks.
"""

from pathlib import Path
from typing import Any

from zrun.core import env
from zrun.core.deck import Phase
from zrun.core.errors import CheckpointError
from zrun.core.notes import NoteKind
from zrun.state.agree import Agreement
from zrun.state.checkpoints import Checkpoints
from zrun.state.commit import DiskFullError
from zrun.state.parts import Parts
from zrun.state.progress import Progress
from zrun.worker import last_words
from zrun.worker.cadence import EverySeconds, EverySteps
from zrun.worker.rank import ThisRank


class Saving:
    """`directory` None: nothing is ever restored or saved. `number`, `world_size`: of the default process group."""

    def __init__(self, here: ThisRank, parts: Parts, number: int, world_size: int, seed: int) -> None:
        self._here = here
        self._parts = parts
        self._number = number
        self.fingerprint: dict[str, Any] = {}
        self._saved_step: int | None = None
        directory = env.get(env.CHECKPOINT_DIR)
        self._directory = Path(directory) if directory else None
        self._checkpoints: Checkpoints | None = None
        self._cadence: EverySteps | EverySeconds = EverySteps(None)
        if self._directory is not None:
            settings = here.settings
            self._checkpoints = Checkpoints(
                self._directory, job=env.get(env.JOB) or "local", name=env.get(env.NAME) or "local",
                attempt=here.attempt, rank=number, world_size=world_size,
                seed=seed, fresh=settings.fresh, allow_changed=settings.allow_changed, warn=here.warn,
                keep_last=settings.keep_last, keep_every_steps=settings.keep_every_steps,
            )  # fmt: skip
            if settings.save_every_s:
                self._cadence = EverySeconds(settings.save_every_s, Agreement(number, world_size).from_first)
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
                facts |= {"tier": "disk", "checkpoint": str(found.path)}
                self._saved_step = progress.step
            self._checkpoints.claim(progress.step if progress else 0)
        step = progress.step if progress else 0
        self._here.note(NoteKind.SESSION, resumed_step=step, total_steps=total, **facts)
        env.put(env.RESUME_STEP, str(step))
        return progress

    def initial(self, progress: Progress) -> None:
        """Step 0, before step 1."""
        if self._here.settings.save_initial:
            self.save(progress)

    def due(self, step: int) -> bool:
        """Asked once at each step's end, on every rank."""
        return self._cadence.due(step)

    def save(self, progress: Progress) -> bool:
        """Commit `progress` unless that step is saved already; False if it failed. On all ranks at the same step."""
        if self._checkpoints is None:
            return False
        if self._saved_step == progress.step:
            return True
        before = self._here.phase()
        self._here.enter_phase(Phase.SAVE)
        try:
            saved = self._checkpoints.save(self._parts, progress, self.fingerprint)
        except CheckpointError as error:
            self._failed(progress.step, error)
            return False
        except BaseException as error:  # passed on, a dead peer's outcry for one: it was raised in this phase
            last_words.raised_in(self._here, error)
            raise
        finally:
            self._here.enter_phase(*before)
            self._cadence.saved()
        self._saved_step = progress.step
        if self._number == 0:
            self._here.note(
                NoteKind.CHECKPOINT, step=saved.step, batch=progress.batch, path=str(saved.path), bytes=saved.bytes,
                seconds=saved.seconds, pruned=saved.pruned,
            )  # fmt: skip
        return True

    def _failed(self, step: int, error: CheckpointError) -> None:
        hint = f" ({error.hint})" if error.hint else ""
        self._here.note(
            NoteKind.SAVE_FAILED, step=step, error=f"{error}{hint}", path=str(self._directory),
            disk_full=isinstance(error, DiskFullError),
        )  # fmt: skip
        self._here.warn(f"the save at step {step} failed, training goes on without it: {error}{hint}")
