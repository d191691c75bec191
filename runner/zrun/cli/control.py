"""`zrun stop` and `zrun restart`: tell a live job's coordinator; what follows is decided there."""

import click

from zrun.cli import screen
from zrun.cli.lookup import find
from zrun.cli.options import coordinator_option, job_argument, json_option
from zrun.core.errors import UsageError
from zrun.core.states import FINAL


@click.command()
@job_argument
@click.option("--now", is_flag=True, help="Without saving first.")
@coordinator_option
@json_option
def stop(job: str | None, now: bool, coordinator: str | None, as_json: bool) -> int:
    """Stop JOB: save at the next safe point of all ranks, then end. Returns at once; `zrun wait` waits."""
    target = find(job, coordinator)
    found = target.status()
    if found.get("state") in FINAL:
        screen.say(f"zrun: {target.job} is {found['state']} already")
    else:
        with target.live_client() as client:
            client.tell(target.job, "stop", {"now": now})
        screen.say(f"zrun: {target.job} is told to stop{' at once' if now else ' after a save'}")
    if as_json:
        screen.put_json(target.status())
    return 0


@click.command()
@job_argument
@coordinator_option
@json_option
def restart(job: str | None, coordinator: str | None, as_json: bool) -> int:
    """Begin a new attempt of the live JOB now, from its newest checkpoint."""
    target = find(job, coordinator)
    found = target.status()
    if found.get("state") in FINAL or not found.get("live"):
        raise UsageError(f"{target.job} is not live ({found.get('state')})", target.way_on())
    with target.live_client() as client:
        client.tell(target.job, "restart")
    screen.say(f"zrun: {target.job} is told to begin a new attempt")
    if as_json:
        screen.put_json(target.status())
    return 0
