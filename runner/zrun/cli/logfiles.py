"""The ranks' log files of one run: which there are, reading one from its end, and reading what is new.

Each line is a JSON object {ts, job, attempt, node, rank, local_rank, stream, step, batch, level, msg}; a line that is
not is shown as it is. Reads only as much from the end as is asked for. Knows nothing about HTTP.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from zrun.core.runfolder import RunFolder

_ATTEMPT: Final = re.compile(r"attempt-(\d+)")
_RANK: Final = re.compile(r"rank-(\d+)\.jsonl")
_BLOCK: Final = 65536

Line = dict[str, Any]
Keep = Callable[[Line], bool]


def attempts(folder: RunFolder) -> list[int]:
    """Attempts that have logs, oldest first."""
    return _numbers(folder.root / "logs", _ATTEMPT)


def ranks(folder: RunFolder, attempt: int) -> list[int]:
    return _numbers(folder.attempt_logs(attempt), _RANK)


def _numbers(directory: Path, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError:
        return []
    return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))


def parse(raw: bytes) -> Line:
    """One line of a file; what is no JSON object becomes a line that says only its text."""
    try:
        value = json.loads(raw)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"msg": raw.decode("utf-8", "replace")}


def backwards(path: Path, end: int | None = None) -> Iterator[bytes]:
    """The whole lines of a file (or of its first `end` bytes), last first, without their newline.

    What stands after the last newline is still being written and left out.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        at = file.seek(0, 2)
        at = at if end is None else min(at, end)
        rest = b""
        first_block = True
        while at > 0:
            start = max(0, at - _BLOCK)
            file.seek(start)
            pieces = (file.read(at - start) + rest).split(b"\n")
            at = start
            rest = pieces.pop(0)
            if first_block and pieces:
                pieces.pop()  # what stands after the last newline
                first_block = False
            yield from reversed(pieces)
        if not first_block:
            yield rest


def tail(path: Path, count: int | None, keep: Keep, *, oldest: str = "", end: int | None = None) -> list[Line]:
    """The last `count` lines that `keep` takes (None = all), oldest first; stops before lines older than `oldest`."""
    found: list[Line] = []
    for raw in backwards(path, end):
        if count is not None and len(found) >= count:
            break
        line = parse(raw)
        if oldest and str(line.get("ts") or oldest) < oldest:
            break
        if keep(line):
            found.append(line)
    found.reverse()
    return found


class Growing:
    """A file that is being written: each call gives the whole lines added since the last one."""

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        self._path = path
        self._offset = _last_newline(path) if at_end else 0

    @property
    def offset(self) -> int:
        """Bytes given so far."""
        return self._offset

    def read(self, most: int = 4 << 20) -> list[Line]:
        """At most about `most` bytes of lines; a longer line is waited for."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(most)
                while data and b"\n" not in data and (more := file.read(most)):
                    data += more
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [parse(raw) for raw in whole.split(b"\n")[:-1]]


def _last_newline(path: Path) -> int:
    """The offset behind the last whole line."""
    try:
        with path.open("rb") as file:
            at = file.seek(0, 2)
            while at > 0:
                start = max(0, at - _BLOCK)
                file.seek(start)
                found = file.read(at - start).rfind(b"\n")
                if found >= 0:
                    return start + found + 1
                at = start
    except FileNotFoundError:
        pass
    return 0
