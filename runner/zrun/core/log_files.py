"""The ranks' log files of one run: which there are, reading one from its end, as it grows, and to its first error.

Each line is a JSON object {ts, job, attempt, node, rank, local_rank, stream, step, batch, level, msg}; a line that is
not is given as it is. Nothing is read but what is asked for. Knows nothing about who writes there, and nothing of HTTP.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from zrun.core.runfolder import RunFolder

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_ATTEMPT: Final = re.compile(r"attempt-(\d+)")
_RANK: Final = re.compile(r"rank-(\d+)\.jsonl")
_BLOCK: Final = 1 << 16
_SEARCHED: Final = 1 << 22
"""Bytes looked through at once for the first error."""
_COMPACT: Final = (b'"error","msg":', b'"critical","msg":')
"""As the agent writes; long signs are found faster than short ones."""
_SPACED: Final = (b'"level": "error"', b'"level": "critical"')

Line = dict[str, Any]
Keep = Callable[[Line], bool]


def attempts(folder: RunFolder) -> list[int]:
    """Attempts that have logs, oldest first."""
    return _numbers(folder.root / "logs", _ATTEMPT)


def ranks(folder: RunFolder, attempt: int) -> list[int]:
    """Ranks that have a log in this attempt."""
    return _numbers(folder.attempt_logs(attempt), _RANK)


def _numbers(directory: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError:
        return []
    return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))


def severity(line: Line) -> int:
    """As in LEVELS; a line without a level is `info`."""
    return LEVELS.get(str(line.get("level")), LEVELS["info"])


def parse(raw: bytes) -> Line:
    """One line of a file; what is no JSON object becomes a line that says only its text."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"msg": raw.decode("utf-8", "replace")}


def backwards(path: Path, end: int | None = None, most: int | None = None) -> Iterator[bytes]:
    """The whole lines of a file (or of its first `end` bytes), last first, without their newline.

    What stands after the last newline is still being written and left out. `most`: no more bytes are read than these.
    """
    try:
        file = path.open("rb")
    except OSError:
        return  # no such log (yet), or one that just went
    with file:
        size = file.seek(0, 2)
        at = size if end is None else min(size, end)
        lowest = 0 if most is None else max(0, at - most)
        pending: list[bytes] = []  # the pieces of a line whose beginning is not read yet, last first
        begun = False
        while at > lowest:
            start = max(lowest, at - _BLOCK)
            file.seek(start)
            head, *lines = file.read(at - start).split(b"\n")
            at = start
            if lines:
                pending.append(lines.pop())
                if begun:
                    yield b"".join(reversed(pending))
                begun = True
                yield from reversed(lines)
                pending = []
            pending.append(head)
        if begun and lowest == 0:
            yield b"".join(reversed(pending))


def tail(
    path: Path, count: int | None, keep: Keep, *, oldest: str = "", end: int | None = None, most: int | None = None
) -> list[Line]:
    """The last `count` lines that `keep` takes (None = all), oldest first; stops before lines older than `oldest`."""
    found: list[Line] = []
    for raw in backwards(path, end, most):
        if count is not None and len(found) >= count:
            break
        line = parse(raw)
        if oldest and str(line.get("ts") or oldest) < oldest:
            break
        if keep(line):
            found.append(line)
    found.reverse()
    return found


def from_first_error(path: Path, count: int, oldest: str = "") -> list[Line]:
    """The first line of level error or worse that is not older than `oldest`, and what follows: `count` lines."""
    try:
        file = path.open("rb")
    except OSError:
        return []
    with file:
        for at in _bad_lines(file):
            file.seek(at)
            first = parse(file.readline())
            if severity(first) < LEVELS["error"] or (oldest and str(first.get("ts")) < oldest):
                continue
            lines = [first]
            while len(lines) < count and (raw := file.readline()).endswith(b"\n"):
                lines.append(parse(raw))
            return lines
    return []


def _bad_lines(file: Any) -> Iterator[int]:
    """Where lines begin that may be an error, found without reading line by line."""
    signs = _SPACED if b'": ' in file.readline() else _COMPACT
    at, rest = 0, b""
    while True:
        file.seek(at + len(rest))
        block = rest + file.read(_SEARCHED)
        if len(block) == len(rest):
            return
        whole = block.rfind(b"\n") + 1
        begin = 0
        while places := [place for sign in signs if (place := block.find(sign, begin, whole)) >= 0]:
            found = min(places)
            yield at + block.rfind(b"\n", 0, found) + 1
            begin = block.find(b"\n", found) + 1
        at, rest = at + whole, block[whole:]
