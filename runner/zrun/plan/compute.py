"""How long the arithmetic of one step takes on one rank, and how it and the wire make a step.

Pure arithmetic. Sources are in docs/plan.md, "Step".
"""

from dataclasses import dataclass

from zrun.plan.activations import Shape


@dataclass(frozen=True, slots=True)
class Speed:
    """`flops` None: not known. `mfu`: the part of it that is reached."""

    flops: float | None = None
    mfu: float = 0.4


def step_flops(params: int, tokens: int, shape: Shape | None, checkpointing: str) -> float:
    """6 N a token, and 12 x layers x heads x width x T for attention (PaLM, appendix B); a third more if recomputed."""
    each = 6.0 * params
    if shape is not None:
        attending = shape.layers - shape.deltanet_layers
        each += 12.0 * attending * shape.heads * shape.width * shape.sequence
        each += 12.0 * shape.deltanet_layers * shape.heads * shape.width * shape.width  # a state instead of T keys
    return each * tokens * (4 / 3 if checkpointing == "full" else 1.0)


def compute_s(flops: float, speed: Speed) -> float | None:
    return None if speed.flops is None else flops / (speed.flops * speed.mfu)


def floor_s(compute: float | None, wire: float | None) -> float | None:
    """Perfect overlap: the longer of the two; one alone where the other is not known or nothing is sent."""
    return max((one for one in (compute, wire) if one), default=None)


def bound(compute: float | None, wire: float | None, inter_s: float) -> str | None:
    """What a step waits for: compute, intra or inter; None where that is not known."""
    if wire is None or (not wire and compute is None):
        return None
    if compute is not None and compute >= wire:
        return "compute"
    return "inter" if inter_s * 2 >= wire else "intra"
