"""What torch itself tells of a script without a framework: saves, batches being read, steps that GradScaler skips.

It knows nothing about evaluation (eval_mode.py) nor about which optimizer steps make a step (step_count.py).
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from zrun.core.deck import Flag, Phase
from zrun.integrations.methods import Methods
from zrun.worker.rank import ThisRank
from zrun.worker.step_count import StepCount


def follow(module: ModuleType, rank: ThisRank, steps: StepCount) -> None:
    methods = Methods(rank, steps)
    match module.__name__:
        case "torch.serialization":
            methods.as_phase(module, "save", Phase.SAVE)
            torch.save = module.save
        case "torch.distributed.checkpoint.state_dict_saver":
            for name in ("save", "save_state_dict", "async_save"):
                methods.as_phase(module, name, Phase.SAVE)
        case "safetensors.torch":
            for name in ("save_file", "save_model"):
                methods.as_phase(module, name, Phase.SAVE)
        case "torch.utils.data.dataloader":
            methods.around(module._BaseDataLoaderIter, "__next__", functools.partial(_read, rank, steps))  # noqa: SLF001
        case "torch.amp.grad_scaler":
            methods.around(module.GradScaler, "step", functools.partial(_scaled, steps))


def _read(rank: ThisRank, steps: StepCount, original: Callable[[Any], Any], batches: Any) -> Any:
    """A batch that was read is progress; while it is not there yet, the rank waits for its loader."""
    if rank.session or not steps.here():
        return original(batches)
    rank.raise_flag(Flag.IN_LOADER)
    try:
        return original(batches)
    finally:
        rank.lower_flag(Flag.IN_LOADER)
        rank.progressed()


def _scaled(
    steps: StepCount, original: Callable[..., Any], scaler: Any, optimizer: Any, *more: Any, **named: Any
) -> Any:
    """A step that is skipped because gradients overflowed is a step."""
    calls = steps.calls
    result = original(scaler, optimizer, *more, **named)
    if steps.calls == calls and scaler.is_enabled():
        steps.after(optimizer)
    return result
