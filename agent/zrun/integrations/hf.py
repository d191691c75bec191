"""`zrun.integrations.hf.ZrunCallback()` for transformers' Trainer: exact resume from Trainer's own newest checkpoint
that is whole, and a stop or save at one step of all ranks when zrun is asked for it.

    trainer = Trainer(…, callbacks=[ZrunCallback()])
    trainer.train()

It imports no framework: it takes the events that Trainer gives its callbacks, and finds what each checkpoint must hold
in hf_checkpoints.py.
"""

import functools
import importlib
import time
from pathlib import Path
from typing import Any, Final

from zrun.core import env
from zrun.core.errors import CheckpointError
from zrun.integrations import hf_checkpoints
from zrun.integrations.choice import Chosen, choose, put_aside, refuse_if_none
from zrun.integrations.exact import Exact, ddp_of
from zrun.worker.rank import this_rank

_OURS: Final = "_zrun_resumes"
_LOGGED: Final = ("_tr_loss", "_globalstep_last_logged")
_WAY_OUT: Final = "name one with resume_from_checkpoint=PATH, or move them away to start anew"


class ZrunCallback:
    """One for each Trainer. Without zrun it makes a resume exact all the same; stops and saves on demand need zrun."""

    def __init__(self) -> None:
        follow(importlib.import_module("transformers.trainer").Trainer)
        self._trainer: Any = None
        self._exact: Exact | None = None
        self._chosen = Chosen(None)
        self._save_began = 0.0

    def __getattr__(self, name: str) -> Any:
        """Trainer calls each of its events on each callback; those that are not here mean nothing to us."""
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> Any:
        return type(self), ()

    # Where it goes on

    def _resume(self, trainer: Any, wanted: Any) -> Any:
        """What Trainer.train is to get for `resume_from_checkpoint`."""
        self._trainer, self._exact = trainer, Exact()
        self._chosen = self._choose(self._exact, trainer.args, wanted)
        path = self._chosen.path
        if self._exact.number == 0:
            for text in put_aside(self._chosen):
                self._exact.here.warn(text)
        self._exact.arrived()
        if path is None:
            return None
        if any(callable(getattr(callback, "state", None)) for callback in trainer.callback_handler.callbacks):
            # Else EarlyStopping forgets how long it has been patient.
            trainer.args.restore_callback_states_from_checkpoint = True
        return str(path)

    def _choose(self, exact: Exact, args: Any, wanted: Any) -> Chosen:
        wanted = exact.agreement.from_first(wanted)  # each rank may have looked at another moment
        output = Path(args.output_dir).absolute()
        named = Path(wanted).absolute() if isinstance(wanted, str) else None
        resume = exact.here.settings.resume
        if wanted is False or (resume == "never" and not wanted):
            return Chosen(None)
        ask = functools.partial(
            choose, lacking=functools.partial(hf_checkpoints.lacking, world_size=exact.world_size),
            agreement=exact.agreement, reader=args.should_save,
        )  # fmt: skip
        job = env.get(env.JOB)
        own = ask(hf_checkpoints.found(output), job=job) if job else Chosen(None)
        if own.path is not None or not wanted:
            refuse_if_none(own, output, _WAY_OUT)
            return own
        if named is not None and named.resolve().parent != output.resolve():
            chosen = ask([hf_checkpoints.single(named)], job=None)
            refuse_if_none(chosen, named, "name another one with resume_from_checkpoint=PATH")
            return chosen
        chosen = ask(hf_checkpoints.found(output), job=None)
        refuse_if_none(chosen, output, _WAY_OUT)
        return chosen

    def _begin_saves(self, trainer: Any) -> None:
        """On this trainer alone: no rank goes on to remove older checkpoints before all have written their part."""
        exact, writes_rng, writes = self._exact, trainer._save_rng_state, trainer._save_checkpoint  # noqa: SLF001

        def save_rng_state(*given: Any, **named: Any) -> None:
            writes_rng(*given, **named)
            if exact is not None:
                exact.arrived()

        def save_checkpoint(*given: Any, **named: Any) -> None:
            self._save_began = time.monotonic()
            writes(*given, **named)

        trainer._save_rng_state, trainer._save_checkpoint = save_rng_state, save_checkpoint  # noqa: SLF001

    def _end_saves(self, trainer: Any) -> None:
        for name in ("_save_rng_state", "_save_checkpoint"):
            vars(trainer).pop(name, None)

    # Trainer's events

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - their signature
        trainer, exact = self._trainer, self._exact
        if trainer is None or exact is None:
            raise CheckpointError(
                "ZrunCallback was not there when train() began", hint="hand it over with Trainer(callbacks=[…])"
            )
        exact.take_seed(self._chosen, args.seed)
        facts = exact.begin(self._chosen, ddp_of(trainer.model_wrapped))
        for text in hf_checkpoints.obstacles(args, trainer.train_dataset):
            exact.tell(text)
        exact.note(self._chosen, state.global_step, state.max_steps)
        self._restore_logged(trainer, facts)

    def _restore_logged(self, trainer: Any, facts: dict[str, Any]) -> None:
        """The loss since the last line of the log: else the next line tells the mean of fewer steps."""
        exact, held = self._exact, facts.get("ranks", [])
        if exact is None or len(held) != exact.world_size or not all(hasattr(trainer, name) for name in _LOGGED):
            return
        loss, logged = held[exact.number]
        trainer._tr_loss += loss  # noqa: SLF001 - they have no public names
        trainer._globalstep_last_logged = logged  # noqa: SLF001
        # The mean over this call, which Trainer tells at the end, begins here all the same.
        trainer._total_loss_scalar -= sum(loss for loss, _ in held) / len(held)  # noqa: SLF001

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:  # noqa: ARG002
        if self._exact is not None:
            self._exact.begin_epoch(int((state.epoch or 0) + 1e-6), named.get("train_dataloader"))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._exact is not None:
            self._exact.at_top()
            self._exact.begin_step(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        # Whoever has done everything ends by itself: that is better than a stop.
        if self._exact is not None and state.global_step < state.max_steps and self._exact.at_bottom():
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._exact is None or self._trainer is None:
            return
        folder = Path(args.output_dir).absolute() / f"{hf_checkpoints.PREFIX}-{state.global_step}"
        own = [float(self._trainer._tr_loss), self._trainer._globalstep_last_logged] if self._logs() else None  # noqa: SLF001
        writer = args.should_save and not getattr(args, "save_only_model", False)
        self._exact.saved(folder, state.global_step, own, writer=writer, begun=self._save_began)

    def _logs(self) -> bool:
        return all(hasattr(self._trainer, name) for name in _LOGGED)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if self._exact is not None:
            self._exact.end()


def _whole(args: Any, wanted: Any) -> Any:
    """Without our callback: what the script wants, unless that was cut short and an older one in its folder was not."""
    here, output = this_rank(), Path(args.output_dir).absolute()
    if here.deck is None or not wanted or (isinstance(wanted, str) and Path(wanted).absolute().parent != output):
        return wanted
    limit = hf_checkpoints.single(Path(wanted)).step if isinstance(wanted, str) else None
    chosen, reasons = hf_checkpoints.newest_whole(output, args.world_size, limit)
    if chosen is None or not reasons:
        return wanted
    if here.rank == 0:
        here.warn(f"{'; '.join(reasons)}: Trainer goes on from {chosen.name}")
    return str(chosen)


def _nothing(*_: Any, **__: Any) -> None:
    pass


def follow(trainer: Any) -> None:
    """`Trainer.train` asks a ZrunCallback among its callbacks where to go on, and looks for itself where there is none.

    Once for each process.
    """
    original = trainer.train
    if hasattr(original, _OURS):
        return

    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *given: Any, **named: Any) -> Any:
        ours = next((c for c in self.callback_handler.callbacks if isinstance(c, ZrunCallback)), None)
        if ours is None:
            return original(self, _whole(self.args, resume_from_checkpoint), *given, **named)
        self.callback_handler.callbacks.remove(ours)  # the last one: others may still write into a checkpoint
        self.callback_handler.callbacks.append(ours)
        resume = ours._resume(self, resume_from_checkpoint)  # noqa: SLF001 - this is its other half
        ours._begin_saves(self)  # noqa: SLF001
        try:
            return original(self, resume, *given, **named)
        finally:
            ours._end_saves(self)  # noqa: SLF001

    setattr(train, _OURS, True)
    trainer.train = train
