"""Dtype recipes: how many bytes one parameter costs in each category, always said, never read off a checkpoint.

Knows nothing about models, ranks or strategies. Sources are in docs/plan.md, "Recipes".
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from zrun.core.errors import UsageError

ITEM_BYTES: Final = {"fp64": 8.0, "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0 + 4 / 256, "none": 0.0}
"""int8 is block-wise quantised: one byte, and one fp32 maximum for each block of 256."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`gather`: dtype in which parameters cross and are computed with; `reduce`: in which gradients cross."""

    name: str
    parameters: str = "bf16"
    gradients: str = "bf16"
    master: str = "fp32"
    moments: tuple[str, ...] = ("fp32", "fp32")
    gather: str = "bf16"
    reduce: str = "bf16"

    @property
    def parameter_bytes(self) -> float:
        return ITEM_BYTES[self.parameters]

    @property
    def gradient_bytes(self) -> float:
        return ITEM_BYTES[self.gradients]

    @property
    def optimizer_bytes(self) -> float:
        """Master weights and moments."""
        return ITEM_BYTES[self.master] + sum(ITEM_BYTES[one] for one in self.moments)

    @property
    def widest_moment_bytes(self) -> float:
        return max((ITEM_BYTES[one] for one in self.moments), default=0.0)

    @property
    def gather_bytes(self) -> float:
        return ITEM_BYTES[self.gather]

    @property
    def reduce_bytes(self) -> float:
        return ITEM_BYTES[self.reduce]

    def to_json(self) -> dict[str, Any]:
        per = {"parameters": self.parameter_bytes, "gradients": self.gradient_bytes, "optimizer": self.optimizer_bytes}
        return {
            **asdict(self),
            "moments": list(self.moments),
            "bytes_per_parameter": {**per, "total": sum(per.values())},
        }


RECIPES: Final = {
    one.name: one
    for one in (
        Recipe("mixed"),
        Recipe("bf16", master="none", moments=("bf16", "bf16")),
        Recipe("8bit", moments=("int8", "int8")),
        Recipe("fp32", "fp32", "fp32", "none", ("fp32", "fp32"), "fp32", "fp32"),
        Recipe("fsdp2-mixed", "fp32", "fp32", "none", ("fp32", "fp32"), "bf16", "fp32"),
    )
}
_PARTS: Final = ("parameters", "gradients", "master", "gather", "reduce")


def recipe(text: str) -> Recipe:
    """A named recipe, or `mixed` with parts of its own: `master=none,moments=int8+int8`. Raises UsageError."""
    if text in RECIPES:
        return RECIPES[text]
    made = replace(RECIPES["mixed"], name="own")
    for part in text.split(","):
        name, equals, value = (one.strip() for one in part.partition("="))
        words = tuple(value.split("+")) if name == "moments" and value != "none" else (value,)
        if not equals or name not in {*_PARTS, "moments"} or any(word not in ITEM_BYTES for word in words):
            raise UsageError(
                f"{part!r} is not a recipe",
                f"one of {', '.join(RECIPES)}; or parts ({', '.join(_PARTS)}, moments) of {', '.join(ITEM_BYTES)}, "
                "for example parameters=bf16,gradients=bf16,master=none,moments=int8+int8",
            )
        if name == "moments":
            made = replace(made, moments=() if value == "none" else words)
        else:
            made = replace(made, **{name: value})  # type: ignore[arg-type]
    if "none" in {made.parameters, made.gradients, made.gather, made.reduce}:
        raise UsageError(
            "parameters, gradients, gather and reduce have a dtype each", "only master and moments may be none"
        )
    return made
