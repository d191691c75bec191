"""`zrun resume`: go on with a run that is not live, whatever ended it, and follow it as launch does."""

from typing import Any

import click

from zrun.cli import inherited, registry, runs, screen
from zrun.cli.follow import Viewer
from zrun.cli.launch import prepare_again, signals_of, starter
from zrun.cli.lookup import Target, answering, find, read_json, supervised
from zrun.cli.options import coordinator_option, job_argument, json_option
from zrun.core import durable, env
from zrun.core.errors import NotFoundError, UsageError
from zrun.core.states import JobState


@click.command()
@job_argument
@click.option("-d", "--detach", is_flag=True, help="Do not follow; print the job's id.")
@click.option("--allow-changed", multiple=True, metavar="KEY", help="Resume though KEY of the job has changed.")
@coordinator_option
@json_option
def resume(job: str | None, detach: bool, allow_changed: tuple[str, ...], coordinator: str | None,
           as_json: bool) -> int:  # fmt: skip
    """Go on with JOB, which is not live (FAILED and STOPPED too), and follow it."""
    target = find(job, coordinator)
    if target.coordinator:
        options = {"spec": _spec_of(target, allow_changed)} if allow_changed else {}
        with target.client() as client:
            wanted = {*client.status(target.job).get("secrets_missing", []), *_secrets_in(target)}
            client.tell(target.job, "resume", {"options": options, "secrets": env.chosen(sorted(wanted))})
        return Viewer(target, owner=False, as_json=as_json, detach=detach, continued=True).run()
    return _resume_here(target, allow_changed, detach=detach, as_json=as_json)


def _secrets_in(target: Target) -> list[str]:
    """Their names, where the run's folder is in reach: a value in this shell is newer than the coordinator's."""
    found = read_json(target.folder.spec_json).get("secrets") if target.folder else None
    return [str(name) for name in found or []]


def _spec_of(target: Target, allow_changed: tuple[str, ...]) -> dict[str, Any]:
    """The job as it was understood; the keys allowed before stay so if none are given now."""
    spec = read_json(target.folder.spec_json) if target.folder else {}
    if not spec:
        raise NotFoundError(f"the folder of {target.job} is gone, or not on this machine")
    return {**spec, "allow_changed": list(allow_changed)} if allow_changed else spec


def _resume_here(target: Target, allow_changed: tuple[str, ...], *, detach: bool, as_json: bool) -> int:
    folder, spec = target.folder, _spec_of(target, allow_changed)
    assert folder is not None
    state = read_json(folder.verdict).get("state")
    if state == JobState.SUCCEEDED:
        raise UsageError(
            f"{target.job} has SUCCEEDED; there is nothing to go on with", "`zrun launch` begins a new run"
        )
    if not target.final() and (supervised(folder) or answering(folder)):
        raise UsageError(
            f"{target.job} is live ({state})",
            f"follow it with `zrun logs -f {target.job}`, or `zrun restart {target.job}`",
        )
    runs.check_secrets(spec.get("secrets") or [])
    inherited.tell(spec)
    prepare_again(folder, spec)
    durable.write_json(folder.spec_json, spec)  # written anew in any case: the run launched last is the newest
    registry.remember(target.job, target.name, folder.root)
    screen.say(f"zrun: {target.job}: goes on in {folder.root}")
    named = (spec.get("preempt") or {}).get("signals", [])
    return Viewer(
        target, owner=True, preempt_signals=signals_of(named), as_json=as_json, detach=detach, continued=True,
        start=starter(folder, lambda: None),
    ).run()  # fmt: skip
