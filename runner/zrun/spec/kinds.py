"""What a field can hold: for each kind of value its parser, its form in the JSON schema and how it is written back.

Knows nothing about which fields there are; spec/fields.py does.
"""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from zrun.spec.nodes import Items, Node, Pairs, Scalar
from zrun.spec.problem import Problems, Wrong, quoted, sound


class _Bad:
    """The one value that says: refused, a problem was added."""


BAD: Final = _Bad()
OMIT: Final = object()
"""What `show` answers where a value has no words: the field is left out."""


class Kind(ABC):
    """A kind of value. `expects` completes the line "expected: ..."."""

    expects: str

    @abstractmethod
    def read(self, node: Node, path: str, problems: Problems) -> Any:
        """The value, or BAD after adding at least one problem."""

    @abstractmethod
    def show(self, value: Any) -> Any:
        """The value as YAML's plain data, such that reading it gives the value again; OMIT: not written."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The JSON schema of one value."""


def shape(node: Node) -> str:
    """What was written instead of what was expected, in words."""
    match node:
        case Items():
            return "a list"
        case Pairs():
            return "a block of fields"
        case Scalar(empty=True):
            return "nothing"
        case Scalar():
            return quoted(node.text)


@dataclass(frozen=True, slots=True)
class One(Kind):
    """One scalar, given to `parse` as the text of the file."""

    expects: str
    parse: Callable[[str], Any]
    form: dict[str, Any]
    write: Callable[[Any], Any] = str
    bare: bool = False
    """A number or true/false: in quotes it is text, hence refused."""

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if not isinstance(node, Scalar):
            problems.add(node.span, f"{path}: {shape(node)} cannot stand here", expected=self.expects)
            return BAD
        if node.empty:
            hint = f"write a value, or take the line with {path} out"
            problems.add(node.span, f"{path} has no value", expected=self.expects, suggestion=hint)
            return BAD
        try:
            value = self.parse(sound(node.text))
        except Wrong as wrong:
            problems.add(node.span, f"{path}: {wrong.message}", expected=self.expects, suggestion=wrong.suggestion)
            return BAD
        if self.bare and node.quoted and isinstance(value, int | float):
            hint = f"{node.text} without quotes"
            problems.add(node.span, f"{path}: {quoted(node.text)} in quotes is text", suggestion=hint)
            return BAD
        return value

    def show(self, value: Any) -> Any:
        return self.write(value)

    def schema(self) -> dict[str, Any]:
        return dict(self.form)


def or_word(kind: One, word: str, meaning: Any = None) -> One:
    """`kind`, or one more word for what has no number (auto, off, unlimited)."""

    def parse(text: str) -> Any:
        return meaning if text == word else kind.parse(text)

    def write(value: Any) -> Any:
        return word if value == meaning else kind.write(value)

    form = {"anyOf": [{"const": word}, kind.form]}
    return One(f"{kind.expects}, or {word}", parse, form, write, kind.bare)


def choice(*words: str) -> One:
    """One of a few words."""

    def parse(text: str) -> str:
        if text not in words:
            raise Wrong(f"{quoted(text)} is not one of them", closest(text, words))
        return text

    return One(" | ".join(words), parse, {"enum": list(words)})


def closest(text: str, words: Sequence[str]) -> str:
    """The word that was probably meant, or nothing."""
    if len(text) > 64:
        return ""
    found = difflib.get_close_matches(text.lower(), words, n=1, cutoff=0.6)
    return f"did you mean {found[0]}?" if found else ""


@dataclass(frozen=True, slots=True)
class ListOf(Kind):
    """A YAML list, each entry of one kind."""

    item: Kind
    expects: str = "a list"

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if isinstance(node, Scalar) and node.empty:
            return []
        if not isinstance(node, Items):
            hint = f"[{node.text}]" if isinstance(node, Scalar) and len(node.text) < 60 else ""
            problems.add(node.span, f"{path}: {shape(node)} is not a list", expected=self.expects, suggestion=hint)
            return BAD
        values = [self.item.read(one, f"{path}[{index}]", problems) for index, one in enumerate(node.items)]
        return BAD if any(one is BAD for one in values) else values

    def show(self, value: Any) -> Any:
        return [self.item.show(one) for one in value]

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema()}


@dataclass(frozen=True, slots=True)
class MapOf(Kind):
    """A block whose names are the user's own."""

    value: Kind
    check_name: Callable[[str], None]
    name_form: dict[str, Any]
    expects: str = "a block of names and values"
    base: Callable[[], dict[str, Any]] = dict
    """What names not written keep."""

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if isinstance(node, Scalar) and node.empty:
            return self.base()
        if not isinstance(node, Pairs):
            problems.add(node.span, f"{path}: {shape(node)} is not a block", expected=self.expects)
            return BAD
        values = self.base()
        good = True
        for name, child in unique(node, path, problems):
            try:
                self.check_name(name.text)
            except Wrong as wrong:
                problems.add(name.span, f"{path}: {wrong.message}", suggestion=wrong.suggestion)
                good = False
            values[name.text] = self.value.read(child, f"{path}.{name.text}", problems)
            good = good and values[name.text] is not BAD
        return values if good else BAD

    def show(self, value: Any) -> Any:
        return {name: self.value.show(one) for name, one in value.items()}

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "propertyNames": self.name_form, "additionalProperties": self.value.schema()}


def unique(node: Pairs, path: str, problems: Problems) -> list[tuple[Scalar, Node]]:
    """The pairs of a block; a name that stands twice is a problem, and its second value is not looked at."""
    seen: dict[str, Scalar] = {}
    kept: list[tuple[Scalar, Node]] = []
    for name, value in node.pairs:
        if name.text not in seen:
            seen[name.text] = name
            kept.append((name, value))
        elif not problems.full:
            line, _, _ = seen[name.text].span.source.place(seen[name.text].span.start)
            where = f"{path}.{name.text}" if path else name.text
            hint = "keep one of the two"
            problems.add(name.span, f"{quoted(where)} stands twice (first in line {line})", suggestion=hint)
    return kept
