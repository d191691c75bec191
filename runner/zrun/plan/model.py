"""A model as the plan sees it: parameters, how many of them learn, and the units that are gathered as one.

Knows nothing about torch, files, recipes or strategies.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from zrun.core.errors import UsageError

_MOST_UNITS: Final = 100_000
_DEEPEST: Final = 8
_TOKEN: Final = re.compile(r"\s*(?:(\d{1,6})\s*[xX]|(\d+(?:\.\d+)?[kKMBGT]?)|([(),+]))\s*")
_SCALE: Final = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True)
class Unit:
    """One wrapped module, in the order of the forward; tied parameters count where they stand first."""

    params: int
    trainable: int


@dataclass(frozen=True, slots=True)
class Model:
    """`units` without the root, which holds the rest and stays gathered from forward to the end of backward."""

    params: int
    trainable: int
    units: tuple[Unit, ...] = ()
    source: str = "params"

    @property
    def root(self) -> Unit:
        return Unit(
            self.params - sum(one.params for one in self.units),
            self.trainable - sum(one.trainable for one in self.units),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "params": self.params, "trainable": self.trainable, "units": len(self.units),
            "largest_unit": max((one.params for one in self.units), default=None), "root_params": self.root.params,
            "source": self.source,
        }  # fmt: skip


def built(params: int, frozen: int, units: Sequence[int], source: str) -> Model:
    """A model from counts; frozen parameters are spread evenly. Raises UsageError where they contradict each other."""
    if frozen > params:
        raise UsageError(f"{frozen:,} frozen parameters of {params:,}", "--frozen counts a part of --params")
    if any(one < 1 for one in units):
        raise UsageError("a wrap unit holds at least one parameter")
    if sum(units) > params:
        raise UsageError(
            f"the wrap units hold {sum(units):,} parameters, the model {params:,}",
            "make --wrap smaller or --params larger; what is missing to params is the root unit",
        )
    learn = (params - frozen) / params
    return Model(params, params - frozen, tuple(Unit(one, round(one * learn)) for one in units), source)


def even_units(params: int, layers: int, outside: int) -> list[int]:
    """One unit a layer, all alike, where only their number is known; `outside`: parameters of the root."""
    return [(params - outside) // layers] * layers


@dataclass(frozen=True, slots=True)
class Wrap:
    """Sizes in order: `units` as written, `groups` with what stands in one pair of brackets taken as one."""

    units: tuple[int, ...]
    groups: tuple[int, ...]


def wrap(text: str) -> Wrap:
    """`16x(3x420M,430M)`: 64 units, or 16 groups. Raises UsageError."""
    tokens: list[tuple[str, str, str]] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _unlike(text)
        tokens.append((found[1] or "", found[2] or "", found[3] or ""))
        at = found.end()
    read, rest = _sequence(text, tokens, 0, depth=0)
    if rest != len(tokens) or not read.units:
        raise _unlike(text)
    return read


def _sequence(text: str, tokens: list[tuple[str, str, str]], at: int, depth: int) -> tuple[Wrap, int]:
    """Terms with commas or pluses between them, up to `)` or the end."""
    read, at = _term(text, tokens, at, depth)
    while at < len(tokens) and tokens[at][2] in {",", "+"}:
        more, at = _term(text, tokens, at + 1, depth)
        read = Wrap(read.units + more.units, read.groups + more.groups)
    if len(read.units) > _MOST_UNITS:
        raise UsageError(f"--wrap: more than {_MOST_UNITS:,} units")
    return read, at


def _term(text: str, tokens: list[tuple[str, str, str]], at: int, depth: int) -> tuple[Wrap, int]:
    if at >= len(tokens) or depth > _DEEPEST:
        raise _unlike(text)
    times, size, sign = tokens[at]
    if times:
        inner, at = _term(text, tokens, at + 1, depth + 1)
        if len(inner.units) * int(times) > _MOST_UNITS:
            raise UsageError(f"--wrap: more than {_MOST_UNITS:,} units")
        return Wrap(inner.units * int(times), inner.groups * int(times)), at
    if size:
        scale = size[-1] if size[-1].isalpha() else ""
        value = round(float(size.removesuffix(scale)) * _SCALE[scale])
        return Wrap((value,), (value,)), at + 1
    if sign == "(":
        inner, at = _sequence(text, tokens, at + 1, depth + 1)
        if at < len(tokens) and tokens[at][2] == ")":
            return Wrap(inner.units, (sum(inner.units),)), at + 1
    raise _unlike(text)


def _unlike(text: str) -> UsageError:
    return UsageError(f"{text[:80]!r} is not a list of wrap units", "for example 64x400M, or 16x(3x420M,430M)")
