"""`zrun wait`: until a job is over; its state becomes the exit code."""

import time

import click

from zrun.cli import screen
from zrun.cli.follow import final_code
from zrun.cli.lookup import Target, find, supervised
from zrun.cli.options import coordinator_option, job_argument, json_option, seconds
from zrun.core.errors import Exit, UnreachableError, ZrunError
from zrun.core.states import FINAL

_LOOK_EVERY_S = 0.25
_GONE_AFTER_S = 3.0


@click.command()
@job_argument
@click.option("--timeout", metavar="T", help="Wait no longer than this (then exit 101), such as 90s or 2h.")
@coordinator_option
@json_option
def wait(job: str | None, timeout: str | None, coordinator: str | None, as_json: bool) -> int:
    """Wait until JOB is over: exit 0 SUCCEEDED, 100 FAILED, 103 STOPPED, 104 timed out, 105 PREEMPTED, 101 not yet."""
    limit_s = seconds(timeout) if timeout else None
    target = find(job, coordinator)
    began = time.monotonic()
    away_since: float | None = None
    while True:
        now = time.monotonic()
        try:
            found = target.status()
        except UnreachableError:
            found = {"live": False}
        if found.get("state") in FINAL:
            return _over(found, as_json)
        away_since = None if found.get("live") else away_since or now
        if away_since is not None and now - away_since > _GONE_AFTER_S and not _cared_for(target):
            raise ZrunError(f"{target.job} was interrupted: nobody brings it to an end",
                            f"`zrun resume {target.job}` goes on with it")  # fmt: skip
        if limit_s is not None and now - began >= limit_s:
            screen.say(f"zrun: {target.job} is not over ({found.get('state') or 'not reachable'})")
            if as_json:
                screen.put_json(found)
            return Exit.NOT_FINISHED
        time.sleep(_LOOK_EVERY_S)


def _cared_for(target: Target) -> bool:
    return bool(target.coordinator) or (target.folder is not None and supervised(target.folder))


def _over(found: dict[str, object], as_json: bool) -> int:
    screen.put_json(found) if as_json else screen.say(
        f"zrun: {found.get('job')} {found['state']}: {found.get('reason')}"
    )
    return final_code(found)
