"""`zrun logs`: the ranks' output, filtered, from the run's folder or from a coordinator elsewhere."""

import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

import click

from zrun.cli import screen
from zrun.cli.lookup import Target, find
from zrun.cli.options import coordinator_option, job_argument, json_option, numbers, since
from zrun.core import log_files, log_merge
from zrun.core.errors import NotFoundError, UnreachableError, UsageError
from zrun.core.log_files import Line
from zrun.core.log_merge import Filter, Follower
from zrun.core.runfolder import RunFolder
from zrun.core.states import FINAL

LEVELS: Final = tuple(log_files.LEVELS)
MOST_THERE: Final = 10_000
"""Lines that a coordinator gives at once."""
_TURN_S: Final = 0.1
_TURN_THERE_S: Final = 0.5
Show = Callable[[Line], None]


@click.command()
@job_argument
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until the job is over.")
@click.option("--rank", metavar="R[,R]", help="Only these ranks (0,2 or 0-7).")
@click.option("--node", metavar="N", help="Only ranks of this node.")
@click.option("--attempt", metavar="N", help="This attempt, or `all`; else the newest.")
@click.option("--first-error", is_flag=True, help="The first error of the attempt and what its rank said next.")
@click.option("--level", type=click.Choice(LEVELS, case_sensitive=False), help="Lines of at least this level.")
@click.option("--since", "since_", metavar="T", help="Newer than a duration (10m) or a time.")
@click.option("--tail", type=click.IntRange(min=0), default=1000, show_default=True, help="Last N lines; 0 = all.")
@click.option("--grep", metavar="RE", help="Lines in which this regular expression is found.")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Only this one.")
@coordinator_option
@json_option
def logs(job: str | None, follow: bool, rank: str | None, node: str | None, attempt: str | None, first_error: bool,
         level: str | None, since_: str | None, tail: int, grep: str | None, stream: str | None,
         coordinator: str | None, as_json: bool) -> int:  # fmt: skip
    """Output of the ranks of JOB: newest attempt, all ranks, last 1000 lines if nothing else is asked for."""
    wanted = Filter(
        frozenset(numbers(rank, "rank")) if rank else None, node, level,
        since(since_, datetime.now(UTC)) if since_ else "", _pattern(grep), stream,
    )  # fmt: skip
    if attempt is not None and attempt != "all" and not attempt.isdecimal():
        raise UsageError(f"{attempt!r} is no attempt", "a number from 1, or all")
    target = find(job, coordinator)
    show: Show = screen.put_json_line if as_json else show_line
    if target.folder is None:
        return _from_coordinator(target, wanted, attempt, tail, first_error, follow, show)
    chosen = _attempts(target.folder, attempt)
    if not follow:
        _refuse_no_rank(target.folder, chosen, wanted)
    follower = Follower(target.folder, wanted, chosen) if follow else None
    if first_error:
        lines: Iterable[Line] = log_merge.first_error(target.folder, chosen, _named(target, chosen), wanted)
    else:
        lines = log_merge.last_lines(target.folder, chosen, wanted, tail or None, follower)
    for line in lines:
        show(line)
    if follower is not None:
        _follow(target, follower.new, _TURN_S, show)
    return 0


def _pattern(grep: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(grep) if grep else None
    except re.error as error:
        raise UsageError(f"--grep {grep!r} is no regular expression: {error}") from error


def _attempts(folder: RunFolder, attempt: str | None) -> list[int]:
    there = log_files.attempts(folder)
    if attempt is None:
        return there[-1:]
    if attempt == "all":
        return there
    if int(attempt) not in there:
        raise NotFoundError(f"there are no logs of attempt {attempt}", f"attempts with logs: {there or 'none'}")
    return [int(attempt)]


def _refuse_no_rank(folder: RunFolder, attempts: list[int], wanted: Filter) -> None:
    """Ranks without any log are a mistake, not silence; while nothing is logged at all, nobody knows yet."""
    there = sorted({rank for attempt in attempts for rank in log_files.ranks(folder, attempt)})
    if there and wanted.ranks is not None and not wanted.ranks & set(there):
        asked = ", ".join(map(str, sorted(wanted.ranks)[:8]))
        named = ", ".join(map(str, there)) if len(there) <= 16 else f"{there[0]}-{there[-1]}"
        raise NotFoundError(f"there are no logs of rank {asked}", f"ranks with logs: {named}")


def _named(target: Target, attempts: list[int]) -> set[int]:
    """Ranks that the incidents of these attempts name."""
    incidents = target.status().get("incidents") or []
    return {int(i["rank"]) for i in incidents if i.get("rank") is not None and i.get("attempt") in {None, *attempts}}


def _follow(target: Target, new: Callable[[], list[Line]], turn_s: float, show: Show) -> None:
    """New lines until the job is final and nothing more comes."""
    asked, over = 0.0, False
    while True:
        now = time.monotonic()
        if now - asked >= 1.0:
            asked, over = now, is_over(target)
        came = new()
        for line in came:
            show(line)
        if over and not came:
            return
        if not came:
            time.sleep(turn_s)


def is_over(target: Target) -> bool:
    """Final, or interrupted: nobody is alive to write more."""
    try:
        status = target.status()
    except UnreachableError:
        return False
    return status.get("state") in FINAL or not status.get("live", True)


def _from_coordinator(target: Target, wanted: Filter, attempt: str | None, tail: int, first_error: bool,
                      follow: bool, show: Show) -> int:  # fmt: skip
    """The folder is not on this machine: the coordinator reads it."""
    asked = {
        "node": wanted.node, "level": wanted.level, "since": wanted.oldest or None, "stream": wanted.stream,
        "rank": ",".join(map(str, sorted(wanted.ranks))) if wanted.ranks else None,
        "grep": wanted.grep.pattern if wanted.grep else None,
    }  # fmt: skip
    with target.client(timeout_s=30.0) as client:
        answer = client.read(
            target.job, "logs", **asked, attempt=None if attempt == "all" else attempt,
            tail=min(tail or MOST_THERE, MOST_THERE), first_error="true" if first_error else None,
            follow="true" if follow else None,
        )  # fmt: skip
        for line in answer["lines"]:
            show(line)
        cursor = answer.get("cursor")
        if not follow or cursor is None:
            return 0

        def new() -> list[Line]:
            nonlocal cursor
            try:
                more = client.read(target.job, "logs", **asked, after=cursor)
            except UnreachableError:  # it may come back, and knows then what the cursor means
                return []
            cursor = more["cursor"]
            lines: list[Line] = more["lines"]
            return lines

        _follow(target, new, _TURN_THERE_S, show)
    return 0


def show_line(line: Line) -> None:
    """`[rank 0] text`; errors red on a terminal."""
    import sys

    text = f"[rank {line.get('rank', '?')}] {screen.clean(str(line.get('msg', '')))}"
    bad = log_files.severity(line) >= log_files.LEVELS["error"]
    screen.put_line(screen.paint(text, "red", sys.stdout) if bad else text)
