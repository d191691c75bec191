"""Session: what a training script wraps around its loop. It restores, counts steps, names batches, saves on cadence and
answers stop requests at a step all ranks stand at. Without an agent it is harmless.

It knows nothing about how state becomes files (zrun.state) nor about which samples make a batch (zrun.data).
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any, Final, Self

from zrun.core.deck import Flag, Phase, StopKind
from zrun.core.errors import UsageError
from zrun.core.notes import NoteKind
from zrun.data.loader import Loader, Share
from zrun.state import rng
from zrun.state.parts import Parts
from zrun.state.progress import Progress
from zrun.state.streams import Streams
from zrun.worker import last_words, replay
from zrun.worker.feeding import Feeding
from zrun.worker.groups import ensure_group, strategy_of
from zrun.worker.losses import Losses
from zrun.worker.memory import Memory
from zrun.worker.rank import this_rank
from zrun.worker.saving import Saving
from zrun.worker.stops import Stops

_OVER: Final = object()
"""Instead of a batch: the data is over."""
_PHASES: Final = {"eval": Phase.EVAL, "save": Phase.SAVE, "setup": Phase.SETUP, "exit": Phase.EXIT}


class Session:
    """`with Session(model=…, optimizer=…, scheduler=…, scaler=…, data=loader, ema=…) as run:`.

    Single objects, lists or dicts; further keywords are modules or anything with state_dict and load_state_dict.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, scheduler: Any = None, scaler: Any = None,
                 data: Loader | None = None, **extras: Any) -> None:  # fmt: skip
        if data is not None and not isinstance(data, Loader):
            raise UsageError(
                f"data is a {type(data).__qualname__}", "hand over a zrun.worker.Loader, or nothing and use your own"
            )
        self.state: dict[str, Any] = {}
        """The script's own JSON-able values: saved and restored with everything else."""
        self._given = (model, optimizer, scheduler, scaler, extras)
        self._loader = data
        self._here = this_rank()
        self._stops = Stops(self._here)
        self._number = self._world_size = 0
        self._saving: Saving | None = None
        self._memory: Memory | None = None
        self._strategy = ""
        self._parts: Parts | None = None
        self._step = 0
        self._share: Share | None = None
        self._weight = 1.0
        self._save_asked = False
        self._in_loop = False
        self._entered_loop = False
        self._replay = replay.asked()
        self._feeding: Feeding | None = None
        self._losses: Losses | None = None
        self._metrics: dict[str, Any] = {}

    @property
    def step(self) -> int:
        """The step being done, from 1; before the loop the last one restored, after it the last one done."""
        return self._step

    @property
    def batch_id(self) -> str | None:
        """The name of the global batch being worked on; None without a Loader."""
        return str(self._share.batch_id) if self._share is not None else None

    @property
    def weight(self) -> float:
        """Multiply a part's mean loss by this: gradients averaged over ranks are then the exact mean."""
        return self._weight

    @property
    def stop_requested(self) -> bool:
        """All ranks are asked to stop. For inner loops; the stop itself comes at a step's end, on all ranks."""
        return self._stops.requested()

    def __enter__(self) -> Self:
        here = self._here
        model, optimizer, scheduler, scaler, extras = self._given
        self._number, self._world_size = ensure_group(here.rank, here.world_size, model)
        here.session = True
        here.raise_flag(Flag.SESSION)
        streams = Streams(here.settings.seed, self._number) if here.settings.rng == "stream" else None
        self._parts = parts = Parts(model, optimizer, scheduler, scaler, extras, streams)
        self._saving = Saving(here, parts, self._number, self._world_size, here.settings.seed)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and last_words.is_failure(error):
            # The script's own cleanup may take long: say it now. Final it is only when it leaves the script.
            last_words.leave(self._here, error, final=False)
            if self._memory is not None:
                self._memory.leave()
            if self._saving is not None:
                self._saving.abandon()
        elif self._saving is not None:
            self._saving.finish()
            if self._memory is not None:
                self._memory.finish()
            if self._here.trace is not None and self._parts is not None:
                self._here.trace.ended(self._step, *self._parts.flatten())
        self._here.enter_phase(Phase.EXIT)

    def steps(self, total: int | None = None) -> Iterator[Any]:
        """This rank's share of one global batch for each optimizer step, from where the last attempt stopped.

        `total` counts from the run's beginning; without it the loop ends with the data (`Loader(epochs=…)`, or a stream
        that is over), on all ranks after the same step. Without a Loader it yields the step's number.
        """
        if self._saving is None:
            raise UsageError("steps() is for the inside of `with Session(…) as run:`")
        if self._entered_loop:
            raise UsageError("steps() may be entered once in a Session")
        self._entered_loop = self._in_loop = True
        self._restore(total)
        shares = iter(self._loader) if self._loader is not None else None
        try:
            while total is None or self._step < total:
                began_at = time.monotonic()
                given = self._top(self._step + 1, shares)
                if given is _OVER:
                    self._data_over()
                    return
                if self._replay is not None:
                    self._replay.hand_over(sys._getframe(1), self._step, self._samples())  # noqa: SLF001
                yield given
                if self._replay is not None:
                    raise SystemExit(0)
                self._bottom(began_at, total)
        finally:
            self._in_loop = False
            if shares is not None:
                shares.close()  # type: ignore[attr-defined]

    def _restore(self, total: int | None) -> None:
        saving, here, loader = self._saving, self._here, self._loader
        assert saving is not None
        if here.deck is not None and total is not None:
            here.deck.set_total(total)
        model, optimizer, *_ = self._given
        self._strategy = strategy_of(model, optimizer)
        saving.fingerprint = {"seed": here.settings.seed, "total_steps": total, "rng": here.settings.rng}
        if self._number == 0 and self._parts is not None:
            for obstacle in self._parts.obstacles():
                here.warn(obstacle)
        if loader is not None:
            self._feeding = Feeding(here, loader, self._number)
            saving.fingerprint |= self._feeding.attach(self._world_size)
        if self._replay is not None:
            self._step = self._replay.seek(loader, here.settings.quarantined)
            return
        if here.settings.on_bad_loss != "off":
            self._losses = Losses(here, self._number, self._world_size)
        progress = saving.restore(total)
        if progress is not None:
            self._step = progress.step
            self.state.clear()
            self.state.update(progress.run_state)
        if self._feeding is not None:
            self._feeding.seek(progress)
        if progress is None:
            saving.initial(self._progress())
        self._memory = saving.memory()
        self._keep()
        here.enter_phase(Phase.FIRST_STEP)

    def _progress(self, cursor: dict[str, Any] | None = None) -> Progress:
        feeding = self._feeding
        if cursor is None:
            cursor = feeding.cursor() if feeding is not None else {}
        return Progress(
            step=self._step, cursor=cursor, batch=self.batch_id,
            run_state=dict(self.state), quarantined=feeding.skipped if feeding is not None else [],
            strategy=self._strategy,
        )  # fmt: skip

    def _top(self, step: int, shares: Iterator[Share] | None) -> Any:
        """Say which step and batch begins before reading it, so that a batch that kills its reader has a name."""
        here = self._here
        upcoming = self._loader.upcoming() if self._loader is not None else None
        if shares is not None and upcoming is None:
            return _OVER
        here.begin_step(step, upcoming, time.time())
        self._stops.at_top(step)
        self._step = step
        self._weight = 1.0
        own_streams = here.settings.rng == "stream"
        given: Any = step
        if shares is not None and self._feeding is not None:
            here.raise_flag(Flag.IN_LOADER)
            if here.faults is not None and upcoming is not None:
                here.faults.reading(step, upcoming)
            # A Loader without workers seeds this process for each sample: no business of the script's own streams.
            with rng.untouched() if own_streams else nullcontext():
                share = self._feeding.next(shares, step)
            here.lower_flag(Flag.IN_LOADER)
            if share is None:
                self._step = step - 1
                return _OVER
            if share.batch_id != upcoming:  # where a stream's epoch ends its next name is a guess
                here.begin_step(step, share.batch_id, time.time())
            self._share = share
            self._weight = share.weight
            given = share.data
        if not own_streams:
            rng.seed_step(here.settings.seed, self._number, step)
        return given

    def _keep(self) -> None:
        """What the model and the optimizers hold is the state after the step just done."""
        feeding = self._feeding
        if self._memory is not None:
            self._memory.step_done(self._progress({}), feeding.cursor_later() if feeding is not None else dict)

    def _samples(self) -> int:
        return self._share.samples if self._share is not None else 0

    def _data_over(self) -> None:
        """The last step is done, which nobody knew: save it."""
        assert self._saving is not None
        self._saving.save_now(self._progress())

    def _bottom(self, began_at: float, total: int | None) -> None:
        here, saving, step = self._here, self._saving, self._step
        assert saving is not None
        if self._losses is not None:
            self._losses.check(step)  # before anything of this step is counted or saved
        if here.phase()[0] is Phase.FIRST_STEP:
            here.enter_phase(Phase.STEP)
        here.complete_step(step, time.monotonic() - began_at)
        last = total is not None and step >= total
        if not last:
            self._keep()  # before a save, which waits for ranks that may be dead by now
        # A rank that has done everything ends by itself: that is better than a stop.
        asked = StopKind.NONE if last else self._stops.at_bottom(step)
        due = saving.due(step) or self._save_asked or asked is StopKind.SAVE
        self._save_asked = False
        saved = False
        if last or asked is StopKind.STOP:
            saved = saving.save_now(self._progress())
        elif due:
            saving.save(self._progress())
        if asked is StopKind.STOP:
            here.note(NoteKind.STOPPED_AT, step=step, saved=saved)
            here.raise_flag(Flag.STOPPED_SAFE)
            raise SystemExit(0)

    def micro(self, batch: Any) -> Iterator[Any]:
        """The parts of `batch`, as many on every rank, with `weight` set for each; without micro_batch one part."""
        share = self._share
        if share is None or len(share.parts) == 1:
            yield batch[0] if share is not None and batch is share.parts else batch
            return
        if not isinstance(batch, list) or len(batch) != len(share.parts):
            raise UsageError("micro() takes the batch that steps() gave")
        whole = self._weight
        try:
            for part, weight in zip(batch, share.part_weights, strict=True):
                self._weight = weight
                yield part
                self._here.progressed()
        finally:
            self._weight = whole

    def report(self, **metrics: Any) -> None:
        """Numbers for the progress line and the page; tensors of one element are taken as numbers.

        `loss` is what `data.on_bad_loss` looks at.
        """
        if self._here.deck is None and self._losses is None:
            return
        taken = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
        if self._losses is not None:
            self._losses.heard(taken)
        if self._here.trace is not None:
            self._here.trace.heard(taken)
        if self._here.deck is not None:
            self._metrics |= taken
            self._here.deck.put_metrics(self._metrics)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """`eval`, `save`, or a name of the script's own: it has a time limit of its own."""
        before = self._here.phase()
        known = _PHASES.get(name, Phase.OWN)
        self._here.enter_phase(known, name if known is Phase.OWN else "")
        try:
            yield
        except BaseException as error:  # passed on: should it end the script, it was raised in here
            last_words.raised_in(self._here, error)
            raise
        finally:
            self._here.enter_phase(*before)

    def save(self) -> None:
        """Save at the end of this step, while training goes on. Outside the loop: now, and wait until it is on disk.

        Call it on every rank.
        """
        if self._saving is None or self._in_loop:
            self._save_asked = True
        else:
            self._saving.save_now(self._progress())
