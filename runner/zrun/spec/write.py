"""JobSpec -> job.yaml with every default filled in; the file a new user starts from; what is promised but not in force.

Secrets are names in a JobSpec, so that no value of one can get here.
"""

import io
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from zrun.spec.block import Block
from zrun.spec.fields import JOB
from zrun.spec.job import JobSpec


def to_yaml(spec: JobSpec) -> str:
    """The job as it was understood; loading it gives the same job again (but for `allow_changed`, an option)."""
    yaml = YAML(pure=True)
    yaml.width = 1 << 20
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(_styled(JOB.show(spec)), stream)
    return stream.getvalue()


def _styled(value: Any) -> Any:
    """Commands of several lines as a block; odd characters escaped (ruamel would fold U+0085 into a space)."""
    match value:
        case dict():
            return {_styled(name): _styled(one) for name, one in value.items()}
        case list():
            return [_styled(one) for one in value]
        case str() if (
            all(line.isprintable() and line.strip() for line in value.split("\n")[:-1]) and value[-1:] == "\n"
        ):
            return LiteralScalarString(value)
        case str() if not value.isprintable():
            return DoubleQuotedScalarString(value)
        case _:
            return value


def not_in_force(spec: JobSpec) -> list[str]:
    """Defaults that a coming version serves, each as `field: value: what happens instead`, for `describe`."""
    return _promises(JOB, spec, "")


def _promises(block: Block, struct: Any, prefix: str) -> list[str]:
    found: list[str] = []
    for one in block.fields:
        value = one.gather(struct)
        if one.promised and value == block.default(one):
            shown = str(one.kind.show(value)).lower() if isinstance(value, bool) else one.kind.show(value)
            found.append(f"{prefix}{one.name}: {shown} (not yet: {one.promised})")
        if isinstance(one.kind, Block) and len(one.targets) == 1:
            found += _promises(one.kind, value, f"{prefix}{one.name}.")
    return found


def starter_yaml(name: str, script: str) -> str:
    """What `zrun init` writes: the two fields that are needed, and the ones most often wanted as comments."""
    return f"""\
# yaml-language-server: $schema=./job.schema.json
# `zrun check` checks this file, `zrun schema` prints every field with its default.
name: {name}
run: {script}
# nproc_per_node: auto        # N | auto | gpu | cpu
# env: {{LR: 3e-4}}
# checkpoint: {{every: 500 steps}}
# max_duration: 7d
"""
