"""`zrun describe`: everything about a job: how it stands, its settings, and which of them are not yet in force."""

from typing import Any

import click

from zrun.cli import screen
from zrun.cli.incidents import summary
from zrun.cli.lookup import Target, find, read_json
from zrun.cli.options import coordinator_option, job_argument, json_option
from zrun.cli.status import describe_status


@click.command()
@job_argument
@coordinator_option
@json_option
def describe(job: str | None, coordinator: str | None, as_json: bool) -> int:
    """Everything about JOB."""
    target = find(job, coordinator)
    found = target.status()
    spec = read_json(target.folder.spec_json) if target.folder else {}
    later = _not_in_force(spec)
    if as_json:
        screen.put_json({**found, "spec": spec, "not_in_force": later, "dir": _dir(target)})
        return 0
    screen.put("\n".join(describe_status(found)))
    screen.put(f"\nfolder: {_dir(target)}")
    if found.get("incidents"):
        screen.put("\nincidents\n" + "\n".join(f"  {summary(i)}" for i in found["incidents"]))
    if found.get("checkpoints"):
        screen.put("\ncheckpoints\n" + "\n".join(f"  {_checkpoint(c)}" for c in found["checkpoints"]))
    limits = found.get("limits")
    if limits:
        screen.put("\nlimits of the watchdog\n" + "\n".join(f"  {key}: {value}" for key, value in limits.items()))
    if target.folder is not None and target.folder.job_yaml.is_file():
        text = target.folder.job_yaml.read_text(errors="replace").rstrip()
        screen.put("\njob.yaml as understood\n" + "\n".join(f"  {row}" for row in text.splitlines()))
    if later:
        screen.put("\ndefaults not yet in force\n" + "\n".join(f"  {row}" for row in later))
    return 0


def _dir(target: Target) -> str | None:
    return str(target.folder.root) if target.folder else None


def _checkpoint(one: dict[str, Any]) -> str:
    return f"step {one.get('step')}  {one.get('tier')}  {one.get('state')}  {screen.size(one.get('bytes'))}"


def _not_in_force(spec: dict[str, Any]) -> list[str]:
    if not spec:
        return []
    from zrun.spec.job import spec_from_dict
    from zrun.spec.write import not_in_force

    return not_in_force(spec_from_dict(spec))
