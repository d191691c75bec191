"""The answer to one question, as the JSON of `zrun plan --json`: every choice with memory, wire, time; the night ahead.

Puts the rooms' formulas together. Knows nothing about files or torch.
"""

import math
from dataclasses import replace
from typing import Any

from zrun.plan import compute, ettr, memory, wire
from zrun.plan.batch import global_batch
from zrun.plan.checkpoint import load_s
from zrun.plan.model import Model
from zrun.plan.question import Question
from zrun.plan.strategies import STRATEGIES, Choice, choices
from zrun.spec.plan import PUBLISHED


def answer(asked: Question) -> dict[str, Any]:
    """All of it; numbers that are not known are null, and `notes` says what would make them known."""
    rows = [_row(one, asked) for one in choices(asked.place)]
    return {
        "params": asked.model.params, "world": asked.place.world, "nodes": asked.place.nodes,
        "ranks_per_node": asked.place.per_node, "memory_bytes": asked.memory, "headroom": asked.habits.headroom,
        "model": asked.model.to_json(), "recipe": asked.recipe.to_json(),
        "batch": global_batch(asked.place.world, asked.micro_batch, asked.habits.accumulate, asked.sequence),
        "choices": rows, "best": _best(rows), "wraps": _wraps(asked),
        "checkpoint": _checkpoint(asked), "ettr": _ettr(asked), "origins": asked.origins, "notes": _notes(asked),
    }  # fmt: skip


def _row(choice: Choice, asked: Question) -> dict[str, Any]:
    model, made, habits = asked.model, asked.recipe, asked.habits
    high = memory.peak(choice, model, made, habits, asked.activations, asked.micro_batch)
    row: dict[str, Any] = {
        "strategy": choice.strategy.name, "shard_group": choice.shard_group,
        "secondary_group": choice.secondary or None,
        "label": choice.label, "persistent_bytes": memory.persistent(choice, model, made).to_json(),
        "peak_bytes": round(high.total), "peak": high.to_json(),
        "fits": memory.verdict(high.total, asked.memory, habits.headroom) if asked.memory is not None else None,
        "largest_micro_batch": memory.largest_micro_batch(choice, model, made, habits, asked.activations, asked.memory)
        if asked.memory is not None and asked.activations else None,
        "left_bytes": round(asked.memory * (1 - habits.headroom) - high.total) if asked.memory is not None else None,
    }  # fmt: skip
    return row | _times(choice, asked)


def _times(choice: Choice, asked: Question) -> dict[str, Any]:
    sent = wire.collectives(choice, asked.model, asked.recipe, asked.place, asked.habits.accumulate, asked.habits.sync)
    spent = wire.summed(sent, asked.links, asked.routing)
    other = wire.summed(sent, asked.links, "hierarchical" if asked.routing == "flat" else "flat")
    tokens = asked.micro_batch * asked.habits.accumulate * (asked.sequence or 0)
    flops = compute.step_flops(asked.model.params, tokens, asked.shape, asked.checkpointing)
    busy = compute.compute_s(flops, asked.speed) if tokens else None
    both = busy + spent.seconds if busy is not None and spent.seconds is not None else None
    return {
        "wire_bytes": {"intra": round(spent.intra), "inter": round(spent.inter)},
        "wire_bytes_other_routing": {
            "intra": round(other.intra), "inter": round(other.inter), "seconds": other.seconds,
        },
        "collectives": [wire.to_json(one, asked.links, asked.routing) for one in sent],
        "collective_calls": sum(one.calls for one in sent),
        "wire_s": spent.seconds, "compute_s": busy, "step_floor_s": compute.floor_s(busy, spent.seconds),
        "step_without_overlap_s": both, "bound": compute.bound(busy, spent.seconds, spent.inter_s),
        "load_s": load_s(choice, asked.model, asked.recipe, asked.place.world, asked.storage),
    }  # fmt: skip


def _best(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Of what fits with headroom: the lowest step floor; else the fewest bytes between nodes, then in all."""
    fitting = [one for one in rows if one["fits"] == "yes"]
    if not fitting:
        return None

    def rank(one: dict[str, Any]) -> tuple[float, int, int]:
        sent = one["wire_bytes"]
        return one["step_floor_s"] or 0.0, sent["inter"], sent["inter"] + sent["intra"]

    found = min(fitting, key=rank)
    return {key: found[key] for key in ("strategy", "shard_group", "secondary_group", "label")}


def _wraps(asked: Question) -> list[dict[str, Any]]:
    """The same model in other units, under ZeRO-3 over all ranks."""
    choice = Choice(STRATEGIES["zero3"], asked.place.world)
    return [_wrap(name, model, choice, asked) for name, model in asked.wraps.items()]


def _wrap(name: str, model: Model, choice: Choice, asked: Question) -> dict[str, Any]:
    high = memory.peak(choice, model, asked.recipe, asked.habits, asked.activations, asked.micro_batch)
    sent = wire.collectives(choice, model, asked.recipe, asked.place, asked.habits.accumulate, asked.habits.sync)
    return {
        "wrap": name, "units": len(model.units), "largest_unit": max(one.params for one in model.units),
        "transient_bytes": round(high.gathered + high.unit_gradients + high.temporaries),
        "peak_bytes": round(high.total),
        "peak": high.to_json(), "collectives": sum(one.calls for one in sent),
        "wire_s": wire.summed(sent, asked.links, asked.routing).seconds,
    }  # fmt: skip


def _checkpoint(asked: Question) -> dict[str, Any]:
    found = asked.saving.to_json() | {"stall_s": None, "interval_s": None, "young_s": None}
    if asked.weather is not None:
        found |= {
            "stall_s": asked.weather.stall_s,
            "interval_s": _finite(ettr.best_interval_s(asked.weather, at_least_s=asked.saving.save_s or 0.0)),
            "young_s": _finite(ettr.young_s(asked.weather.stall_s, asked.weather.mttf_s)),
        }
    return found


def _ettr(asked: Question) -> dict[str, Any] | None:
    weather = asked.weather
    if weather is None:
        return None
    floor = asked.saving.save_s or 0.0
    interval = ettr.best_interval_s(weather, at_least_s=floor)
    configured = asked.configured_s
    return {
        "nodes": weather.nodes, "failures_per_1000_node_days": weather.failures, "mttf_s": _finite(weather.mttf_s),
        "detection_s": weather.detection_s, "restart_s": weather.restart_s, "stall_s": weather.stall_s,
        "background_save_s": weather.lag_s, "interval_s": _finite(interval), "expected": ettr.ettr(interval, weather),
        "closed_form": ettr.closed_form(interval, weather),
        "configured": None if configured is None
        else {"interval_s": configured, "expected": ettr.ettr(configured, weather)},
        "published": [
            {"rate": name, "failures_per_1000_node_days": rate, "interval_s": best, "expected": ettr.ettr(best, other)}
            for name, rate in PUBLISHED.items()
            for other in [replace(weather, failures=rate)]
            for best in [ettr.best_interval_s(other, at_least_s=floor)]
        ],
        "sensitivity": ettr.sensitivity(interval, weather) if math.isfinite(interval) else [],
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _notes(asked: Question) -> list[str]:
    """What is not counted, and the option that would change that."""
    notes = []
    if not asked.model.units:
        notes.append("wrap units are not known, so peaks of sharded parameters count none: give --wrap or --layers")
    if asked.activations is None:
        notes.append(
            "activations are not counted: give --layers, --hidden, --heads and --sequence (and --vocabulary), or --loss"
        )
    elif asked.shape is not None and not asked.shape.vocabulary and asked.activations.source == "estimated":
        notes.append("logits are not counted: give --vocabulary")
    if asked.memory is None:
        notes.append("no verdict: give --memory")
    if asked.links.intra is None or (asked.place.nodes > 1 and asked.links.inter is None):
        notes.append("no times on the wire: give --intra and --inter, or run with --measure")
    if asked.speed.flops is None or asked.sequence is None:
        notes.append("no compute time: give --flops and --sequence")
    if asked.weather is None:
        notes.append("no interval and no ETTR: give --storage, --staging or --stall")
    return notes
