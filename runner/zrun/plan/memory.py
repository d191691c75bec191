"""Bytes on one rank: what stays between steps, what comes and goes within one, and whether both fit.

Pure arithmetic. Knows nothing about links or time. Each formula's source is in docs/plan.md, "Memory".
"""

from dataclasses import dataclass
from typing import Any, Final

from zrun.plan.activations import Activations
from zrun.plan.model import Model, Unit
from zrun.plan.recipe import Recipe
from zrun.plan.strategies import Choice

BUCKET_ELEMENTS: Final = 500_000_000
"""DeepSpeed's default reduce_bucket_size; twice, because one is filled while the other is sent."""


@dataclass(frozen=True, slots=True)
class Persistent:
    """Between two steps, on one rank."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    def to_json(self) -> dict[str, int]:
        return {
            "parameters": round(self.parameters), "gradients": round(self.gradients),
            "optimizer": round(self.optimizer), "total": round(self.total),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Habits:
    """How the script trains, as far as memory depends on it."""

    accumulate: int = 1
    sync: str = "every"
    optimizer: str = "foreach"
    ddp_buckets: str = "copy"
    headroom: float = 0.1


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest point of a step. `activations` None: not known, and not in `total`."""

    parameters: float
    gradients: float
    optimizer: float
    gathered: float
    """The wrap unit in use, its prefetched neighbour, the root; or the whole model."""
    unit_gradients: float
    temporaries: float
    activations: float | None
    working: float
    """Gradients of activations, for the layer in work."""
    optimizer_step: float
    """What the optimizer step needs beside the state; activations are gone by then."""
    accumulated: bool
    """Gradients of an earlier backward are there when this one's activations are."""

    @property
    def total(self) -> float:
        """With one backward a step gradients come as activations go, so that the larger of the two counts."""
        kept = self.activations or 0.0
        meeting = self.gradients + kept if self.accumulated else max(self.gradients, kept)
        backward = meeting + self.gathered + self.unit_gradients + self.temporaries + self.working
        return self.parameters + self.optimizer + max(backward, self.gradients + self.optimizer_step)

    def to_json(self) -> dict[str, Any]:
        return {
            "gathered": round(self.gathered), "unit_gradients": round(self.unit_gradients),
            "temporaries": round(self.temporaries), "optimizer_step": round(self.optimizer_step),
            "activations": None if self.activations is None else round(self.activations),
            "working": round(self.working), "gradients_meet_activations": self.accumulated,
        }  # fmt: skip


def persistent(choice: Choice, model: Model, recipe: Recipe) -> Persistent:
    """ZeRO (Rajbhandari et al. 2020, section 5): what is sharded is divided by the group; hpZ adds a second copy."""
    group, kind = choice.shard_group, choice.strategy
    parameters = model.params * recipe.parameter_bytes / (group if kind.parameters else 1)
    if choice.secondary:
        parameters += model.params * recipe.gather_bytes / choice.secondary
    return Persistent(
        parameters,
        model.trainable * recipe.gradient_bytes / (group if kind.gradients else 1),
        model.trainable * recipe.optimizer_bytes / (group if kind.optimizer else 1),
    )


def peak(
    choice: Choice, model: Model, recipe: Recipe, habits: Habits, activations: Activations | None, micro_batch: int
) -> Peak:
    """The backward of the heaviest unit, or the optimizer step, whichever is more (docs/plan.md, "Peaks")."""
    gathered, gradients, copies = _transients(choice, model, recipe, habits)
    if choice.strategy.optimizer and choice.strategy.gradients and habits.sync == "last" and habits.accumulate > 1:
        copies += model.trainable * recipe.reduce_bytes  # whole gradients wait for the last backward
    learning = model.trainable / (choice.shard_group if choice.strategy.optimizer else 1)
    step = learning * recipe.widest_moment_bytes if habits.optimizer == "foreach" else 0.0
    if not choice.strategy.gradients:
        step += copies  # DDP's buckets stay
    held = persistent(choice, model, recipe)
    return Peak(
        held.parameters, held.gradients, held.optimizer, gathered, gradients, copies,
        activations.bytes(micro_batch) if activations else None,
        activations.working_per_sample * micro_batch if activations else 0.0, step, habits.accumulate > 1,
    )  # fmt: skip


def _transients(choice: Choice, model: Model, recipe: Recipe, habits: Habits) -> tuple[float, float, float]:
    """(gathered parameters, whole gradients of the units, copies of gradients on their way).

    The backward of a unit needs it, the one before it (prefetched) and its gradient; the root, with embedding and head,
    is whole from the forward on. Where no units are known only what does not depend on them is counted.
    """
    kind = choice.strategy
    if not kind.gradients:
        return 0.0, 0.0, model.trainable * recipe.gradient_bytes if habits.ddp_buckets == "copy" else 0.0
    if not kind.parameters:
        return 0.0, 0.0, 2.0 * min(BUCKET_ELEMENTS, model.trainable) * recipe.reduce_bytes
    root = model.root if model.units else Unit(0, 0)
    held = root.trainable * recipe.gather_bytes
    sent = max((one.trainable for one in (*model.units, root)), default=0) * recipe.reduce_bytes
    pairs = [
        ((one.params + before.params) * recipe.gather_bytes, one.trainable * recipe.gather_bytes)
        for before, one in zip((Unit(0, 0), *model.units), model.units, strict=False)
    ]
    gathered, gradient = max(pairs, key=sum, default=(0.0, 0.0))
    if not kind.gathers_by_unit:
        return model.params * recipe.gather_bytes, gradient + held, sent
    return gathered + root.params * recipe.gather_bytes, gradient + held, sent


def verdict(peak_bytes: float, memory: int, headroom: float) -> str:
    """yes: with the headroom kept free; barely: without it; no."""
    if peak_bytes <= memory * (1 - headroom):
        return "yes"
    return "barely" if peak_bytes <= memory else "no"


def largest_micro_batch(
    choice: Choice, model: Model, recipe: Recipe, habits: Habits, activations: Activations, memory: int
) -> int:
    """The most samples of one backward that fit with the headroom kept free; 0: not even one."""

    def fits(count: int) -> bool:
        return verdict(peak(choice, model, recipe, habits, activations, count).total, memory, habits.headroom) == "yes"

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high) and high < 1 << 62:  # a forward that keeps nothing would never end
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
