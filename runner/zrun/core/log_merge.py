"""The lines of many ranks and attempts as one: filtered, in order of time, from the end, from the first error, or as
they come. Knows nothing about terminals or HTTP; `Follower.cursor` is for one who comes back later.
"""

import heapq
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from zrun.core import log_files
from zrun.core.log_files import LEVELS, Line
from zrun.core.log_follow import Growing, Place
from zrun.core.runfolder import RunFolder

AFTER_ERROR: Final = 40
"""Lines shown from the first error on."""
_READ_AT_ONCE: Final = 32 << 20
"""Bytes of new lines taken in one turn, of all files together."""
_SMALLEST_READ: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines somebody wants to see; None = any."""

    ranks: frozenset[int] | None = None
    node: str | None = None
    level: str | None = None
    """This level and worse."""
    oldest: str = ""
    """RFC 3339 in UTC; lines carry times in the same form, so that text compares."""
    grep: re.Pattern[str] | None = None
    stream: str | None = None
    longest_match: int | None = None
    """Characters of a line on which `grep` is tried; None = all."""

    def takes(self, line: Line) -> bool:
        if self.node is not None and line.get("node") != self.node:
            return False
        if self.stream is not None and line.get("stream") != self.stream:
            return False
        if self.level is not None and log_files.severity(line) < LEVELS[self.level]:
            return False
        if self.oldest and str(line.get("ts") or self.oldest) < self.oldest:
            return False
        return self.grep is None or self.grep.search(str(line.get("msg", ""))[: self.longest_match]) is not None

    def wants_rank(self, rank: int) -> bool:
        return self.ranks is None or rank in self.ranks

    def of(self, ranks: list[int]) -> list[int]:
        return [rank for rank in ranks if self.wants_rank(rank)]


def last_lines(
    folder: RunFolder, attempts: list[int], wanted: Filter, count: int | None, follower: "Follower | None" = None,
    most: int | None = None,
) -> list[Line]:  # fmt: skip
    """The last `count` lines of all chosen ranks and attempts, in order of time (attempts one after the other).

    What `follower` will give is left out. `most`: bytes read back of each file at most, however rare what is wanted.
    """
    found: list[Line] = []
    for attempt in reversed(attempts):
        left = None if count is None else count - len(found)
        if left == 0:
            break
        tails = [
            log_files.tail(
                folder.rank_log(attempt, rank), left, wanted.takes, oldest=wanted.oldest, most=most,
                end=follower.begins_at(attempt, rank) if follower is not None else None,
            )
            for rank in wanted.of(log_files.ranks(folder, attempt))
        ]  # fmt: skip
        merged = in_time(tails)
        found = (merged if left is None else merged[-left:]) + found
    return found


def first_error(
    folder: RunFolder, attempts: list[int], named: set[int], wanted: Filter, count: int = AFTER_ERROR
) -> list[Line]:
    """From the first line of level error on, of a rank that an incident names if it wrote one."""
    for attempt in attempts:
        there = wanted.of(log_files.ranks(folder, attempt))
        for ranks in ([rank for rank in there if rank in named], there):
            of_each = [log_files.from_first_error(folder.rank_log(attempt, r), count, wanted.oldest) for r in ranks]
            best = min((lines for lines in of_each if lines), key=lambda lines: _ts(lines[0]), default=None)
            if best is not None:
                return [line for line in best if wanted.takes(line)]
    return []


def in_time(parts: Iterable[list[Line]]) -> list[Line]:
    return list(heapq.merge(*parts, key=_ts))


def _ts(line: Line) -> str:
    return str(line.get("ts", ""))


class Follower:
    """New lines of known files, of files that appear, of attempts that begin; an attempt's last ones before those."""

    def __init__(self, folder: RunFolder, wanted: Filter, attempts: list[int], cursor: str = "") -> None:
        """From the end of what the logs of `attempts` are now, or from where `cursor` stands. Raises ValueError."""
        self._folder, self._wanted = folder, wanted
        self._files: dict[int, dict[int, Growing]] = {}
        if cursor:
            self._go_on(cursor)
            return
        for attempt in attempts:
            self._files[attempt] = {
                rank: Growing(folder.rank_log(attempt, rank), at_end=True)
                for rank in wanted.of(log_files.ranks(folder, attempt))
            }

    def begins_at(self, attempt: int, rank: int) -> int:
        """Bytes of this file that it leaves to others."""
        growing = self._files.get(attempt, {}).get(rank)
        return growing.end if growing is not None else 0

    def new(self) -> list[Line]:
        """In order of time; empty: nothing came."""
        newest = max(self._files, default=0)
        found: list[Line] = []
        for attempt in log_files.attempts(self._folder):
            if attempt < newest:
                continue
            files = self._files.setdefault(attempt, {})
            for rank in self._wanted.of(log_files.ranks(self._folder, attempt)):
                files.setdefault(rank, Growing(self._folder.rank_log(attempt, rank)))
            most = max(_SMALLEST_READ, _READ_AT_ONCE // max(1, len(files)))
            found += in_time([list(filter(self._wanted.takes, growing.read(most))) for growing in files.values()])
        return found

    @property
    def cursor(self) -> str:
        """Where it stands, as text without blanks."""
        newest = max(self._files, default=0)
        parts = [f"{rank}:{growing.place.text()}" for rank, growing in self._files.get(newest, {}).items()]
        return f"{newest}," + ",".join(parts)

    def _go_on(self, cursor: str) -> None:
        attempt, *parts = cursor.split(",")
        files = self._files.setdefault(int(attempt), {})
        for part in filter(None, parts):
            rank, _, place = part.partition(":")
            path = self._folder.rank_log(int(attempt), int(rank))
            files[int(rank)] = Growing(path, place=Place.of(place))
