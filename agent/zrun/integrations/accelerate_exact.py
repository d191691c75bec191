"""`zrun.integrations.accelerate.Resumable`: a training loop with Accelerate that goes on, after a restart, exactly
where the newest whole `save_state` was made, and stops or saves at one step of all ranks when zrun is asked for it.

    run = Resumable(accelerator, "checkpoints", every=500)          # after accelerator.prepare(…)
    for batch in run.batches(loader, epochs=3):
        with accelerator.accumulate(model):
            …

It imports no framework. What save_state and load_state keep is theirs; the place in the data and all randomness are
ours.
"""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from zrun.core import env, seal
from zrun.core.errors import CheckpointError, UsageError
from zrun.integrations.choice import Candidate, Chosen, choose, put_aside, refuse_if_none
from zrun.integrations.exact import Exact, ddp_of

STEPS: Final = "_zrun_steps"
"""Where `follow` leaves this rank's StepCount."""
_NAME: Final = re.compile(r"step-(\d{6,})")
_ANEW: Final = "start anew with --fresh, or use another folder"


class Resumable:
    """One for each loop. `every`: optimizer steps between two saves; `keep`: so many of the newest ones stay."""

    def __init__(self, accelerator: Any, folder: str | Path, *, every: int | None = None, keep: int = 2) -> None:
        if keep < 1 or (every is not None and every < 1):
            raise UsageError("Resumable: every and keep count from 1")
        self.step = 0
        """Optimizer steps done, over all attempts."""
        self.epoch = 0
        self._batch = 0
        """Batches of this epoch that are done, on each rank."""
        self._accelerator = accelerator
        self._folder = Path(folder).absolute()
        self._every = every
        self._keep = keep
        self._exact = Exact()
        self._steps = getattr(type(accelerator), STEPS, None)
        self._wanted = False
        self._at_step_top = True
        self._entered = False

    def save(self) -> None:
        """Save at the end of this step. Call it on every rank."""
        self._wanted = True

    def batches(self, loader: Any, *, epochs: int | None = None, total: int | None = None) -> Iterator[Any]:
        """The batches of `loader`, which `accelerator.prepare` gave, from where the last attempt stopped.

        Until so many epochs or, over all attempts, optimizer steps are done.
        """
        if self._entered:
            raise UsageError("batches() may be entered once")
        if epochs is None and total is None:
            raise UsageError("batches() wants epochs or total: else it never ends")
        if getattr(loader, "use_stateful_dataloader", False):
            raise UsageError("the place in a stateful DataLoader is kept twice", "prepare a plain DataLoader")
        self._entered = True
        self._restore(loader, total)
        try:
            while (epochs is None or self.epoch < epochs) and (total is None or self.step < total):
                yield from self._one_epoch(loader, total)
        finally:
            self._exact.end()
            if self._steps is not None:
                self._steps.trained()

    def _one_epoch(self, loader: Any, total: int | None) -> Iterator[Any]:
        self._exact.begin_epoch(self.epoch, loader)
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self.epoch)
        rest = self._accelerator.skip_first_batches(loader, self._batch) if self._batch else loader
        for batch in rest:
            self._top()
            yield batch
            self._batch += 1
            if self._accelerator.sync_gradients:
                self._bottom(loader, total)
            if total is not None and self.step >= total:
                return
        self.epoch, self._batch = self.epoch + 1, 0

    def _top(self) -> None:
        if self._at_step_top:
            self._at_step_top = False
            if self._steps is not None:
                self._steps.begun(self.step + 1)
            self._exact.at_top()
        self._exact.begin_step((self.epoch << 32) + self._batch + 1)

    def _bottom(self, loader: Any, total: int | None) -> None:
        self.step += 1
        self._at_step_top = True
        if self._steps is not None:
            self._steps.completed(self.step)
        last = total is not None and self.step >= total
        asked = self._exact.at_bottom() if not last else False
        due = self._every is not None and self.step % self._every == 0
        if asked or due or self._wanted:
            self._wanted = False
            self._save_now(loader)

    # Saves

    def _writer(self) -> bool:
        accelerator = self._accelerator
        each = getattr(accelerator.project_configuration, "save_on_each_node", False)
        return bool(accelerator.is_local_main_process if each else accelerator.is_main_process)

    def _save_now(self, loader: Any) -> None:
        begun, exact = time.monotonic(), self._exact
        folder = self._folder / f"step-{self.step:06d}"
        if self._writer() and folder.exists():
            put_aside(Chosen(None, skipped=[{"path": str(folder), "reason": "saved again"}]))
        exact.arrived()
        self._accelerator.save_state(str(folder))
        whole = hasattr(loader, "__len__") and self._batch >= len(loader)
        place = [self.epoch + 1, 0] if whole else [self.epoch, self._batch]
        try:
            exact.saved(folder, self.step, place, writer=self._writer(), begun=begun)
        finally:  # a stop leaves from here
            self._prune()

    def _prune(self) -> None:
        """Older ones of this run that are sealed, once there are more than are to be kept."""
        if not self._writer():
            return
        held = [candidate.path for candidate in _found(self._folder) if _job_of(candidate.path) == _job()]
        for path in held[self._keep :]:
            shutil.rmtree(path, ignore_errors=True)

    # Where it goes on

    def _restore(self, loader: Any, total: int | None) -> None:
        exact, accelerator = self._exact, self._accelerator
        chosen = self._choose()
        if exact.number == 0:
            for text in put_aside(chosen):
                exact.here.warn(text)
        exact.arrived()
        if chosen.path is not None and chosen.seal is not None:
            accelerator.load_state(str(chosen.path))
            self.step = chosen.step
            self.epoch, self._batch = chosen.seal.facts["ranks"][0]
        exact.take_seed(chosen, torch.initial_seed())
        exact.begin(chosen, [ddp for model in accelerator._models for ddp in ddp_of(model)])  # noqa: SLF001
        for text in _obstacles(exact, loader):
            exact.tell(text)
        exact.note(chosen, self.step, total)
        if self._steps is not None:
            self._steps.training(self.step, total)

    def _choose(self) -> Chosen:
        exact = self._exact
        settings = exact.here.settings
        if settings.resume == "never":
            return Chosen(None)
        found = _found(self._folder)
        job = env.get(env.JOB) or None
        chosen = choose(found, _unsealed, exact.agreement, reader=self._writer(), job=job)
        refuse_if_none(chosen, self._folder, _ANEW)
        if chosen.path is None and job is not None and not settings.fresh:
            others = exact.agreement.from_first(sorted({_job_of(candidate.path) for candidate in found} - {""}))
            if others:
                raise CheckpointError(f"{self._folder} holds checkpoints of another run, {', '.join(others)}", _ANEW)
        return chosen


def _unsealed(_: Path) -> str | None:
    return "it has no seal: a save that was cut short"


def _found(folder: Path) -> list[Candidate]:
    """Newest first."""
    try:
        entries = [(entry, _NAME.fullmatch(entry.name)) for entry in folder.iterdir()]
    except OSError:
        return []
    there = [Candidate(entry, int(match[1])) for entry, match in entries if match and entry.is_dir()]
    return sorted(there, key=lambda candidate: candidate.step, reverse=True)


def _job() -> str:
    return env.get(env.JOB) or "local"


def _job_of(path: Path) -> str:
    """Nothing where there is no seal that could be read."""
    try:
        held = seal.read(path)
    except (OSError, CheckpointError):
        return ""
    return held.job if held is not None else ""


def _obstacles(exact: Exact, loader: Any) -> list[str]:
    told: list[str] = []
    if not exact.derived:
        told.append("rng: stream: Accelerate does not bring back the order of a shuffled epoch; rng: derived does")
    if isinstance(getattr(loader, "dataset", None), torch.utils.data.IterableDataset):
        told.append("an iterable dataset is read from its beginning to where it was: slow, exact if it repeats itself")
    return told
