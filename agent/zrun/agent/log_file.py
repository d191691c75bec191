"""The kept log of one rank: JSON lines, of which head and tail stay when it grows past its cap.

Knows nothing about what a line says.
"""

import json
import os
from pathlib import Path
from typing import Final

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
            self._shorten()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size
        end = os.pread(self._fd, LARGEST_PIECE, max(0, self._size - LARGEST_PIECE))
        broken = len(end) - (end.rfind(b"\n") + 1)
        if broken and broken < len(end):  # an agent died in the middle of a line; its successor writes it again
            self._size -= broken
            os.ftruncate(self._fd, self._size)

    def _shorten(self) -> None:
        assert self._fd is not None
        head = os.pread(self._fd, self._cap // 4, 0)
        head = head[: head.rfind(b"\n") + 1]
        tail = os.pread(self._fd, self._cap // 2, self._size - self._cap // 2)
        tail = tail[tail.find(b"\n") + 1 :]
        dropped = self._size - len(head) - len(tail)
        note = {"level": "warning", "msg": f"[zrun: {dropped} bytes of log left out here, logs.max_size]"}
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        temporary.write_bytes(head + json.dumps(note).encode() + b"\n" + tail)
        temporary.chmod(0o600)
        temporary.replace(self._path)
        self.close()
        self._open()
