"""`zrun.integrations.lightning.ZrunCallback()` for Lightning's Trainer (both names of the package): exact resume from
the newest of its own checkpoints that is whole, in the middle of an epoch too, and a stop or save at one step of all
ranks.

    trainer = Trainer(…, callbacks=[ZrunCallback(), ModelCheckpoint(every_n_train_steps=500, save_top_k=2, …)])
    trainer.fit(model, data)

It imports no framework: `made` takes the class that a Lightning callback is of.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from zrun.core import env, seal
from zrun.integrations import lightning_checkpoints
from zrun.integrations.choice import Chosen, choose, put_aside, refuse_if_none
from zrun.integrations.exact import Exact, ddp_of

_WAY_OUT: Final = "name one with fit(ckpt_path=PATH), or move them away to start anew"


class Fit:
    """One call of Trainer.fit on one rank. What it changes, it changes on this trainer alone, until `end`."""

    def __init__(self, trainer: Any, seed: int) -> None:
        self.trainer = trainer
        self.exact = Exact()
        self._seed = seed
        self._chosen = Chosen(None)
        self._steps_done = 0
        self._put_back: list[tuple[Any, str]] = []
        self._around(trainer, "save_checkpoint", self._save)
        self._around(trainer._checkpoint_connector, "resume_start", self._resume)  # noqa: SLF001 - none has another name
        self._around(trainer.fit_loop, "setup_data", self._set_up_data)
        self._around(trainer.fit_loop.epoch_loop, "on_run_start", self._begin_epoch)

    def _around(self, owner: Any, method: str, instead: Callable[..., Any]) -> None:
        setattr(owner, method, functools.partial(instead, getattr(owner, method)))
        self._put_back.append((owner, method))

    def end(self) -> None:
        for owner, method in self._put_back:
            vars(owner).pop(method, None)
        self._put_back = []
        self.exact.end()

    # Where it goes on

    def _resume(self, original: Callable[..., Any], checkpoint_path: Any = None, *given: Any, **named: Any) -> Any:
        self._chosen = self._choose(checkpoint_path)
        self.exact.take_seed(self._chosen, self._seed)
        if self.exact.number == 0:
            for text in put_aside(self._chosen):
                self.exact.here.warn(text)
        self.exact.arrived()
        path = self._chosen.path
        return original(str(path) if path is not None else None, *given, **named)

    def _choose(self, wanted: Any) -> Chosen:
        exact = self.exact
        wanted = exact.agreement.from_first(str(wanted) if wanted else None)
        if exact.here.settings.resume == "never" and not wanted:
            return Chosen(None)
        places = lightning_checkpoints.places(self.trainer)
        ask = functools.partial(
            choose, lacking=lightning_checkpoints.lacking, agreement=exact.agreement, reader=self._writer()
        )
        job = env.get(env.JOB)
        own = ask(lightning_checkpoints.found(places), job=job) if job else Chosen(None)
        if own.path is not None or not wanted:
            refuse_if_none(own, places[0] if places else Path(), _WAY_OUT)
            return own
        named = Path(wanted).absolute()
        inside = named.resolve().parent in {place.resolve() for place in places}
        chosen = ask(lightning_checkpoints.found(places) if inside else [lightning_checkpoints.single(named)], job=None)
        refuse_if_none(chosen, named, "name another one with fit(ckpt_path=PATH)")
        return chosen

    def _writer(self) -> bool:
        return bool(self.trainer.is_global_zero)

    # Where in the data

    def _epoch(self) -> int:
        return int(self.trainer.fit_loop.epoch_progress.current.processed)

    def _set_up_data(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """By itself Lightning begins a DataLoader without a state anew; with workers, in the order of epoch 0."""
        loop = self.trainer.fit_loop
        first = loop._combined_loader is None  # noqa: SLF001
        self.exact.begin_epoch(self._epoch())
        result = original(*given, **named)
        done, fetcher = self._batches_done(), loop._data_fetcher  # noqa: SLF001
        if not first or fetcher is None or not (done or self._epoch()):
            return result
        loaders = loop._combined_loader.flattened  # noqa: SLF001
        for text in lightning_checkpoints.obstacles(loaders, done):
            self.exact.tell(text)
        stateful = all(lightning_checkpoints.is_stateful(loader) for loader in loaders)
        if not stateful:
            loop._combined_loader.reset()  # noqa: SLF001
            lightning_checkpoints.begin_order(loaders, self._epoch())
            self.exact.begin_epoch(self._epoch())
            with self.exact.skipping(done):
                iter(fetcher)
        return result

    def _batches_done(self) -> int:
        """Of the epoch that a resumed run is in the middle of."""
        loop = self.trainer.fit_loop
        if not loop.restarting:
            return 0
        done = int(loop.epoch_loop.batch_progress.current.processed)
        return done if done < loop.max_batches else 0

    def _begin_epoch(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Before and after the iterator is made, so that a resumed epoch, whose was made earlier, draws the same."""
        self.exact.begin_epoch(self._epoch())
        result = original(*given, **named)
        self.exact.begin_epoch(self._epoch())
        return result

    # Steps

    def train_begins(self) -> None:
        trainer, exact = self.trainer, self.exact
        exact.begin(self._chosen, ddp_of(trainer.strategy.model))
        exact.note(self._chosen, trainer.global_step, None)
        self._steps_done = trainer.global_step

    def batch_begins(self, index: int) -> None:
        self.exact.at_top()
        self.exact.begin_step((self._epoch() << 32) + index + 1)

    def batch_ends(self) -> None:
        trainer = self.trainer
        if trainer.global_step in {self._steps_done, trainer.max_steps}:
            return  # a part of a step; and whoever has done everything ends by itself
        self._steps_done = trainer.global_step
        if self.exact.at_bottom():
            places = lightning_checkpoints.places(trainer) or [Path(trainer.default_root_dir)]
            trainer.save_checkpoint(places[0] / lightning_checkpoints.own_name(trainer.global_step))

    def _save(
        self, original: Callable[..., Any], filepath: Any, weights_only: Any = None, *given: Any, **named: Any
    ) -> Any:
        begun = time.monotonic()
        result = original(filepath, weights_only, *given, **named)
        if not weights_only and "://" not in str(filepath):
            self.exact.saved(Path(filepath).absolute(), self.trainer.global_step, writer=self._writer(), begun=begun)
            if self._writer():
                seal.forget_orphans(Path(filepath).parent)
        return result


@functools.cache
def made(plain: Any) -> Any:
    """The callback's class for one of the two packages."""

    class ZrunCallback(plain):  # type: ignore[misc]
        """Exact resume, verified checkpoints, a stop at one step of all ranks."""

        def __init__(self) -> None:
            super().__init__()
            self._fit: Fit | None = None

        def __reduce__(self) -> Any:
            return _again, (plain,)

        def setup(self, trainer: Any, *_: Any, stage: str | None = None, **__: Any) -> None:
            import torch

            if stage == "fit":
                self._fit = Fit(trainer, torch.initial_seed())

        def on_train_start(self, *_: Any) -> None:
            if self._fit is not None:
                self._fit.train_begins()

        def on_train_batch_start(self, _: Any, __: Any, ___: Any, batch_idx: int, *____: Any) -> None:
            if self._fit is not None:
                self._fit.batch_begins(batch_idx)

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            if self._fit is not None:
                self._fit.batch_ends()

        def on_fit_end(self, *_: Any) -> None:
            if self._fit is not None:
                self._fit.end()
                self._fit = None

        def on_exception(self, *_: Any) -> None:
            self.on_fit_end()

    return ZrunCallback


def _again(plain: Any) -> Any:
    return made(plain)()
