"""YAML 1.2 text -> a tree whose every value knows its place and keeps the text it was written with.

Built from ruamel's event stream rather than its composer: explicit tags, aliases and depth can be judged as they come,
and a plain `no`, `010` or `3e-4` stays what the file says. Knows nothing about fields.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from zrun.spec.problem import Problem, Source, Span

MAX_VALUES: Final = 20_000
MAX_DEPTH: Final = 32
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True, slots=True)
class Scalar:
    span: Span
    text: str
    quoted: bool = False
    """In quotes, or a block (`|`, `>`): text whatever it looks like."""

    @property
    def empty(self) -> bool:
        """Nothing written, or YAML's null."""
        return not self.quoted and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class Items:
    span: Span
    items: list["Node"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pairs:
    span: Span
    pairs: list[tuple[Scalar, "Node"]] = field(default_factory=list)

    def get(self, key: str) -> "Node | None":
        return next((value for name, value in self.pairs if name.text == key), None)


Node = Scalar | Items | Pairs


class BadYaml(Exception):  # noqa: N818 - carries one Problem to the loader
    """The text is not YAML that a job file may hold."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def parse(source: Source) -> Node:
    """The one document of a text; a text without any is an empty Scalar. Raises BadYaml."""
    builder = _Builder(source)
    events = _events(source)
    for event in events:
        builder.take(event)
    return builder.root or Scalar(Span(source, 0, 0), "")


def _events(source: Source) -> Iterator[Any]:
    yaml = YAML(typ="safe", pure=True)
    try:
        yield from yaml.parse(io.StringIO(source.text))
    except BadYaml:
        raise
    except MarkedYAMLError as error:
        raise BadYaml(_explained(source, error)) from error
    except ReaderError as error:
        span = Span(source, error.position, error.position + 1)
        raise BadYaml(Problem(span, "a character that YAML does not allow", "printable text in UTF-8")) from error
    except Exception as error:
        # ruamel leaks what its parts raise on odd input (OverflowError on "\U99999999"): to the reader of the file it
        # is one thing, a text that is not YAML.
        raise BadYaml(Problem(Span(source, 0, 0), f"not YAML: {error}", "a job file")) from error


def _explained(source: Source, error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    index = min(mark.index if mark is not None else 0, len(source.text))
    span = Span(source, index, index + 1)
    what = str(error.problem or error.context or "not YAML")
    if source.text[index : index + 1] == "\t":
        return Problem(span, "a tab between fields or in front of them", "spaces", "replace the tab by two spaces")
    if "mapping values are not allowed" in what:
        hint = "put the value in quotes if the colon belongs to it, or check the indentation"
        return Problem(span, "a second ': ' on one line, or a line indented too far", "key: value", hint)
    if "undefined alias" in what:
        return Problem(span, what, "an anchor (&name) above its use")
    context = f" {error.context}" if error.context else ""
    return Problem(span, f"not YAML: {what}{context}", "", "check brackets, quotes and indentation around this place")


@dataclass(slots=True)
class _Open:
    """A list or block whose end was not seen yet."""

    node: Items | Pairs
    anchor: str | None
    weight: int = 1
    key: Scalar | None = None


class _Builder:
    """Takes events in order; holds its own stack, so that deep nesting cannot exhaust Python's."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.root: Node | None = None
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._documents = 0

    def take(self, event: Event) -> None:
        span = self._span(event)
        match event:
            case DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    self._refuse(span, "a second document", "one job a file", "take out this '---' and what follows")
            case AliasEvent():
                self._alias(event, span)
            case ScalarEvent():
                self._check_tag(event, span)
                node = Scalar(span, event.value, event.style is not None)
                self._register(event.anchor, node, 1)
                self._place(node, 1)
            case MappingStartEvent() | SequenceStartEvent():
                self._check_tag(event, span)
                if len(self._stack) >= MAX_DEPTH:
                    self._refuse(span, f"nested deeper than {MAX_DEPTH} levels", "a job file")
                opened: Items | Pairs = Pairs(span) if isinstance(event, MappingStartEvent) else Items(span)
                self._stack.append(_Open(opened, event.anchor))
            case MappingEndEvent() | SequenceEndEvent():
                closed = self._stack.pop()
                self._register(closed.anchor, closed.node, closed.weight)
                self._place(closed.node, closed.weight)
            case _:
                pass

    def _span(self, event: Event) -> Span:
        start, end = event.start_mark.index, event.end_mark.index
        return Span(self.source, start, max(end, start))

    def _refuse(self, span: Span, message: str, expected: str = "", suggestion: str = "") -> None:
        raise BadYaml(Problem(span, message, expected, suggestion))

    def _check_tag(self, event: NodeEvent, span: Span) -> None:
        if getattr(event, "ctag", None) is not None:
            self._refuse(span, "an explicit tag (!...)", "a plain value", "take the tag out")

    def _register(self, anchor: str | None, node: Node, weight: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (node, weight)

    def _alias(self, event: AliasEvent, span: Span) -> None:
        if any(one.anchor == event.anchor for one in self._stack):
            self._refuse(span, f"*{event.anchor} stands inside &{event.anchor}: it would hold itself")
        if event.anchor not in self._anchors:
            self._refuse(span, f"*{event.anchor} has no anchor", f"&{event.anchor} above its use")
        node, weight = self._anchors[event.anchor]
        self._place(node, weight, at=span)

    def _place(self, node: Node, weight: int, at: Span | None = None) -> None:
        span = at or node.span
        if not self._stack:
            self.root = node
            return
        parent = self._stack[-1]
        parent.weight += weight
        if sum(one.weight for one in self._stack) > MAX_VALUES:
            self._refuse(span, f"the file expands to more than {MAX_VALUES:,} values here", "a job file")
        if isinstance(parent.node, Items):
            parent.node.items.append(node)
        elif parent.key is None:
            parent.key = self._as_key(node, span)
        else:
            parent.node.pairs.append((parent.key, node))
            parent.key = None

    def _as_key(self, node: Node, span: Span) -> Scalar:
        if not isinstance(node, Scalar):
            self._refuse(span, "a field name that is a list or a block", "a plain word")
        assert isinstance(node, Scalar)
        return Scalar(span, node.text, node.quoted)
