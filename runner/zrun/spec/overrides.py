"""`--set a.b=c`, `-e K[=V]` and arguments after `--`, laid over the tree of a job file.

A mistake in one is reported under the option's own name. Knows nothing about what fields mean, only which of them hold
names of the user's choice.
"""

from collections.abc import Mapping, Sequence

from zrun.spec.block import Block
from zrun.spec.kinds import MapOf, shape
from zrun.spec.nodes import BadYaml, Node, Pairs, Scalar, parse
from zrun.spec.problem import Problems, Source, Span, Wrong, quoted
from zrun.spec.values import own_variable


def lay_over(root: Pairs, overrides: Sequence[str], table: Block, problems: Problems) -> Pairs:
    """The tree with every `a.b=c` in place; later ones win. The tree given is not changed."""
    for text in overrides:
        path, equals, value = text.partition("=")
        source = Source(f"--set {text}", value, is_file=False)
        span = Span(source, 0, len(value))
        keys = _keys(path.strip(), table)
        if not equals or not keys or not all(keys) or len(keys) > 16:
            problems.add(span, "not a setting", expected="a.b=c, for example --set restart.max_restarts=3")
            continue
        try:
            root = _placed(root, keys, parse(source), span)
        except BadYaml as bad:
            problems.add(bad.problem.span, bad.problem.message, suggestion=bad.problem.suggestion)
        except Wrong as wrong:
            problems.add(span, wrong.message, suggestion=wrong.suggestion)
    return root


def _keys(path: str, table: Block) -> list[str]:
    """Split at dots, but the name of a label or variable may hold dots itself."""
    keys: list[str] = []
    kind: object = table
    rest = path
    while rest and isinstance(kind, Block):
        name, _, rest = rest.partition(".")
        keys.append(name)
        one = kind.by_name.get(name)
        kind = one.kind if one else None
    if not rest:
        return keys
    return [*keys, rest] if isinstance(kind, MapOf) else [*keys, *rest.split(".")]


def _placed(node: Node, keys: Sequence[str], value: Node, span: Span) -> Pairs:
    """A copy of the block with `value` at `keys`: nodes under an anchor are shared and must not change."""
    if isinstance(node, Scalar) and node.empty:
        node = Pairs(span)
    if not isinstance(node, Pairs):
        raise Wrong(f"{shape(node)} stands where {quoted(keys[0])} would go", "set the whole of it instead")
    name = Scalar(span, keys[0])
    if len(keys) > 1:
        value = _placed(node.get(keys[0]) or Pairs(span), keys[1:], value, span)
    kept = [(key, child) for key, child in node.pairs if key.text != keys[0]]
    return Pairs(node.span, [*kept, (name, value)])


def variables(options: Sequence[str], caller: Mapping[str, str], problems: Problems) -> dict[str, str]:
    """The variables of `-e K` (the caller's value) and `-e K=V`, as they are, byte for byte."""
    chosen: dict[str, str] = {}
    for text in options:
        name, equals, value = text.partition("=")
        span = Span(Source(f"-e {name}", text, is_file=False), 0, len(text))
        try:
            own_variable(name)
            chosen[name] = value if equals else _copied(name, caller)
        except Wrong as wrong:
            problems.add(span, wrong.message, suggestion=wrong.suggestion)
    return chosen


def _copied(name: str, caller: Mapping[str, str]) -> str:
    if name not in caller:
        raise Wrong(f"{name} is not set in your environment", f"-e {name}=VALUE")
    return caller[name]
