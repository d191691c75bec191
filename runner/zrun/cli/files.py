"""`zrun check`, `zrun init` and `zrun schema`: about job files, nothing is run."""

import re
from pathlib import Path

import click

from zrun.cli import runs, screen
from zrun.cli.options import json_option
from zrun.core import durable
from zrun.core.errors import UsageError


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("job.yaml"))
@click.option("--set", "overrides", multiple=True, metavar="a.b=c", help="Override a field of the file.")
@json_option
def check(file: Path, overrides: tuple[str, ...], as_json: bool) -> int:
    """Check FILE (job.yaml) as launch would, and say how it was understood."""
    from zrun.spec.job import spec_to_dict
    from zrun.spec.load import load_job
    from zrun.spec.problem import cut
    from zrun.spec.write import not_in_force

    spec = load_job(file, overrides=overrides, on_this_machine=True)
    goes_on = runs.continued(file.absolute().parent / "runs", spec.name)
    runs.check_checkpoints(spec.checkpoint, spec.name, goes_on, fresh=False, variables=spec.env)
    if as_json:
        screen.put_json({"file": str(file), "spec": spec_to_dict(spec), "not_in_force": not_in_force(spec)})
        return 0
    nodes = str(spec.nodes_min) if spec.nodes_min == spec.nodes_max else f"{spec.nodes_min}:{spec.nodes_max}"
    run = cut(" ".join(spec.run))
    screen.put(f"{file}: good. {spec.name}: {run} on {nodes} node(s) x {spec.nproc_per_node} rank(s)")
    return 0


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("job.yaml"))
@click.option("--name", help="The job's name; else the folder's.")
@click.option("--run", "script", default="train.py", show_default=True, help="The script and its arguments.")
@json_option
def init(file: Path, name: str | None, script: str, as_json: bool) -> int:
    """Write a job file to begin with; an existing one is never overwritten."""
    from zrun.spec.write import starter_yaml

    text = starter_yaml(name or _dns_label(file.absolute().parent.name), script)
    try:
        durable.create_exclusive(file, text.encode(), mode=0o644)
    except FileExistsError:
        raise UsageError(f"{file} exists already", "give another name: zrun init OTHER.yaml") from None
    screen.say(f"zrun: wrote {file}; `zrun check {file}` checks it, `zrun launch {file}` runs it")
    if as_json:
        screen.put_json({"file": str(file)})
    return 0


def _dns_label(folder: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:63].rstrip("-") or "job"


@click.command()
@json_option
def schema(as_json: bool) -> int:  # noqa: ARG001 - a schema is JSON already
    """Print the JSON schema of the job file, with every default."""
    from zrun.spec.schema import schema as made

    screen.put_json(made())
    return 0
