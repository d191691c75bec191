"""accelerate.Accelerator: its saves as phases. Its steps are those of the optimizers it wraps, its evaluations those of
plain torch.
"""

from types import ModuleType

from zrun.core.deck import Phase
from zrun.integrations.accelerate_exact import STEPS, Resumable
from zrun.integrations.methods import Methods
from zrun.worker.rank import ThisRank
from zrun.worker.step_count import StepCount

__all__ = ["Resumable", "follow"]


def follow(module: ModuleType, rank: ThisRank, steps: StepCount) -> None:
    methods = Methods(rank, steps)
    setattr(module.Accelerator, STEPS, steps)
    for name in ("save_state", "save_model", "save"):
        methods.as_phase(module.Accelerator, name, Phase.SAVE)
