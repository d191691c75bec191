"""`model.eval()` of a model in training as the begin of an evaluation, `model.train()` as its end.

Most scripts say no more than that. A model is in training when more than half of what an optimizer steps lies in it; a
frozen teacher or a layer kept in evaluation mode is not. Optimizers that step, and frameworks, know better and win.
"""

from types import ModuleType
from typing import Any

from zrun.core.deck import Phase
from zrun.integrations.methods import Methods
from zrun.worker.rank import ThisRank
from zrun.worker.step_count import StepCount


def follow(module: ModuleType, rank: ThisRank, steps: StepCount) -> None:
    eval_mode = EvalMode(module.Module, rank, steps)
    Methods(rank, steps).hear(module.Module, "eval", after=eval_mode.entered)


class EvalMode:
    """Watches `Module.train` only while the model is in evaluation mode: it is called for each layer."""

    def __init__(self, kind: Any, rank: ThisRank, steps: StepCount) -> None:
        self._kind = kind
        self._rank = rank
        self._steps = steps
        self._watching = False

    def entered(self, model: Any) -> None:
        if self._rank.session or not self._steps.here() or self._rank.phase()[0] is not Phase.STEP:
            return
        if not self._trained(model):
            return
        self._rank.enter_phase(Phase.EVAL)
        self._steps.evaluating = True
        if not self._watching:
            self._watch_train()

    def _watch_train(self) -> None:
        original, self._watching = self._kind.train, True

        def train(model: Any, mode: bool = True) -> Any:
            if mode and (not self._steps.evaluating or self._trained(model)):
                self._kind.train, self._watching = original, False
                if self._steps.here():
                    self._steps.trains_again()
            return original(model, mode)

        self._kind.train = train

    def _trained(self, model: Any) -> bool:
        held = {id(parameter) for parameter in model.parameters()}
        return any(
            2 * sum(id(parameter) in held for parameter in parameters) > len(parameters)
            for parameters in self._steps.optimized()
        )
