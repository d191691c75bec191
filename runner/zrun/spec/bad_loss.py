"""What job.yaml says of bad losses: off, skip, stop, or a block that says how far above the usual is bad too."""

from typing import Any, Final

from zrun.spec.kinds import BAD, Kind, One, choice, shape, unique
from zrun.spec.nodes import Node, Pairs, Scalar
from zrun.spec.problem import Problems, Wrong, quoted

LARGEST: Final = 1_000_000.0


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise Wrong(f"{quoted(text)} is no number", "for example 10") from None
    if not 1 < value <= LARGEST:
        raise Wrong(f"{quoted(text)} is not above 1 and at most {LARGEST:.0f}")
    return value


def _shown(value: float) -> float | int:
    return int(value) if value == int(value) else value


_FACTOR: Final = One(
    "a number above 1", _factor, {"type": "number", "exclusiveMinimum": 1, "maximum": LARGEST}, _shown, bare=True
)
_DO: Final = choice("skip", "stop")
_WORD: Final = choice("off", "skip", "stop")
_KINDS: Final[dict[str, One]] = {"do": _DO, "factor": _FACTOR}


class OnBadLoss(Kind):
    """Its value is (what to do, the factor or None)."""

    expects = "off | skip | stop, or {do: skip | stop, factor: a number above 1}"

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if isinstance(node, Scalar):
            word = _WORD.read(node, path, problems)
            return BAD if word is BAD else (word, None)
        if not isinstance(node, Pairs):
            problems.add(node.span, f"{path}: {shape(node)} cannot stand here", expected=self.expects)
            return BAD
        before = problems.count
        found: dict[str, Any] = {"do": "skip", "factor": None}
        for name, child in unique(node, path, problems):
            kind = _KINDS.get(name.text)
            if kind is None:
                problems.add(name.span, f"{path} has no field {quoted(name.text)}", expected=self.expects)
            else:
                found[name.text] = kind.read(child, f"{path}.{name.text}", problems)
        return (found["do"], found["factor"]) if problems.count == before else BAD

    def show(self, value: Any) -> Any:
        do, factor = value
        return do if factor is None else {"do": do, "factor": _shown(factor)}

    def schema(self) -> dict[str, Any]:
        block = {
            "type": "object", "additionalProperties": False,
            "properties": {name: kind.form for name, kind in _KINDS.items()},
        }  # fmt: skip
        return {"anyOf": [_WORD.form, block]}


ON_BAD_LOSS: Final = OnBadLoss()
