"""Lightning's Trainer (both names of the package) and Fabric: steps as it numbers them, validation, tests and saves as
phases.

A callback of ours stands first among the trainer's. With several optimizers Lightning's own step counts each of them.
"""

import importlib
import math
import sys
from types import ModuleType
from typing import Any

from zrun.core.deck import Phase
from zrun.integrations.methods import Methods
from zrun.worker.rank import ThisRank
from zrun.worker.step_count import StepCount


def follow(module: ModuleType, rank: ThisRank, steps: StepCount) -> None:
    methods = Methods(rank, steps)
    if module.__name__.endswith("fabric.fabric"):
        methods.as_phase(module.Fabric, "save", Phase.SAVE)
        return
    callback = _callback(module.Callback, rank, steps)
    methods.hear(module.Trainer, "__init__", after=lambda trainer, *_, **__: trainer.callbacks.insert(0, callback()))
    methods.as_phase(module.Trainer, "save_checkpoint", Phase.SAVE)


def _callback(plain: Any, rank: ThisRank, steps: StepCount) -> Any:
    class FollowedByZrun(plain):  # type: ignore[misc]
        """Tells the watchdog of zrun where this training is."""

        def __init__(self) -> None:
            super().__init__()
            self._before: list[tuple[Phase, str]] = []  # a sanity check runs a validation

        def __reduce__(self) -> Any:
            return plain, ()  # in another process there is nobody to tell

        def on_train_start(self, trainer: Any, *_: Any) -> None:
            steps.training(trainer.global_step, _total(trainer))

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            steps.begun(trainer.global_step + 1)

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            steps.completed(trainer.global_step)

        def on_train_end(self, *_: Any) -> None:
            steps.trained()

        def _enter(self, *_: Any) -> None:
            self._before.append(rank.phase())
            if steps.here():
                rank.enter_phase(Phase.EVAL)

        def _leave(self, *_: Any) -> None:
            before = self._before.pop()
            if steps.here():
                rank.enter_phase(*before)

        on_sanity_check_start = on_validation_start = on_test_start = on_predict_start = _enter
        on_sanity_check_end = on_validation_end = on_test_end = on_predict_end = _leave

    return FollowedByZrun


def _total(trainer: Any) -> int | None:
    """Steps of the whole training; None where there is no end, or where its step counts several optimizers."""
    if len(trainer.optimizers) != 1:
        return None
    total = trainer.estimated_stepping_batches
    return int(total) if math.isfinite(total) and total > 0 else None


def __getattr__(name: str) -> Any:
    """`ZrunCallback`, for whichever of the two packages the script has imported: only here do we need one of them."""
    if name != "ZrunCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from zrun.integrations.lightning_exact import made

    package = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    return made(importlib.import_module(package).Callback)
