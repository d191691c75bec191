"""Turns what one rank wrote (rank-R.out, rank-R.err) into JSON lines, from where the last agent stopped.

The rank writes into files, so its death or ours loses nothing. Space behind the offset is given back to the disk.
Knows nothing about processes; whoever owns it calls `poll` often and `drain` once a rank is dead.
"""

import contextlib
import ctypes
import json
import os
import struct
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from zrun.agent.log_file import LogFile
from zrun.agent.log_lines import Place, to_line
from zrun.core.marks import LONGEST, strip_marks
from zrun.core.redact import Redactor

CHUNK: Final = 1 << 20
LONGEST_LINE: Final = 1 << 20
PROGRESS_BAR: Final = 1 << 16
"""A piece without a newline that is longer than this is cut at its last carriage return."""
HOLE: Final = 1 << 20
LAST_LINES: Final = 50
_OFFSET: Final = struct.Struct("<QQ64s")
"""Offset of the first byte not yet turned into lines, step, batch."""
_PUNCH: Final = 0x1 | 0x2  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_CUT_BEGIN: Final = " [zrun: line cut here"
_CUT_NOTE: Final = _CUT_BEGIN.encode() + b", after %d bytes]"


class Spool:
    """One stream of one rank. Errors of the disk are told once through `on_trouble` and tried again at each poll."""

    def __init__(
        self, source: Path, place: Place, sink: LogFile, tail: "deque[str]", on_line: Callable[[dict[str, Any]], None],
        hidden: Callable[[], Redactor] = Redactor,
    ) -> None:  # fmt: skip
        """`tail` gets the last lines of the rank, both streams; `on_line` each line as it was written.

        `hidden` gives what must not be in any of them; lines are whole, so that no chunk's border tears a value.
        """
        self._hidden = hidden
        self._source, self._place, self._sink, self._tail, self._on_line = source, place, sink, tail, on_line
        self._offset_path = source.with_name(f"{source.name}.offset")
        self._offset, self._step, self._batch = self._load()
        self._punched = self._offset - self._offset % HOLE
        self._cutting = False
        """Inside a line that was too long: drop until its newline."""
        self._file: int | None = None
        self._offset_fd: int | None = None

    def close(self) -> None:
        for fd in (self._file, self._offset_fd):
            if fd is not None:
                os.close(fd)
        self._file = self._offset_fd = None

    def poll(self, limit: int = 8 * CHUNK) -> bool:
        """Take the whole lines that are there, at most `limit` bytes. True: there was something."""
        moved = False
        while limit > 0 and self._take(final=False):
            moved, limit = True, limit - CHUNK
        return moved

    def drain(self) -> None:
        """The writer is dead: take everything, a last line without a newline too."""
        while self._take(final=False):
            pass
        self._take(final=True)

    def remove(self) -> None:
        """What the rank wrote, once all of it is in lines: secrets are hidden there, not here. Raises OSError."""
        if not self._read():
            self.close()
            self._source.unlink(missing_ok=True)
            self._offset_path.unlink(missing_ok=True)

    def _take(self, *, final: bool) -> bool:
        data = self._read()
        used = data.rfind(b"\n") + 1
        if not used and len(data) > PROGRESS_BAR:
            used = data.rfind(b"\r") + 1
        if not used and final:
            used = len(data)
        if not used and len(data) >= LONGEST_LINE:
            used = len(data) - begun_mark(data)
        if not used:
            return False
        lines = self._lines(data[:used], whole=final or data[used - 1 : used] in (b"\n", b"\r"))
        self._hide(lines, whole=data[used - 1 : used] == b"\n")
        if lines:
            self._sink.append(b"".join(_encode(line) for line in lines))
        self._advance(used)
        for line in lines:
            self._tail.append(str(line["msg"]))
            self._on_line(line)
        return True

    def _hide(self, lines: list[dict[str, Any]], *, whole: bool) -> None:
        """`whole` False: the last one was cut, or never ended, perhaps in the middle of a value."""
        hidden = self._hidden()
        if not hidden.active:
            return
        for line in lines:
            line["msg"] = hidden.text(line["msg"]) if whole or line is not lines[-1] else _cut(hidden, line["msg"])
            if "fields" in line:
                line["fields"] = hidden.value(line["fields"])

    def _lines(self, data: bytes, *, whole: bool) -> list[dict[str, Any]]:
        """`whole` False: `data` is the beginning of one line that is too long."""
        now, made = time.time(), list[dict[str, Any]]()
        pieces = data.split(b"\n")
        if pieces and not pieces[-1]:
            pieces.pop()
        for number, piece in enumerate(pieces):
            first_mark = piece.startswith(b"\x1e")
            text, marks = strip_marks(piece)
            if first_mark and marks:
                self._step, self._batch = marks[-1].step, marks[-1].batch
            if self._cutting and number == 0:
                self._cutting = not whole
            elif text or not marks:
                if not whole:
                    self._cutting = True
                    text += _CUT_NOTE % len(text)
                made.append(to_line(self._place, text.rstrip(b"\r"), now, self._step or None, self._batch or None))
            if marks:
                self._step, self._batch = marks[-1].step, marks[-1].batch
        return made

    def _read(self) -> bytes:
        if self._file is None:
            try:
                self._file = os.open(self._source, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        return os.pread(self._file, CHUNK, self._offset)

    def _advance(self, used: int) -> None:
        self._offset += used
        batch = (self._batch or "").encode()[:64]
        with contextlib.suppress(OSError):  # a full disk: a later agent then writes some lines a second time
            if self._offset_fd is None:
                self._offset_fd = os.open(self._offset_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._offset_fd, _OFFSET.pack(self._offset, self._step or 0, batch), 0)
        if self._offset - self._punched >= HOLE and self._file is not None:
            _punch(self._file, self._punched, HOLE)
            self._punched += HOLE

    def _load(self) -> tuple[int, int | None, str | None]:
        try:
            offset, step, batch = _OFFSET.unpack(self._offset_path.read_bytes())
        except (OSError, struct.error):
            return 0, None, None
        return offset, step or None, batch.rstrip(b"\0").decode("ascii", "replace") or None


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _cut(hidden: Redactor, text: str) -> str:
    at = text.rfind(_CUT_BEGIN)
    return hidden.cut(text) if at < 0 else hidden.cut(text[:at]) + text[at:]


def begun_mark(data: bytes) -> int:
    """Bytes at the end of `data` that may be the beginning of a marker whose rest is not there yet."""
    start = data.rfind(b"\x1ez;")
    if start >= 0 and b"\x1e" not in data[start + 1 :]:
        return len(data) - start if len(data) - start < LONGEST else 0
    for piece in (b"\x1ez", b"\x1e"):
        if data.endswith(piece):
            closes = start >= 0 and data.find(b"\x1e", start + 1) == len(data) - 1
            return 0 if closes else len(piece)
    return 0


def _punch(fd: int, at: int, size: int) -> None:
    """Give the blocks back; a file system without holes just keeps them."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate(fd, _PUNCH, ctypes.c_int64(at), ctypes.c_int64(size))
