"""Turns what one rank wrote (rank-R.out, rank-R.err) into JSON lines, from where the last agent stopped.

The rank writes into files, so its death or ours loses nothing. Space behind the offset is given back to the disk.
Knows nothing about processes; whoever owns it calls `poll` often and `drain` once a rank is dead.
"""

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from zrun.agent.line_maker import LineMaker
from zrun.agent.log_file import LogFile
from zrun.agent.log_ledger import Ledger, Position
from zrun.agent.log_lines import Place, Read
from zrun.core.marks import LONGEST, strip_marks
from zrun.core.redact import Redactor

BLOCK: Final = 1 << 17
"""Read at once, so that a poll can end in time; a line that is longer is read again in one piece."""
CHUNK: Final = 1 << 20
LONGEST_LINE: Final = 1 << 20
PROGRESS_BAR: Final = 1 << 16
"""A piece without a newline that is longer than this is cut at its last carriage return."""
HOLE: Final = 1 << 20
_PUNCH: Final = 0x1 | 0x2  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Spool:
    """One stream of one rank. Raises OSError where the log cannot be written; the same is tried at the next poll."""

    def __init__(
        self, source: Path, place: Place, sink: LogFile, ledger: Ledger, tail: "deque[str]",
        on_loud: Callable[[float, Read], None], hidden: Callable[[], Redactor] = Redactor,
        on_texts: Callable[[list[str | tuple[str]]], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`tail` gets the last lines of the rank, both streams; `on_loud` each warning and worse; `on_texts` all.

        `hidden` gives what must not be in any of them; lines are whole, so that no chunk's border tears a value.
        """
        self._hidden = hidden
        self._source, self._sink, self._ledger, self._tail, self._on_loud = source, sink, ledger, tail, on_loud
        self._on_texts = on_texts
        self._stream = place.stream
        begun = ledger.position(place.stream)
        self._maker = LineMaker(place, begun.step, begun.batch)
        self._maker.cutting = begun.cutting
        self._offset = begun.offset
        self._punched = self._offset - self._offset % HOLE
        self._file: int | None = None
        self._more = False
        self._up_to_date = False
        """The end was reached once: what comes now is new."""

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def poll(self) -> bool:
        """Take some of the whole lines that are there. True: there may be more."""
        self._skip()
        return self._take(final=False) and self._more

    def drain(self) -> None:
        """The writer is dead: take everything, a last line without a newline too."""
        self._skip()
        while self._take(final=False):
            pass
        self._take(final=True)

    def remove(self) -> bool:
        """What the rank wrote, once all of it is in lines: secrets are hidden there, not here. Raises OSError."""
        if self._read()[0]:
            return False
        self.close()
        self._source.unlink(missing_ok=True)
        return True

    def _take(self, *, final: bool) -> bool:
        data, at = self._read()
        if not data:
            return False
        used = data.rfind(b"\n") + 1
        if not used and len(data) > PROGRESS_BAR:
            used = data.rfind(b"\r") + 1
        if not used and final:
            used = len(data)
        if not used and len(data) >= LONGEST_LINE:
            used = len(data) - begun_mark(data)
        if not used:
            return False
        self._sink.open()
        if used < len(data):
            data = data[:used]
        before = self._maker.state
        whole = final or data.endswith((b"\n", b"\r"))
        made = self._maker.make(data, at, self._hidden(), whole=whole, newest=self._sink.newest)
        try:
            if made.parts:
                self._sink.append(made.lines)
                self._sink.newest = made.newest
        except OSError:
            self._maker.state = before
            raise
        self._advance(used)
        self._tail.extend(made.last_texts())
        self._on_texts(made.texts)
        for when, read in made.loud:
            self._on_loud(when, read)
        return True

    def _read(self) -> tuple[bytes, float]:
        """(what is there, Unix time when it was): now, but what an earlier agent left is as old as its last byte."""
        size, written = self._there()
        self._more = size - self._offset > BLOCK
        if size <= self._offset:
            self._up_to_date = True
            return b"", 0.0
        assert self._file is not None
        data = os.pread(self._file, min(BLOCK, size - self._offset), self._offset)
        if len(data) == BLOCK and b"\n" not in data:
            data = os.pread(self._file, min(CHUNK, size - self._offset), self._offset)
        return data, time.time() if self._up_to_date else min(time.time(), written)

    def _there(self) -> tuple[int, float]:
        """(size, time of the last write)."""
        if self._file is None:
            try:
                self._file = os.open(self._source, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return 0, 0.0
        facts = os.fstat(self._file)
        if facts.st_size < self._offset:  # the script emptied it: what comes now is new
            self._offset = self._punched = 0
        return facts.st_size, facts.st_mtime

    def _skip(self) -> None:
        """A rank that writes faster than we read: what the log's cap would leave out again is not read at all."""
        size, _ = self._there()
        if size - self._offset <= self._sink.cap or self._file is None:
            return
        land = size - self._sink.cap // 4
        block = os.pread(self._file, CHUNK, land)
        end = block.find(b"\n") + 1
        _, marks = strip_marks(os.pread(self._file, CHUNK, max(0, land - CHUNK)) + block[:end])
        maker = self._maker
        left_out = land + end - self._offset
        if marks:
            maker.step, maker.batch = marks[-1].step or None, marks[-1].batch or None
        self.say(f"[zrun: {left_out} bytes of {self._stream} left out here: written faster than read]", "warning")
        maker.cutting = not end
        self._advance(left_out)

    def say(self, text: str, level: str) -> None:
        """A line of zrun's own, here and now. Raises OSError."""
        self._sink.open()
        for line in text.splitlines():
            made = self._maker.say(line, level, time.time(), self._hidden(), self._sink.newest)
            self._sink.append(made.lines)
            self._sink.newest = made.newest
        self._ledger.log_is(*self._sink.identity)

    def _advance(self, used: int) -> None:
        self._offset += used
        maker = self._maker
        noted = self._ledger.advance(
            self._stream, Position(self._offset, maker.step, maker.batch, maker.cutting), self._sink.identity
        )  # fmt: skip
        holes = (self._offset - self._punched) // HOLE * HOLE
        if holes and noted and self._file is not None:
            _punch(self._file, self._punched, holes)
            self._punched += holes


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
    _LIBC.fallocate(fd, _PUNCH, ctypes.c_int64(at), ctypes.c_int64(size))
