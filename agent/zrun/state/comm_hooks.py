"""Communication hooks of a DDP: which of them keep all ranks equal, and the state that some have of their own.

PowerSGD's state and whatever has state_dict() and load_state_dict() is saved and restored; any other is told. Knows
nothing about files.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_AVERAGING: Final = "torch.distributed.algorithms.ddp_comm_hooks."
"""Hooks from here leave the same gradient on every rank, but for those named below."""
_NOT_AVERAGING: Final = ("post_localSGD", "debugging")
_POWER_SGD: Final = "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.PowerSGDState"
_COUNTERS: Final = ("iter", "total_numel_before_compression", "total_numel_after_compression", "next_stats_report")
_MEMORIES: Final = ("p_memory_dict", "q_memory_dict")


def keeps_equal(ddp: DistributedDataParallel) -> bool:
    """Does every rank get the same gradients? Not known of hooks that are not torch's."""
    return all(
        module.startswith(_AVERAGING) and not any(kind in module for kind in _NOT_AVERAGING)
        for hook, _ in ddp._comm_hooks  # noqa: SLF001 - it has no public name
        for module in _modules(hook)
    )


def _modules(hook: Any) -> list[str]:
    """Where a hook was written, and the one it wraps (fp16_compress_wrapper holds it in its closure)."""
    cells = [cell.cell_contents for cell in getattr(hook, "__closure__", None) or ()]
    return [str(getattr(found, "__module__", "")) for found in (hook, *cells) if callable(found)]


def states(ddp: DistributedDataParallel) -> list[Any]:
    """The states that can be saved, in the order of their hooks."""
    return [state for _, state in ddp._comm_hooks if _kind(state) in {"power", "own"}]  # noqa: SLF001


def unknown_state(ddp: DistributedDataParallel) -> str | None:
    """The class of a state that nobody here can save; None if there is none."""
    found = [type(state).__qualname__ for _, state in ddp._comm_hooks if _kind(state) == "unknown"]  # noqa: SLF001
    return found[0] if found else None


def _kind(state: Any) -> str:
    if state is None or isinstance(state, dist.ProcessGroup):
        return "none"
    if f"{type(state).__module__}.{type(state).__qualname__}" == _POWER_SGD:
        return "power"
    return "own" if hasattr(state, "state_dict") and hasattr(state, "load_state_dict") else "unknown"


def state_of(state: Any) -> Any:
    """One hook's state as plain values and tensors."""
    if _kind(state) == "own":
        return state.state_dict()
    kind, keys, *rest = state.rng.get_state()
    held: dict[str, Any] = {name: getattr(state, name) for name in _COUNTERS}
    held |= {name: dict(getattr(state, name)) for name in (*_MEMORIES, "error_dict")}
    return held | {"rng": [kind, [int(key) for key in keys], *(int(rest[0]), int(rest[1]), float(rest[2]))]}


def restore(state: Any, held: Mapping[str, Any], *, same_world: bool) -> None:
    """Put back what `state_of` gave. What each rank still owed its gradients has no owner at another world size."""
    if _kind(state) == "own":
        state.load_state_dict(held)
        return
    for name in _COUNTERS:
        setattr(state, name, held[name])
    state.rng.set_state(tuple(held["rng"]))
    for name in _MEMORIES:
        setattr(state, name, dict(held[name]))
    state.error_dict = dict(held["error_dict"]) if same_world else {}
