"""docs/job-yaml.md from the table of fields: `python -m zrun.spec.docs > docs/job-yaml.md`."""

from typing import Any, Final

from zrun.spec.block import REQUIRED, Block, Field
from zrun.spec.fields import JOB, NOTIFY, RULE, Match
from zrun.spec.kinds import OMIT
from zrun.spec.names import FOREIGN

_HEAD: Final = """\
# job.yaml

*Generated from the table in `runner/zrun/spec/fields.py` by `python -m zrun.spec.docs`; a test compares.*

Only `name` and `run` are needed:

```yaml
name: gpt2
run: train.py --lr 1e-4
```

* **Durations** carry a unit: `90s`, `15m`, `2h`, `7d`, `1h30m`, and Slurm's `D-HH:MM:SS` (hours
  under 24, minutes and seconds under 60). **Sizes** too: `512MiB`,
  `64GiB`, `2TB`.
* The file is YAML 1.2 in UTF-8, at most 1 MiB. Doubled and unknown fields, tabs, explicit tags, merge keys and anchors
  that expand to more than 20,000 values are refused. `true` and `false` are the only booleans; `no` is a text.
* Every mistake is reported at once, with file, line, column, what was expected and a suggestion.
* `zrun launch job.yaml --set restart.max_restarts=3` overrides one field (the value is YAML; a list or a block is set
  as a whole). `-e NAME` copies a variable of yours, `-e NAME=VALUE` sets one, and what follows `--` is appended to
  `run`.
* **Not yet**: a value that this version does not serve is refused where you wrote it. A value equal to the default
  never is, and `zrun describe` lists the defaults that are not yet in force.
"""


def render_docs() -> str:
    """The whole page."""
    parts = [_HEAD, "## Fields\n", _table(JOB)]
    for one in JOB.fields:
        parts += _sections(one, one.name)
    parts += ["## `restart.rules[]`\n", _table(RULE), "`match` holds exactly one of:\n", _table(Match())]
    parts += ["## `notify[]`\n", _table(NOTIFY), _foreign()]
    return "\n".join(parts).rstrip() + "\n"


def _sections(one: Field, path: str) -> list[str]:
    if not isinstance(one.kind, Block):
        return []
    parts = [f"## `{path}`\n", f"{one.doc[0].upper()}{one.doc[1:]}.\n", _table(one.kind)]
    for inner in one.kind.fields:
        parts += _sections(inner, f"{path}.{inner.name}")
    return parts


def _table(block: Block) -> str:
    lines = ["| field | value | default | meaning |", "|---|---|---|---|"]
    for one in block.fields:
        cells = (f"`{one.name}`", one.kind.expects, _default(block, one), one.doc + _not_yet(one))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _default(block: Block, one: Field) -> str:
    if isinstance(one.kind, Block):
        return "required" if one.required else "see below"
    value = block.default(one)
    if value is REQUIRED:
        return "required"
    shown = one.kind.show(value)
    return "" if shown is OMIT or shown is None else f"`{_flow(shown)}`"


def _flow(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "{" + ", ".join(f"{name}: {_flow(one)}" for name, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(_flow(one) for one in value) + "]"
        case _:
            return str(value)


def _not_yet(one: Field) -> str:
    words = []
    if one.later:
        words.append(f"not yet: {one.later.way_out}")
    if one.promised:
        words.append(f"not yet in force: {one.promised}")
    return f" *({'; '.join(words)})*" if words else ""


def _foreign() -> str:
    lines = ["## Names from other tools\n", "| there | here |", "|---|---|"]
    by_tool: dict[str, list[str]] = {}
    for name, (tool, here) in FOREIGN.items():
        if tool != "other" and here != "-":
            by_tool.setdefault(tool, []).append(f"`{name}` is `{here}`")
    lines += [f"| {tool} | {', '.join(sorted(names))} |" for tool, names in by_tool.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(render_docs(), end="")
