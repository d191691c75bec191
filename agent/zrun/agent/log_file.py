"""The kept log of one rank: JSON lines, of which head and tail stay when it grows past its cap.

Knows nothing about what a line says, but that its fields say whose it is and when.
"""

import contextlib
import errno
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from zrun.agent.log_ledger import Ledger
from zrun.core.log_gap import Gap, find_gap, gap_line
from zrun.core.private import make_folder, open_append

SMALLEST_CAP: Final = 1 << 16
LARGEST_PIECE: Final = 8 << 20
_NO_KERNEL_COPY: Final = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}


class LogFile:
    """Append whole lines. A file near its cap is replaced by its beginning, a note, and its end.

    Shortened at two thirds of the cap to one third, so that file and copy together keep to it. The copy is a new
    file: whoever reads the old one reads it to its end.
    """

    def __init__(self, path: Path, cap_bytes: int, ledger: Ledger) -> None:
        self._path = path
        self.cap = max(cap_bytes, SMALLEST_CAP)
        self._ledger = ledger
        self._fd: int | None = None
        self._inode = self._size = 0
        self._gap = Gap()
        self.newest = 0.0
        """Unix time of the newest line: times in the file never go back, so that it can be searched by them."""

    @property
    def identity(self) -> tuple[int, int]:
        """(inode, size), for the ledger."""
        return self._inode, self._size

    def open(self) -> None:
        """Raises OSError. Nothing happens if it is open."""
        if self._fd is None:
            self._open()

    def append(self, lines: bytes) -> None:
        """Raises OSError (no space): nothing of `lines` may then be taken as written."""
        self.open()
        if self._size and self._size + len(lines) > self.cap * 2 // 3:
            self._try_shorten()
        assert self._fd is not None
        view = memoryview(lines)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(lines)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, gap: Gap | None = None) -> None:
        make_folder(self._path.parent)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        facts = os.fstat(self._fd)
        self._inode, self._size = facts.st_ino, facts.st_size
        noted = self._ledger.committed(self._inode)
        if noted is not None and noted < self._size:  # lines that a dead agent wrote and did not note: they come again
            self._cut_at(noted)
        end = os.pread(self._fd, LARGEST_PIECE, max(0, self._size - LARGEST_PIECE))
        broken = len(end) - (end.rfind(b"\n") + 1)
        if broken and (broken < len(end) or len(end) == self._size):  # an agent died in the middle of a line
            self._cut_at(self._size - broken)
        if noted is None:
            self._ledger.log_is(*self.identity)
        self._gap = find_gap(self._fd, self._size) if gap is None else gap
        self.newest = max(self.newest, _time_of(end[: len(end) - broken]))

    def _cut_at(self, size: int) -> None:
        assert self._fd is not None
        os.ftruncate(self._fd, size)
        self._size = size

    def _try_shorten(self) -> None:
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        try:
            self._shorten(temporary)
        except OSError:  # no room for the copy: it stays too long and is tried again
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _shorten(self, temporary: Path) -> None:
        assert self._fd is not None
        head, tail = self._line_end(self.cap // 12), max(0, self._size - self.cap // 4)
        head = min(head, self._gap.at) if self._gap.bytes else head
        found = os.pread(self._fd, LARGEST_PIECE, tail).find(b"\n")
        tail = tail + found + 1 if found >= 0 else self._size
        if head >= tail:
            return
        note, gap = gap_line(self._beside(tail), head, tail + self._gap.bytes)
        temporary.unlink(missing_ok=True)
        into = open_append(temporary)
        try:
            _copy(self._fd, 0, head, into)
            os.write(into, note)
            _copy(self._fd, tail, self._size, into)
        finally:
            os.close(into)
        temporary.replace(self._path)
        self.close()
        self._open(gap)

    def _line_end(self, at: int) -> int:
        """The last end of a line at or before `at`; 0 if it is too far."""
        assert self._fd is not None
        window = min(at, LARGEST_PIECE)
        found = os.pread(self._fd, window, at - window).rfind(b"\n")
        return at - window + found + 1 if found >= 0 else 0

    def _beside(self, tail: int) -> dict[str, Any]:
        """The first line after the gap: its rank, step, time are true of what was left out, too."""
        assert self._fd is not None
        after = os.pread(self._fd, LARGEST_PIECE, tail)
        try:
            line: dict[str, Any] = json.loads(after[: after.find(b"\n") + 1])
        except ValueError:
            return {}
        return line


def _copy(source: int, begin: int, end: int, into: int) -> None:
    """Within the kernel where it can (the file system then need not even copy). Raises OSError."""
    in_kernel = True
    while begin < end:
        if in_kernel:
            try:
                done = os.sendfile(into, source, begin, min(1 << 30, end - begin))
            except OSError as error:
                if error.errno not in _NO_KERNEL_COPY:
                    raise
                in_kernel = False
                continue
        else:
            done = os.write(into, os.pread(source, min(LARGEST_PIECE, end - begin), begin))
        if not done:
            return
        begin += done


def _time_of(end: bytes) -> float:
    """Unix time of the last line; 0 if there is none."""
    last = end[end.rfind(b"\n", 0, -1) + 1 :]
    try:
        return datetime.fromisoformat(json.loads(last)["ts"]).timestamp()
    except (ValueError, KeyError, TypeError):
        return 0.0
