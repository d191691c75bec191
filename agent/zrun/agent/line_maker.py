"""From the bytes one stream of a rank wrote to JSON lines: markers taken out, step, batch and time from them, secrets
hidden. Plain pieces are taken whole, the rest is read line by line. Pure.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from zrun.agent.json_lines import JsonLines
from zrun.agent.log_lines import LOUD, Place, Read, read_line
from zrun.core.marks import mark_at, strip_marks
from zrun.core.redact import Redactor
from zrun.core.words import encodable

LAST_LINES: Final = 50
PIECE: Final = 4096
"""Of a block with something odd in it, about so many bytes around that go line by line."""
_CLOCK_SET_BACK_S: Final = 5.0
_CUT_BEGIN: Final = " [zrun: line cut here"
_CUT_NOTE: Final = _CUT_BEGIN.encode() + b", after %d bytes]"


@dataclass(slots=True)
class Made:
    """What became of a block of bytes."""

    parts: list[bytes] = field(default_factory=list)
    """JSON lines, each part whole ones."""
    loud: list[tuple[float, Read]] = field(default_factory=list)
    """(Unix time, what it says) of warnings and worse."""
    texts: list[str | tuple[str]] = field(default_factory=list)
    """Of all lines: many as they were written, or one by itself."""
    newest: float = 0.0

    @property
    def lines(self) -> bytes:
        return b"".join(self.parts)

    def last_texts(self) -> list[str]:
        """Of the last lines, oldest first."""
        last: list[str] = []
        for text in reversed(self.texts):
            last[:0] = text if isinstance(text, tuple) else text.rsplit("\n", LAST_LINES + 1)[-LAST_LINES - 1 : -1]
            if len(last) >= LAST_LINES:
                break
        return last[-LAST_LINES:]


class LineMaker:
    """Keeps what a block leaves to the next one; `state` can be put back if a block was not kept."""

    def __init__(self, place: Place, step: int | None, batch: str | None) -> None:
        self._json = JsonLines(place)
        self._own = JsonLines(replace(place, stream="zrun"))
        self.step, self.batch = step, batch
        self.cutting = False
        """Inside a line that was too long: drop until its newline."""

    @property
    def state(self) -> tuple[int | None, str | None, bool]:
        return self.step, self.batch, self.cutting

    @state.setter
    def state(self, state: tuple[int | None, str | None, bool]) -> None:
        self.step, self.batch, self.cutting = state

    def make(self, data: bytes, at: float, hidden: Redactor, *, whole: bool, newest: float = 0.0) -> Made:
        """`data` ends with a newline, or is one line: the last one, one up to a carriage return, or (`whole` False)
        the beginning of one that is too long. `at`: Unix time at which it was there; lines before a marker are no
        younger than the marker says, and none is older than `newest`, that of the line before.
        """
        made = Made(newest=newest if newest - at < _CLOCK_SET_BACK_S else at)
        for begin, end, until in self._stretches(data):
            made.newest = max(made.newest, min(at, until))
            stretch = data[begin:end] if end - begin < len(data) else data
            if self.cutting or b"\x1e" in stretch or not stretch.endswith(b"\n"):
                self._one(stretch, hidden, made, whole=whole)
            else:
                self._many(stretch, hidden, made)
        return made

    def say(self, text: str, level: str, at: float, hidden: Redactor, newest: float) -> Made:
        """A line of zrun's own among the rank's."""
        made = Made(newest=max(newest, at))
        made.parts.append(self._own.one(Read(level, encodable(hidden.text(text))), made.newest, self.step, self.batch))
        return made

    def _stretches(self, data: bytes) -> Iterator[tuple[int, int, float]]:
        """(begin, end, time they are no younger than) of lines without marker, and one by one of those with one."""
        at = 0
        if self.cutting:
            at = data.find(b"\n") + 1 or len(data)
            yield 0, at, math.inf
        while at < len(data):
            found = data.find(b"\x1e", at)
            if found < 0:
                yield at, len(data), math.inf
                return
            line = data.rfind(b"\n", at, found) + 1 or at
            mark = mark_at(data, found)
            until = mark.at if mark is not None else math.inf
            if line > at:
                yield at, line, until
            at = data.find(b"\n", found) + 1 or len(data)
            yield line, at, until

    def _many(self, data: bytes, hidden: Redactor, made: Made) -> None:
        """Whole lines without markers."""
        if self._take_plain(data, hidden, made):
            return
        begin = 0
        while begin < len(data):
            end = data.find(b"\n", min(begin + PIECE, len(data) - 1)) + 1
            piece = data[begin:end]
            if len(piece) == len(data) or not self._take_plain(piece, hidden, made):
                for line in piece.split(b"\n")[:-1]:
                    self._add(line, hidden, made)
            begin = end

    def _take_plain(self, data: bytes, hidden: Redactor, made: Made) -> bool:
        found = self._json.plain(data, made.newest, self.step, self.batch, hidden)
        if found is None:
            return False
        made.parts.append(found[0])
        made.texts.append(found[1])
        return True

    def _one(self, data: bytes, hidden: Redactor, made: Made, *, whole: bool) -> None:
        """One line with its newline, if it has one; perhaps with markers."""
        ended = data.endswith(b"\n")
        line = data[:-1] if ended else data
        text, marks = strip_marks(line)
        if marks and line.startswith(b"\x1e"):
            self.step, self.batch = marks[-1].step or None, marks[-1].batch or None
        if self.cutting:
            self.cutting = not (whole or ended)
        elif text or not marks:
            cut = not whole and not ended
            if cut:
                self.cutting = True
                text += _CUT_NOTE % len(text)
            self._add(text, hidden, made, torn=not ended)
        if marks:
            self.step, self.batch = marks[-1].step or None, marks[-1].batch or None

    def _add(self, text: bytes, hidden: Redactor, made: Made, *, torn: bool = False) -> None:
        """`torn`: the line was cut or never ended, perhaps in the middle of a secret."""
        read = read_line(text.rstrip(b"\r"))
        if hidden.active:
            read.msg = _cut(hidden, read.msg) if torn else hidden.text(read.msg)
            if read.fields is not None:
                read.fields = _hidden_in(read.fields, hidden)
        made.parts.append(self._json.one(read, made.newest, self.step, self.batch))
        made.texts.append((read.msg,))
        if read.level in LOUD:
            made.loud.append((made.newest, read))


def _hidden_in(fields: bytes, hidden: Redactor) -> bytes | None:
    try:
        return json.dumps(hidden.value(json.loads(fields)), ensure_ascii=False).encode()
    except RecursionError:  # nobody can look into it, so nobody shall see it; the text stays in `msg`
        return None


def _cut(hidden: Redactor, text: str) -> str:
    at = text.rfind(_CUT_BEGIN)
    return hidden.cut(text) if at < 0 else hidden.cut(text[:at]) + text[at:]
