"""The answer as people read it: rows of text, gigabytes of 10^9 bytes. Decides nothing and computes nothing new."""

from collections.abc import Callable
from typing import Any

Span = Callable[[float | None], str]

HEAD = [
    "choice", "params", "grads", "optim", "state", "peak", "fits", "max b", "sent in", "sent out", "calls", "step >=",
    "bound",
]  # fmt: skip


def rows(found: dict[str, Any], span: Span) -> list[list[str]]:
    """One a choice, for HEAD; `span` writes seconds."""
    return [
        [
            one["label"],
            *(gb(one["persistent_bytes"][key]) for key in ("parameters", "gradients", "optimizer", "total")),
            gb(one["peak_bytes"]), one["fits"] or "-",
            "-" if one["largest_micro_batch"] is None else str(one["largest_micro_batch"]),
            gb(one["wire_bytes"]["intra"]), gb(one["wire_bytes"]["inter"]), str(one["collective_calls"]),
            brief(one["step_floor_s"], span), one["bound"] or "-",
        ]
        for one in found["choices"]
    ]  # fmt: skip


def gb(count: float) -> str:
    """Two digits after the point, three significant ones for what is small."""
    value = count / 1e9
    return f"{value:.2f}" if value >= 1 or value == 0 else f"{value:.3g}"


def brief(seconds: float | None, span: Span) -> str:
    """Milliseconds below a second."""
    return f"{seconds * 1000:.3g}ms" if seconds is not None and seconds < 1 else span(seconds)


def heading(found: dict[str, Any]) -> list[str]:
    made, model = found["recipe"], found["model"]
    per = made["bytes_per_parameter"]
    learn = "" if model["trainable"] == model["params"] else f", {model['trainable']:,} of them learn"
    whole = found["params"] * per["parameters"] + model["trainable"] * (per["total"] - per["parameters"])
    parts = [f"{name} {made[name]}" for name in ("parameters", "gradients", "master")]
    parts.append(f"moments {'+'.join(made['moments']) or 'none'}")
    ranks = f"{found['world']} ranks on {found['nodes']} node(s)"
    lines = [
        f"{found['params']:,} parameters{learn} ({model['source']}); {ranks}",
        f"recipe {made['name']}: {', '.join(parts)}; {per['total']:g} bytes a parameter, {gb(whole)} GB in all",
    ]
    if found["memory_bytes"] is not None:
        lines.append(f"memory {gb(found['memory_bytes'])} GB a rank, {found['headroom']:.0%} of it kept free")
    return lines


def below(found: dict[str, Any], span: Span) -> list[str]:
    """What follows the table."""
    lines = ["GB of 10^9 bytes, on one rank; sent in one step by one rank within its node and out of it"]
    if found["best"]:
        lines.append(f"fits and costs least: {found['best']['label']}")
    lines += (
        _wraps(found, span)
        + _measured(found.get("measured_wraps"), span)
        + _batch(found["batch"])
        + _checkpoint(found["checkpoint"], span)
    )
    if found["ettr"]:
        lines += _ettr(found["ettr"], span)
    lines += [f"{name}: {text}" for name, text in found["origins"].items()]
    return lines + [f"note: {text}" for text in found["notes"]]


def _wraps(found: dict[str, Any], span: Span) -> list[str]:
    return [
        f"wrapped as {one['wrap']} (zero3): largest {one['largest_unit']:,} parameters, comes and goes "
        f"{gb(one['transient_bytes'])} GB, peak {gb(one['peak_bytes'])} GB, {one['collectives']} collectives a step"
        + (f", {brief(one['wire_s'], span)} on the wire" if one["wire_s"] is not None else "")
        for one in found["wraps"]
    ]


def _measured(trial: dict[str, Any] | None, span: Span) -> list[str]:
    if trial is None:
        return []
    where = f"{trial['ranks']} {trial['backend']} ranks of this machine, micro-batch {trial['micro_batch']}"
    return [f"wraps measured on {where}:"] + [
        f"  {one['wrap']}: {one['units']} units, {brief(one['step_s'], span)} a step, peak {gb(one['peak_bytes'])} GB, "
        + ", ".join(f"{count} {op}" for op, count in one["collectives"].items())
        for one in trial["rows"]
    ]


def _batch(one: dict[str, Any]) -> list[str]:
    tokens = f" = {one['tokens']:,} tokens" if one["tokens"] else ""
    times = f" x {one['sequence']} tokens" if one["sequence"] else ""
    factors = f"{one['ranks']} ranks x {one['micro_batch']} x {one['accumulate']} parts{times}"
    lines = [f"global batch: {factors} = {one['samples']:,} samples{tokens}"]
    for other in one["other_worlds"]:
        same = other["same_batch_accumulate"]
        keep = f"stays with {same} part(s)" if same else "cannot stay with this micro-batch"
        lines.append(f"  with {other['ranks']} ranks it becomes {other['grows_to_samples']:,} samples, or {keep}")
    return lines


def _checkpoint(one: dict[str, Any], span: Span) -> list[str]:
    weight = f"{gb(one['bytes'])} GB in all, {gb(one['bytes_per_rank'])} GB a rank"
    alone = f"weights alone {gb(one['weights_bytes'])} GB; a full gather wants as much host memory on one rank"
    lines = [f"checkpoint: {weight}; {alone}"]
    if one["save_s"] is not None:
        lines.append(f"  saved in {brief(one['save_s'], span)}, loaded in {brief(one['load_s'], span)}")
    if one["stall_s"] is not None:
        lines.append(
            f"  best interval {span(one['interval_s'])} (Daly; Young {span(one['young_s'])}) at a stall of "
            f"{brief(one['stall_s'], span)}"
        )
    return lines


def _ettr(one: dict[str, Any], span: Span) -> list[str]:
    failure = "no failures" if one["mttf_s"] is None else f"a failure every {span(one['mttf_s'])}"
    costs = f"seen after {span(one['detection_s'])}, back after {span(one['restart_s'])}"
    lines = [f"expected ETTR {one['expected']:.2%} on {one['nodes']} node(s): {failure}, {costs}"]
    if one["configured"]:
        lines.append(
            f"  {one['configured']['expected']:.2%} with checkpoint.every {span(one['configured']['interval_s'])}"
        )
    for row in one["published"]:
        rate = f"{row['rate']} ({row['failures_per_1000_node_days']:g} in 1000 node-days)"
        lines.append(f"  {row['expected']:.2%} at the rate of {rate}")
    if one["sensitivity"]:
        seen = sorted({row["detection_s"] for row in one["sensitivity"]})
        back = sorted({row["restart_s"] for row in one["sensitivity"]})
        value = {(row["detection_s"], row["restart_s"]): row["ettr"] for row in one["sensitivity"]}
        lines.append("  ETTR by detection (down) and restart (across): " + "  ".join(f"{span(b):>8}" for b in back))
        lines += [f"  {span(d):>44}: " + "  ".join(f"{value[d, b]:>8.2%}" for b in back) for d in seen]
    return lines
