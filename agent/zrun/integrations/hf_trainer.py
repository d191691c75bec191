"""transformers.Trainer and what is built on it: steps as it numbers them, evaluation, prediction and saves as phases.

It hears the events that Trainer gives its callbacks, so it stands in no list of callbacks that a script sees. A resume
from a checkpoint that was cut short becomes one from the newest whole one (hf.py).
"""

from types import ModuleType
from typing import Any

from zrun.core.deck import Phase
from zrun.integrations import hf
from zrun.integrations.methods import Methods
from zrun.worker.rank import ThisRank
from zrun.worker.step_count import StepCount


def follow(module: ModuleType, rank: ThisRank, steps: StepCount) -> None:
    methods = Methods(rank, steps)
    hf.follow(module.Trainer)
    trainer, events = module.Trainer, module.CallbackHandler

    def begin(trainer: Any, *_: Any, **__: Any) -> None:
        steps.begun(trainer.state.global_step + 1)

    def training(_: Any, __: Any, state: Any, *___: Any, **____: Any) -> None:
        steps.training(state.global_step, state.max_steps)

    def begun(_: Any, __: Any, state: Any, *___: Any, **____: Any) -> None:
        steps.begun(state.global_step + 1)

    def completed(_: Any, __: Any, state: Any, *___: Any, **____: Any) -> None:
        steps.completed(state.global_step)

    def moved(*_: Any, **__: Any) -> None:
        rank.progressed()

    methods.hear(trainer, "get_batch_samples", before=begin)  # reads the batches of one step
    methods.hear(events, "on_train_begin", after=training)
    methods.hear(events, "on_step_begin", before=begun)
    methods.hear(events, "on_step_end", before=completed)
    methods.hear(events, "on_substep_end", before=moved)
    methods.hear(events, "on_prediction_step", before=moved)
    methods.hear(events, "on_train_end", after=lambda *_, **__: steps.trained())
    for name in ("_evaluate", "evaluate", "predict"):
        methods.as_phase(trainer, name, Phase.EVAL)
    for name in ("_save_checkpoint", "save_model"):
        methods.as_phase(trainer, name, Phase.SAVE)
    methods.as_phase(trainer, "_load_best_model", Phase.OWN, "load best model")
    methods.as_phase(trainer, "push_to_hub", Phase.OWN, "push to hub")
