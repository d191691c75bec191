"""How far the output of one rank has become lines, and how long its log was then: what a later agent goes on from.

One small file a rank, rewritten in place after each append, so that lines written by an agent that died before it
noted them are taken out again instead of being there twice. Knows nothing about what a line says.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LOG: Final = struct.Struct("<QQ")
"""Inode and size of the log when this was noted."""
_STREAM: Final = struct.Struct("<QQ?64s")
"""Offset of the first byte not yet turned into lines, step, cutting, batch."""
STREAMS: Final = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class Position:
    """Where one stream is: all before `offset` is in lines; the next line is of this step and batch."""

    offset: int = 0
    step: int | None = None
    batch: str | None = None
    cutting: bool = False
    """Inside a line that was too long, of which the rest is dropped."""

    def packed(self) -> bytes:
        return _STREAM.pack(self.offset, self.step or 0, self.cutting, (self.batch or "").encode()[:64])


class Ledger:
    """A disk error leaves the older note standing: it is true of the log as it was then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._log = (0, 0)
        self._positions = dict.fromkeys(STREAMS, Position())
        self._load()

    def position(self, stream: str) -> Position:
        return self._positions[stream]

    def committed(self, inode: int) -> int | None:
        """The size that the log with this inode had when it was last noted; None if it is another one."""
        known, size = self._log
        return size if known == inode else None

    def log_is(self, inode: int, size: int) -> None:
        """The log was replaced, or got a line that is of no stream."""
        self._log = (inode, size)
        self._save()

    def advance(self, stream: str, position: Position, log: tuple[int, int]) -> bool:
        """False: it could not be noted, so what is behind it must stay."""
        self._positions[stream], self._log = position, log
        return self._save()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def remove(self) -> None:
        """Raises OSError."""
        self.close()
        self._path.unlink(missing_ok=True)

    def _save(self) -> bool:
        parts = [_LOG.pack(*self._log), *(position.packed() for position in self._positions.values())]
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._fd, b"".join(parts), 0)
        except OSError:
            return False
        return True

    def _load(self) -> None:
        try:
            data = self._path.read_bytes()
        except OSError:
            return
        if len(data) != _LOG.size + _STREAM.size * len(STREAMS):
            return
        inode, size = _LOG.unpack_from(data)
        self._log = (inode, size)
        for number, stream in enumerate(STREAMS):
            offset, step, cutting, batch = _STREAM.unpack_from(data, _LOG.size + number * _STREAM.size)
            self._positions[stream] = Position(
                offset, step or None, batch.rstrip(b"\0").decode("utf-8", "replace") or None, cutting
            )
