"""`zrun logs`: the ranks' output, filtered, from the run's folder or from a coordinator elsewhere."""

import heapq
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import click

from zrun.cli import logfiles, screen
from zrun.cli.logfiles import Line
from zrun.cli.lookup import Target, find
from zrun.cli.options import coordinator_option, job_argument, json_option, numbers, since
from zrun.core.errors import NotFoundError, UnreachableError, UsageError
from zrun.core.runfolder import RunFolder
from zrun.core.states import FINAL

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_LEVEL: Final = {name: number for number, name in enumerate(LEVELS)}
Followed = dict[int, dict[int, logfiles.Growing]]
"""attempt -> rank -> its file."""
MOST_THERE: Final = 10_000
"""Lines that a coordinator gives at once."""
_AFTER_ERROR: Final = 40
"""Lines shown from the first error on."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines a person wants to see; None = any."""

    ranks: frozenset[int] | None = None
    node: str | None = None
    level: str | None = None
    oldest: str = ""
    """RFC 3339; lines carry times in the same form, so that text compares."""
    grep: re.Pattern[str] | None = None
    stream: str | None = None

    def takes(self, line: Line) -> bool:
        if self.node is not None and line.get("node") != self.node:
            return False
        if self.stream is not None and line.get("stream") != self.stream:
            return False
        if self.level is not None and _LEVEL.get(str(line.get("level")), 1) < _LEVEL[self.level]:
            return False
        if self.oldest and str(line.get("ts") or self.oldest) < self.oldest:
            return False
        return self.grep is None or self.grep.search(str(line.get("msg", ""))) is not None

    def wants_rank(self, rank: int) -> bool:
        return self.ranks is None or rank in self.ranks


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
    show = screen.put_json_line if as_json else show_line
    if target.folder is None:
        return _from_coordinator(target, wanted, attempt, tail, first_error, show)
    chosen = _attempts(target.folder, attempt)
    if not follow:
        _refuse_no_rank(target.folder, chosen, wanted)
    followed: Followed = {n: _growing(target.folder, n) for n in chosen} if follow else {}
    if first_error:
        lines: Iterable[Line] = first_error_of(target, chosen, wanted)
    else:
        lines = collect(target.folder, chosen, wanted, tail or None, followed)
    for line in lines:
        show(line)
    if follow:
        _follow(target, wanted, followed, show)
    return 0


def _pattern(grep: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(grep) if grep else None
    except re.error as error:
        raise UsageError(f"--grep {grep!r} is no regular expression: {error}") from error


def _attempts(folder: RunFolder, attempt: str | None) -> list[int]:
    there = logfiles.attempts(folder)
    if attempt is None:
        return there[-1:]
    if attempt == "all":
        return there
    if int(attempt) not in there:
        raise NotFoundError(f"there are no logs of attempt {attempt}", f"attempts with logs: {there or 'none'}")
    return [int(attempt)]


def _refuse_no_rank(folder: RunFolder, attempts: list[int], wanted: Filter) -> None:
    """Ranks without any log are a mistake, not silence; while nothing is logged at all, nobody knows yet."""
    there = sorted({rank for attempt in attempts for rank in logfiles.ranks(folder, attempt)})
    if there and wanted.ranks is not None and not wanted.ranks & set(there):
        asked = ", ".join(map(str, sorted(wanted.ranks)[:8]))
        named = ", ".join(map(str, there)) if len(there) <= 16 else f"{there[0]}-{there[-1]}"
        raise NotFoundError(f"there are no logs of rank {asked}", f"ranks with logs: {named}")


def collect(
    folder: RunFolder, attempts: list[int], wanted: Filter, count: int | None, followed: Followed | None = None
) -> list[Line]:
    """The last `count` lines of all chosen ranks and attempts, in order of time (attempts one after the other).

    A file in `followed` is read only up to where following it begins, so that no line comes twice.
    """
    ends = {(a, r): growing.offset for a, files in (followed or {}).items() for r, growing in files.items()}
    found: list[Line] = []
    for attempt in reversed(attempts):
        left = None if count is None else count - len(found)
        if left == 0:
            break
        tails = [
            logfiles.tail(
                folder.rank_log(attempt, r), left, wanted.takes, oldest=wanted.oldest, end=ends.get((attempt, r))
            )
            for r in logfiles.ranks(folder, attempt)
            if wanted.wants_rank(r)
        ]
        merged = list(heapq.merge(*tails, key=lambda line: str(line.get("ts", ""))))
        found = (merged if left is None else merged[-left:]) + found
    return found


def first_error_of(target: Target, attempts: list[int], wanted: Filter) -> list[Line]:
    """From the first line of level error on, of the rank that an incident names if there is one."""
    assert target.folder is not None
    named = {int(i["rank"]) for i in target.status().get("incidents") or [] if i.get("rank") is not None
             and i.get("attempt") in {None, *attempts}}  # fmt: skip
    best: list[Line] = []
    for attempt in attempts:
        there = [r for r in logfiles.ranks(target.folder, attempt) if wanted.wants_rank(r)]
        for rank in [r for r in there if r in named] or there:
            lines = logfiles.tail(target.folder.rank_log(attempt, rank), None, lambda _: True)
            errors = (n for n, line in enumerate(lines) if _LEVEL.get(str(line.get("level")), 1) >= _LEVEL["error"])
            at = next(errors, None)
            if at is not None and (not best or str(lines[at].get("ts")) < str(best[0].get("ts"))):
                best = [line for line in lines[at : at + _AFTER_ERROR] if wanted.takes(line)]
        if best:
            return best
    return best


def _growing(folder: RunFolder, attempt: int) -> dict[int, logfiles.Growing]:
    return {r: logfiles.Growing(folder.rank_log(attempt, r), at_end=True) for r in logfiles.ranks(folder, attempt)}


def _follow(target: Target, wanted: Filter, followed: Followed, show: Any) -> None:
    """New lines of known files, and new files and attempts, until the job is final and nothing more comes."""
    assert target.folder is not None
    asked, over = 0.0, False
    while True:
        now = time.monotonic()
        if now - asked >= 1.0:
            asked, over = now, is_over(target)
        came = sorted(_new_lines(target.folder, wanted, followed), key=lambda line: str(line.get("ts", "")))
        for line in came:
            show(line)
        if over and not came:
            return
        time.sleep(0.1)


def is_over(target: Target) -> bool:
    """Final, or interrupted: nobody is alive to write more."""
    try:
        status = target.status()
    except UnreachableError:
        return False
    return status.get("state") in FINAL or not status.get("live", True)


def _new_lines(folder: RunFolder, wanted: Filter, followed: Followed) -> Iterator[Line]:
    newest = max(followed, default=0)
    for attempt in logfiles.attempts(folder):
        if attempt < newest:
            continue
        files = followed.setdefault(attempt, {})
        for rank in logfiles.ranks(folder, attempt):
            if wanted.wants_rank(rank):
                growing = files.setdefault(rank, logfiles.Growing(folder.rank_log(attempt, rank)))
                yield from filter(wanted.takes, growing.read())


def _from_coordinator(target: Target, wanted: Filter, attempt: str | None, tail: int, first_error: bool,
                      show: Any) -> int:  # fmt: skip
    """The folder is not on this machine: the coordinator asks the nodes."""
    with target.client(timeout_s=30.0) as client:
        answer = client.read(
            target.job, "logs", attempt=None if attempt == "all" else attempt, node=wanted.node, level=wanted.level,
            tail=min(tail or MOST_THERE, MOST_THERE), since=wanted.oldest or None, stream=wanted.stream,
            rank=",".join(map(str, sorted(wanted.ranks))) if wanted.ranks else None,
            grep=wanted.grep.pattern if wanted.grep else None, first_error="true" if first_error else None,
        )  # fmt: skip
    for line in answer["lines"]:
        show(line)
    return 0


def show_line(line: Line) -> None:
    """`[rank 0] text`; errors red on a terminal."""
    import sys

    text = f"[rank {line.get('rank', '?')}] {screen.clean(str(line.get('msg', '')))}"
    bad = _LEVEL.get(str(line.get("level")), 1) >= _LEVEL["error"]
    screen.put_line(screen.paint(text, "red", sys.stdout) if bad else text)
