"""The kept log of one rank: JSON lines, of which head and tail stay when it grows past its cap.

Knows nothing about what a line says, but that its fields say whose it is.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import IO, Any, Final

from zrun.core.private import make_folder, open_append

SMALLEST_CAP: Final = 1 << 16
LARGEST_PIECE: Final = 4 << 20


class LogFile:
    """Append whole lines. A file over its cap is replaced by its first quarter, a note, and its last half."""

    def __init__(self, path: Path, cap_bytes: int) -> None:
        self._path = path
        self._cap = max(cap_bytes, SMALLEST_CAP)
        self._fd: int | None = None
        self._size = 0

    def append(self, lines: bytes) -> None:
        """Raises OSError (no space): nothing of `lines` may then be taken as written."""
        if self._fd is None:
            self._open()
        assert self._fd is not None
        view = memoryview(lines)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(lines)
        if self._size > self._cap:
            try:
                self._shorten()
            except OSError:  # no room for the copy: the lines are written, so it stays too long and is tried again
                with contextlib.suppress(OSError):
                    self._path.with_name(f".{self._path.name}.tmp").unlink(missing_ok=True)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        make_folder(self._path.parent)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size
        end = os.pread(self._fd, LARGEST_PIECE, max(0, self._size - LARGEST_PIECE))
        broken = len(end) - (end.rfind(b"\n") + 1)
        if broken and broken < len(end):  # an agent died in the middle of a line; its successor writes it again
            self._size -= broken
            os.ftruncate(self._fd, self._size)

    def _shorten(self) -> None:
        assert self._fd is not None
        head, tail = self._cap // 4, self._size - self._cap // 2
        window = min(head, LARGEST_PIECE)
        found = os.pread(self._fd, window, head - window).rfind(b"\n")
        head = head - window + found + 1 if found >= 0 else 0
        found = os.pread(self._fd, LARGEST_PIECE, tail).find(b"\n")
        tail = tail + found + 1 if found >= 0 else self._size
        text = f"[zrun: {tail - head} bytes of log left out here, logs.max_size]"
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        temporary.unlink(missing_ok=True)
        with os.fdopen(open_append(temporary), "wb") as file:
            self._copy(0, head, file)
            file.write(_note(os.pread(self._fd, LARGEST_PIECE, tail), text))
            self._copy(tail, self._size, file)
        temporary.replace(self._path)
        self.close()
        self._open()

    def _copy(self, begin: int, end: int, into: IO[bytes]) -> None:
        assert self._fd is not None
        while begin < end and (piece := os.pread(self._fd, min(LARGEST_PIECE, end - begin), begin)):
            into.write(piece)
            begin += len(piece)


def _note(beside: bytes, text: str) -> bytes:
    """A line with all fields of the first one in `beside`: rank, step, time, … are true of what was left out there."""
    try:
        line: dict[str, Any] = json.loads(beside[: beside.find(b"\n") + 1])
    except ValueError:
        line = {}
    line.pop("fields", None)
    return json.dumps({**line, "level": "warning", "msg": text}, ensure_ascii=False).encode() + b"\n"
