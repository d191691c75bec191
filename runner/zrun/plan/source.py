"""Where a model's size comes from: counts, MODULE:CALLABLE on the meta device, safetensors, or an earlier attempt.

Starts the probe for a callable. Knows nothing about memory or wire.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zrun.core.errors import UsageError
from zrun.core.place import Place as CheckpointPlace
from zrun.plan import children, stored
from zrun.plan.activations import Activations
from zrun.plan.model import Model, Unit, built, even_units, wrap
from zrun.spec.job import Plan


@dataclass(frozen=True, slots=True)
class Sized:
    """`wraps`: the model with each set of units to compare; `counted`: activations, where a loss was given."""

    model: Model
    wraps: dict[str, Model] = field(default_factory=dict)
    counted: Activations | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job's own code lies and what runs it; `checkpoints`: folders of earlier attempts, newest first."""

    workdir: str
    python: str
    env: Mapping[str, str]
    checkpoints: Iterable[CheckpointPlace] = ()


def sized(plan: Plan, place: Place) -> Sized:
    """Raises UsageError where the size cannot be known, with the ways to tell it."""
    if plan.model is not None and plan.params is not None:
        raise UsageError("params and model both say the size", "give one of the two")
    if plan.loss is not None and not _is_callable(plan.model):
        raise UsageError("--loss needs a model to run", "give --model MODULE:CALLABLE too")
    if _is_callable(plan.model):
        return _probed(plan, place)
    if plan.model is not None:
        found = stored.from_path(Path(place.workdir, plan.model))
        return _counted(plan, found.params, found.units, found.source)
    if plan.params is not None:
        return _counted(plan, plan.params, (), "params")
    for directory in place.checkpoints:
        if earlier := stored.learned(directory):
            return _counted(plan, earlier.params, earlier.units, earlier.source)
    raise UsageError(
        "the model's size is not known",
        "give --params 27B, --model MODULE:CALLABLE, --model PATH of safetensors, or a plan block in the job file; a "
        "job that has committed a checkpoint needs none of them",
    )


def _is_callable(model: str | None) -> bool:
    return model is not None and ":" in model and "/" not in model and not model.endswith((".safetensors", ".json"))


def _counted(plan: Plan, params: int, units: tuple[int, ...], source: str) -> Sized:
    frozen = plan.frozen or 0
    if plan.wrap is not None:
        if plan.wrap in {"layer", "superblock"}:
            raise UsageError(
                f"--wrap {plan.wrap} needs --model MODULE:CALLABLE", "or write the sizes: 64x400M, or 16x(3x420M,430M)"
            )
        read = wrap(plan.wrap)
        model = built(params, frozen, read.units, source)
        if read.groups == read.units:
            return Sized(model, {f"{len(read.units)} units": model})
        groups = built(params, frozen, read.groups, source)
        return Sized(model, {f"{len(read.units)} units": model, f"{len(read.groups)} groups": groups})
    if not units and plan.layers is not None:
        units = tuple(even_units(params, plan.layers, min(params // 2, (plan.vocabulary or 0) * (plan.hidden or 0))))
    model = built(params, frozen, units, source)
    return Sized(model, {f"{len(units)} units": model} if units else {})


def _probed(plan: Plan, place: Place) -> Sized:
    found = children.run(
        [place.python, "-P", str(children.HERE / "probe.py"), str(plan.model), plan.loss or ""],
        place.workdir, place.env, f"building {plan.model} on the meta device",
        f"it is imported in {place.workdir} with {place.python}, called without arguments, returns a module of torch"
        + ("; --loss is called with the model and a number of samples, and returns the loss" if plan.loss else ""),
    )  # fmt: skip
    wraps = {name: _model(found["whole"], units, str(plan.model)) for name, units in found["wraps"].items()}
    counted = found.get("activations")
    kept = None
    if counted:
        layers = max((len(one.units) for one in wraps.values()), default=1)
        kept = Activations(counted["per_sample"], counted["per_sample"] / layers, counted["fixed"], "counted")
    if plan.wrap is not None and plan.wrap not in wraps:
        raise UsageError(
            f"--wrap {plan.wrap}: {plan.model} has {', '.join(wraps) or 'no list of layers (torch.nn.ModuleList)'}",
            "leave --wrap out, or give --params and the sizes",
        )
    whole = _model(found["whole"], [], str(plan.model))
    chosen = wraps.get(plan.wrap or "layer") or next(iter(wraps.values()), whole)
    return Sized(chosen, wraps, kept)


def _model(whole: list[int], units: list[list[int]], source: str) -> Model:
    made: Any = tuple(Unit(*one) for one in units)
    return Model(whole[0], whole[1], made, source)
