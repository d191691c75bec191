"""Will the checkpoints find room? Asked before the first step, when the first save may be an hour of training away.

What is needed is the size of the newest checkpoint there is, else an estimate from the state: before its first step an
optimizer holds nothing yet. Sees one rank's state: of a pipeline only its own stage, so it may say too little.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.optim import Optimizer

from zrun.core import storage
from zrun.core.manifest import scan
from zrun.core.place import Place
from zrun.state.disk_errors import DiskFullError, too_little
from zrun.state.optimizer import kind_of
from zrun.state.parts import Parts

_KEPT_PER_PARAMETER: Final = {
    "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "SparseAdam": 2, "Adadelta": 2, "Rprop": 2,
    "Adagrad": 1, "Lion": 1, "Muon": 1, "ASGD": 1,
}  # fmt: skip
"""Tensors of a parameter's own size that an optimizer keeps after its first step; two for one that is not known."""


@dataclass(frozen=True, slots=True)
class Retention:
    """As the job's checkpoint.keep and its steps have it; None where there is no such number."""

    last: int
    every: int | None = None
    total_steps: int | None = None

    @property
    def copies(self) -> int:
        """The most there will be at once: the oldest goes only after the newest is there."""
        rounds = self.total_steps // self.every if self.every and self.total_steps else 0
        return max(1, self.last) + 1 + max(0, rounds - max(1, self.last))


@dataclass(frozen=True, slots=True)
class Outlook:
    """Bytes: of one checkpoint, that may still be written (-1: nobody can say), in checkpoints that are there now."""

    directory: Place
    needed: int
    free: int
    held: int
    copies: int

    def refusal(self) -> DiskFullError | None:
        """Why not even one fits."""
        fits = not 0 <= self.free < self.needed
        return None if fits else too_little(self.directory, self.needed, self.free)

    def warning(self) -> str:
        """Why checkpoint.keep will not fit, or nothing."""
        wanted = self.needed * self.copies
        if self.free < 0 or wanted <= self.free + self.held:
            return ""
        held = f" beside {self.held} bytes of checkpoints" if self.held else ""
        return (
            f"checkpoint.keep will not fit: about {wanted} bytes needed for {self.copies} checkpoints of {self.needed} "
            f"bytes in {self.directory}, {self.free} bytes free{held}; lower it, or make room"
        )


def check(parts: Parts, directory: Place, retention: Retention, *, resumed: bool, warn: Callable[[str], None]) -> None:
    """On one rank, before the first step. DiskFullError if a run that begins cannot save even once.

    One that has come so far already goes on, warned: its saves fail loudly, and somebody may make room meanwhile.
    """
    found = look(parts, directory, retention)
    refused = found.refusal()
    if refused is not None and not resumed:
        raise refused
    if refused is not None:
        warn(f"{refused}: {refused.hint}")
    elif found.warning():
        warn(found.warning())


def look(parts: Parts, directory: Place, retention: Retention) -> Outlook:
    """Raises nothing: what cannot be read is not there."""
    try:
        sizes = [f.manifest.bytes for f in scan(directory) if f.state == "complete" and f.manifest]
    except OSError:
        sizes = []
    needed = sizes[0] if sizes else estimate(parts)
    return Outlook(directory, needed, storage.of(directory).free_bytes(directory), sum(sizes), retention.copies)


def estimate(parts: Parts) -> int:
    """Bytes of the state once every optimizer has made its first step; whole tensors, however they are sharded."""
    seen: dict[int, int] = {}
    for model in parts.models.values():
        for tensor in (*model.parameters(), *model.buffers()):
            seen[id(tensor)] = _bytes(tensor)
    return sum(seen.values()) + sum(_of_optimizer(optimizer) for optimizer in parts.optimizers.values())


def _of_optimizer(optimizer: Optimizer) -> int:
    total = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if state:
                total += sum(_bytes(value) for value in _tensors(state.values()))
            elif parameter.requires_grad:
                total += _bytes(parameter) * _tensors_kept(kind_of(optimizer), group)
    return total


def _tensors_kept(kind: str, group: dict[str, Any]) -> int:
    if kind == "SGD":
        return 1 if group.get("momentum") else 0
    if kind == "RMSprop":
        return 1 + bool(group.get("momentum")) + bool(group.get("centered"))
    return _KEPT_PER_PARAMETER.get(kind, 2) + bool(group.get("amsgrad"))


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def _bytes(tensor: torch.Tensor) -> int:
    """Of a DTensor the whole."""
    return tensor.numel() * tensor.element_size()
