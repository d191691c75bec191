"""A block of fields of the job file and the struct it becomes; refuses what is unknown, doubled or not served yet.

Knows nothing about which fields there are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from zrun.spec.kinds import BAD, OMIT, Kind, shape, unique
from zrun.spec.names import unknown_field
from zrun.spec.nodes import Node, Pairs, Scalar
from zrun.spec.problem import Problems

REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Later:
    """A part of a field that a coming version serves; a value equal to the default is never refused."""

    way_out: str
    served: Callable[[Any], bool] = lambda _: False


@dataclass(frozen=True, slots=True)
class Field:
    """One line of the table that parser, errors, JSON schema and docs come from."""

    name: str
    kind: Kind
    doc: str
    attrs: tuple[str, ...] = ()
    """Attributes of the struct; several: the kind's value is a tuple of as many. None named: the field's own name."""
    required: bool = False
    later: Later | None = None
    promised: str = ""
    """Set where the default is a promise not yet in force: what happens instead."""

    @property
    def targets(self) -> tuple[str, ...]:
        return self.attrs or (self.name,)

    def spread(self, value: Any) -> dict[str, Any]:
        """The struct's attributes for a value of the kind."""
        return dict(zip(self.targets, value, strict=True)) if len(self.targets) > 1 else {self.targets[0]: value}

    def gather(self, struct: Any) -> Any:
        """The kind's value from a struct: the inverse of `spread`."""
        values = tuple(getattr(struct, name) for name in self.targets)
        return values if len(values) > 1 else values[0]


class Block(Kind):
    """Fields with fixed names; becomes `struct`."""

    def __init__(
        self, struct: Callable[..., Any], fields: tuple[Field, ...], expects: str = "a block of fields"
    ) -> None:
        self.struct = struct
        self.fields = fields
        self.expects = expects
        self.by_name = {one.name: one for one in fields}

    def default(self, one: Field) -> Any:
        """What the field is when it is not written; REQUIRED if it must be."""
        known = {info.name: info for info in msgspec.structs.fields(self.struct)}  # type: ignore[arg-type]
        infos = [known[name] for name in one.targets]
        if one.required or any(info.required for info in infos):
            return REQUIRED
        values = tuple(
            info.default if info.default is not msgspec.NODEFAULT else info.default_factory() for info in infos
        )
        return values if len(values) > 1 else values[0]

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        values = self.collect(node, path, problems)
        return BAD if values is BAD else self.struct(**values)

    def collect(self, node: Node, path: str, problems: Problems) -> Any:
        """The struct's attributes that were written, or BAD."""
        if isinstance(node, Scalar) and node.empty:
            node = Pairs(node.span)
        if not isinstance(node, Pairs):
            names = ", ".join(self.by_name)
            problems.add(node.span, f"{path}: {shape(node)} is not a block", expected=f"a block with {names}")
            return BAD
        values: dict[str, Any] = {}
        good = True
        before = problems.count
        for name, child in unique(node, path, problems):
            one = self.by_name.get(name.text)
            where = f"{path}.{name.text}" if path else name.text
            if problems.full:
                break
            if one is None:
                unknown_field(name, path, tuple(self.by_name), problems)
                continue
            value = one.kind.read(child, where, problems)
            if value is not BAD:
                values |= one.spread(value)
                self._refuse_later(one, value, where, child, problems)
        for one in self.fields:
            if self.default(one) is REQUIRED and node.get(one.name) is None:
                hint = f"add a line {path + '.' if path else ''}{one.name}: ..."
                problems.add(node.span, f"{one.name} is missing", expected=one.kind.expects, suggestion=hint)
        good = problems.count == before
        return values if good else BAD

    def _refuse_later(self, one: Field, value: Any, path: str, node: Node, problems: Problems) -> None:
        if one.later is None or value == self.default(one) or one.later.served(value):
            return
        shown = f": {node.text}" if isinstance(node, Scalar) else ""
        message = f"{path}{shown} is not yet served by this version of zrun"
        problems.add(node.span, message, suggestion=one.later.way_out)

    def show(self, value: Any) -> Any:
        shown = {one.name: one.kind.show(one.gather(value)) for one in self.fields}
        return {name: part for name, part in shown.items() if part is not OMIT}

    def schema(self) -> dict[str, Any]:
        properties = {}
        required = []
        for one in self.fields:
            form = {"description": one.doc, **one.kind.schema()}
            default = self.default(one)
            if default is REQUIRED:
                required.append(one.name)
            elif not isinstance(one.kind, Block) and (shown := one.kind.show(default)) is not OMIT:
                form["default"] = shown
            properties[one.name] = form
        block: dict[str, Any] = {"type": ["object", "null"] if not required else "object"}
        block |= {"additionalProperties": False, "properties": properties}
        return block | ({"required": required} if required else {})
