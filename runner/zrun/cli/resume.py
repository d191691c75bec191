"""`zrun resume`: go on with a run that is not live, whatever ended it, and follow it as launch does."""

import click

from zrun.cli import registry, screen
from zrun.cli.follow import Viewer
from zrun.cli.launch import prepare_again, signals_of, starter
from zrun.cli.lookup import Target, answering, find, read_json, supervised
from zrun.cli.options import coordinator_option, job_argument, json_option
from zrun.core.errors import NotFoundError, UsageError
from zrun.core.states import JobState


@click.command()
@job_argument
@click.option("-d", "--detach", is_flag=True, help="Do not follow; print the job's id.")
@coordinator_option
@json_option
def resume(job: str | None, detach: bool, coordinator: str | None, as_json: bool) -> int:
    """Go on with JOB, which is not live (FAILED and STOPPED too), and follow it."""
    target = find(job, coordinator)
    if target.coordinator:
        with target.client() as client:
            client.tell(target.job, "resume")
        return Viewer(target, owner=False, as_json=as_json, detach=detach, continued=True).run()
    return _resume_here(target, detach=detach, as_json=as_json)


def _resume_here(target: Target, *, detach: bool, as_json: bool) -> int:
    folder = target.folder
    if folder is None or not folder.spec_json.exists():
        raise NotFoundError(f"the folder of {target.job} is gone")
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
    prepare_again(folder, None)
    folder.spec_json.touch()  # the run launched last is the newest
    registry.remember(target.job, target.name, folder.root)
    screen.say(f"zrun: {target.job}: goes on in {folder.root}")
    named = read_json(folder.spec_json).get("preempt", {}).get("signals", [])
    return Viewer(
        target, owner=True, preempt_signals=signals_of(named), as_json=as_json, detach=detach, continued=True,
        start=starter(folder, lambda: None),
    ).run()  # fmt: skip
