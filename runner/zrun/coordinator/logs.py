"""Reading a run's log lines from the end, at a cost that follows what is asked for and not the size of the file.

Knows the folder `logs/attempt-A/rank-R.jsonl` and nothing about who writes there; a line that is not JSON is
passed over.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zrun.core.runfolder import RunFolder

BLOCK: Final = 64 << 10
LARGEST_LOOK: Final = 32 << 20
"""Bytes read back per rank at most, however rare what is looked for."""
LONGEST_MATCH: Final = 4096
"""Characters of a line that a pattern is tried on."""
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_RANK_FILE: Final = re.compile(r"rank-(\d+)\.jsonl")
_ATTEMPT_FOLDER: Final = re.compile(r"attempt-(\d+)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines; None = all."""

    tail: int = 200
    stream: str | None = None
    level: str | None = None
    """This level and worse."""
    since: str | None = None
    """RFC 3339 UTC; lines with this time or later."""
    pattern: re.Pattern[str] | None = None
    node: str | None = None

    def takes(self, line: dict[str, Any]) -> bool:
        if self.stream and line.get("stream") != self.stream:
            return False
        if self.node and line.get("node") != self.node:
            return False
        if self.level and LEVELS.get(str(line.get("level")), 20) < LEVELS[self.level]:
            return False
        return self.pattern is None or bool(self.pattern.search(str(line.get("msg", ""))[:LONGEST_MATCH]))


def attempts(folder: RunFolder) -> list[int]:
    """Attempts that have logs, oldest first."""
    return _numbers(folder.root / "logs", _ATTEMPT_FOLDER)


def ranks(folder: RunFolder, attempt: int) -> list[int]:
    """Ranks that have a log in this attempt."""
    return _numbers(folder.attempt_logs(attempt), _RANK_FILE)


def read(folder: RunFolder, attempt: int, of_ranks: list[int], wanted: Wanted) -> list[dict[str, Any]]:
    """The newest `tail` lines of these ranks, merged by time, oldest first."""
    found: list[dict[str, Any]] = []
    for rank in of_ranks:
        found += tail_of(folder.rank_log(attempt, rank), wanted)
    found.sort(key=lambda line: str(line.get("ts", "")))
    return found[-wanted.tail :] if wanted.tail else []


def tail_of(path: Path, wanted: Wanted) -> list[dict[str, Any]]:
    """The newest matching lines of one file, oldest first."""
    found: list[dict[str, Any]] = []
    for line in backwards(path):
        if wanted.since and str(line.get("ts", "")) < wanted.since:
            break
        if wanted.takes(line):
            found.append(line)
            if len(found) >= wanted.tail:
                break
    return found[::-1]


def first_error(folder: RunFolder, attempt: int, of_ranks: list[int], wanted: Wanted) -> list[dict[str, Any]]:
    """The earliest error line among these ranks and what the same rank wrote from there on."""
    best: list[dict[str, Any]] = []
    for rank in of_ranks:
        lines = list(backwards(folder.rank_log(attempt, rank)))[::-1]
        at = next(
            (i for i, line in enumerate(lines) if LEVELS.get(str(line.get("level")), 20) >= LEVELS["error"]), None
        )
        if at is not None and (not best or str(lines[at].get("ts")) < str(best[0].get("ts"))):
            best = lines[at : at + wanted.tail]
    return [line for line in best if wanted.takes(line)]


def backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a JSON-lines file, newest first, at most LARGEST_LOOK bytes back."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            lowest = max(0, end - LARGEST_LOOK)
            rest = b""
            while end > lowest:
                start = max(lowest, end - BLOCK)
                file.seek(start)
                lines = (file.read(end - start) + rest).split(b"\n")
                rest = lines[0]
                yield from _parsed(lines[:0:-1])
                end = start
            if lowest == 0:
                yield from _parsed([rest])
    except OSError:
        return  # no such log (yet), or one that just went: nothing to show


def _parsed(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        return sorted(int(m[1]) for entry in folder.iterdir() if (m := pattern.fullmatch(entry.name)))
    except OSError:
        return []
