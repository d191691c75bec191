"""What a checkpoint weighs and how long it takes, from the recipe and the storage's speed.

Pure arithmetic. Knows nothing about failures. Formulas are in docs/plan.md, "Checkpoints".
"""

from dataclasses import dataclass
from typing import Any

from zrun.plan.memory import persistent
from zrun.plan.model import Model
from zrun.plan.recipe import Recipe
from zrun.plan.strategies import Choice


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes a second; None: not known."""

    rate: float | None = None
    staging: float | None = None


@dataclass(frozen=True, slots=True)
class Saving:
    """One checkpoint: parameters and optimizer state, no gradients, each tensor once however many ranks hold it."""

    bytes: float
    bytes_per_rank: float
    weights_bytes: float
    save_s: float | None
    load_s: float | None
    staging_s: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "bytes": round(self.bytes), "bytes_per_rank": round(self.bytes_per_rank),
            "weights_bytes": round(self.weights_bytes), "save_s": self.save_s, "load_s": self.load_s,
            "staging_s": self.staging_s,
            "gather_host_bytes": {"weights": round(self.weights_bytes), "all": round(self.bytes)},
        }  # fmt: skip


def saving(model: Model, recipe: Recipe, world: int, storage: Storage) -> Saving:
    """Spread evenly: zrun's ranks share out what several of them hold."""
    weights = model.params * recipe.parameter_bytes
    whole = weights + model.trainable * recipe.optimizer_bytes
    return Saving(
        whole, whole / world, weights,
        whole / storage.rate if storage.rate else None,
        whole / storage.rate if storage.rate else None,
        whole / world / storage.staging if storage.staging else None,
    )  # fmt: skip


def load_s(choice: Choice, model: Model, recipe: Recipe, world: int, storage: Storage) -> float | None:
    """Every rank reads what it will hold, so replicas read the same bytes again."""
    held = persistent(choice, model, recipe)
    return world * (held.parameters + held.optimizer) / storage.rate if storage.rate else None
