"""What the log route answers: the last lines, the first error, or what is new since a cursor, of one attempt's ranks.

Bounded in lines and in bytes read, whatever is asked for and however large the files are.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zrun.core import log_files, log_merge
from zrun.core.errors import NotFoundError, UsageError
from zrun.core.log_merge import Filter, Follower
from zrun.core.runfolder import RunFolder

LARGEST_LOOK: Final = 32 << 20
"""Bytes read back per rank at most, however rare what is looked for."""
LONGEST_MATCH: Final = 4096
"""Characters of a line that a pattern is tried on."""
LONGEST_CURSOR: Final = 60_000


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    tail: int = 200
    attempt: int | None = None
    """None = the newest."""
    first_error: bool = False
    follow: bool = False
    """A cursor is wanted with the answer."""
    after: str = ""
    """A cursor given earlier: only what came since, and newer attempts."""


def answer(folder: RunFolder, asked: Asked, wanted: Filter, named: set[int]) -> dict[str, Any]:
    """attempt, ranks, lines, and a cursor if it is wanted. `named`: the ranks that incidents name."""
    if asked.after:
        return _since(folder, asked.after, wanted)
    attempt = chosen(folder, asked.attempt)
    there = log_files.ranks(folder, attempt)
    missing = sorted((wanted.ranks or frozenset()) - set(there))
    if missing and not asked.follow:
        raise NotFoundError(f"no log of rank {missing[0]} in attempt {attempt}", f"ranks with logs: {there or 'none'}")
    follower = Follower(folder, wanted, [attempt]) if asked.follow else None
    if asked.first_error:
        lines = log_merge.first_error(folder, [attempt], named, wanted, min(asked.tail, log_merge.AFTER_ERROR))
    else:
        lines = log_merge.last_lines(folder, [attempt], wanted, asked.tail, follower, LARGEST_LOOK)
    more = {"cursor": follower.cursor} if follower is not None else {}
    return {"attempt": attempt, "ranks": there, "lines": lines, **more}


def _since(folder: RunFolder, cursor: str, wanted: Filter) -> dict[str, Any]:
    try:
        follower = Follower(folder, wanted, [], cursor)
    except ValueError as error:
        raise UsageError("after= is no cursor", "take the one that the answer before gave") from error
    lines = follower.new()
    attempt = log_files.attempts(folder)[-1:] or [0]
    return {"attempt": attempt[0], "ranks": log_files.ranks(folder, attempt[0]), "lines": lines,
            "cursor": follower.cursor}  # fmt: skip


def chosen(folder: RunFolder, asked: int | None) -> int:
    """The attempt asked for, or the newest; 0 if there is none. Raises NotFoundError."""
    known = log_files.attempts(folder)
    if asked is None:
        return known[-1] if known else 0
    if asked not in known:
        raise NotFoundError(f"there are no logs of attempt {asked}", f"attempts with logs: {known or 'none'}")
    return asked


def pattern(text: str | None) -> re.Pattern[str] | None:
    """Raises UsageError."""
    if not text:
        return None
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"grep is no regular expression: {error}") from error


def backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, newest first, at most LARGEST_LOOK bytes back; others are passed over."""
    for raw in log_files.backwards(path, most=LARGEST_LOOK):
        try:
            value = json.loads(raw)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value
