"""Hears when the script has imported a module that one of our integrations follows, and only then loads that one.

It imports nothing by itself and finds no module: python's own finders do, and what they found is told to the
integration once it was executed. Every import that is not in the table costs a look into it.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from zrun.worker.rank import ThisRank
from zrun.worker.step_count import StepCount

FOLLOWED: Final = {
    "torch.serialization": "plain_torch",
    "torch.distributed.checkpoint.state_dict_saver": "plain_torch",
    "torch.utils.data.dataloader": "plain_torch",
    "torch.amp.grad_scaler": "plain_torch",
    "torch.nn.modules.module": "eval_mode",
    "safetensors.torch": "plain_torch",
    "transformers.trainer": "hf_trainer",
    "lightning.pytorch.trainer.trainer": "lightning",
    "pytorch_lightning.trainer.trainer": "lightning",
    "lightning.fabric.fabric": "lightning",
    "lightning_fabric.fabric": "lightning",
    "accelerate.accelerator": "accelerate",
}
"""Module of the script's -> file of zrun.integrations, whose `follow(module, rank, steps)` is called."""


class LateImports(MetaPathFinder):
    """Stands first in sys.meta_path, finds nothing itself."""

    def __init__(self, rank: ThisRank, steps: StepCount) -> None:
        self._rank = rank
        self._steps = steps
        self._searching: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in FOLLOWED or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = self._found(name, path, target)
        finally:
            self._searching.discard(name)
        if spec is not None and spec.loader is not None:
            try:
                self._hear_of(spec.loader)
            except (AttributeError, TypeError) as error:  # a loader of somebody's own making: then as without us
                self._rank.warn(f"{name} is not followed: {type(error).__name__}: {error}")
        return spec

    def _found(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                return spec
        return None

    def _hear_of(self, loader: Any) -> None:
        execute: Callable[[ModuleType], None] = loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            self.follow(module)

        loader.exec_module = executed

    def follow(self, module: ModuleType) -> None:
        """A framework that has changed its insides costs its own steps and phases, and nobody's training."""
        name = FOLLOWED[module.__name__]
        try:
            importlib.import_module(f"zrun.integrations.{name}").follow(module, self._rank, self._steps)
        except Exception as error:
            self._rank.warn(f"{module.__name__} is not followed: {type(error).__name__}: {error}")


def watch(rank: ThisRank, steps: StepCount) -> None:
    """From now on; what is imported already is followed at once."""
    late = LateImports(rank, steps)
    for name in FOLLOWED:
        module = sys.modules.get(name)
        if module is not None:
            late.follow(module)
    sys.meta_path.insert(0, late)
