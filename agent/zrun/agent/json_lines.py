"""The JSON lines of one stream: one by one, or many plain ones at once with a few passes in C over the whole piece.

A piece with anything out of the ordinary in it (a warning, the script's own JSON, bytes that are no UTF-8, a secret)
is refused, for the caller to read line by line; what both ways make of a line is the same. Pure.
"""

import json
from datetime import UTC, datetime
from typing import Final

import msgspec

from zrun.agent.log_lines import Place, Read
from zrun.core.redact import Redactor

_KEPT: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ:({\n")
_DROPPED: Final = bytes(byte for byte in range(256) if byte not in _KEPT)
_ODD: Final = (
    (b"CRITICAL", b"CRITICAL"), (b"FATAL", b"FATAL"), (b"FP", b"Fatal Python error"), (b"ERROR", b"ERROR"),
    (b"T(", b"Traceback (most recent call last)"), (b"E:", b"Error: "), (b"WARN", b"WARN"), (b"W:", b"Warning: "),
    (b"\n{", b"\n{"),
)  # fmt: skip
"""(what is left of it once only capitals and some signs are kept, what makes a line worth a look)."""
_SEPARATOR: Final = "\x7f"
"""Stands for the newline while JSON escapes the piece, because JSON leaves it as it is."""


def stamp(at: float) -> str:
    """RFC 3339 in UTC with milliseconds; `at` is Unix seconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonLines:
    """Of one stream of one rank."""

    def __init__(self, place: Place) -> None:
        whose = {
            "job": place.job, "attempt": place.attempt, "node": place.node, "rank": place.rank,
            "local_rank": place.local_rank, "stream": place.stream,
        }  # fmt: skip
        self._whose = msgspec.json.encode(whose)[1:-1]
        self._head = b""
        self._head_of: tuple[float, int | None, str | None] = (-1.0, None, None)

    def plain(
        self, data: bytes, at: float, step: int | None, batch: str | None, hidden: Redactor
    ) -> tuple[bytes, str] | None:
        """(the JSON lines, the text of the lines) of whole lines without markers; None if they want a closer look."""
        if b"\x7f" in data or data.startswith(b"{") or _is_odd(data):
            return None
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        while "\r\n" in text:
            text = text.replace("\r\n", "\n")
        if hidden.active and hidden.finds(text):
            return None
        before = self._before(at, step, batch) + b'"info","msg":"'
        escaped = msgspec.json.encode(text[:-1].replace("\n", _SEPARATOR))[1:-1]
        return b"".join((before, escaped.replace(b"\x7f", b'"}\n' + before), b'"}\n')), text

    def one(self, read: Read, at: float, step: int | None, batch: str | None) -> bytes:
        """With its newline. Half characters in the text must have been escaped."""
        fields = b"" if read.fields is None else b',"fields":' + read.fields
        level = read.level.encode()
        return b'%s"%s","msg":%s%s}\n' % (self._before(at, step, batch), level, msgspec.json.encode(read.msg), fields)

    def _before(self, at: float, step: int | None, batch: str | None) -> bytes:
        """All of a line up to the value of `level`."""
        if self._head_of != (at, step, batch):
            self._head_of = (at, step, batch)
            self._head = b'{"ts":"%s",%s,"step":%s,"batch":%s,"level":' % (
                stamp(at).encode(), self._whose, b"null" if step is None else b"%d" % step,
                b"null" if batch is None else json.dumps(batch).encode(),
            )  # fmt: skip
        return self._head


def _is_odd(data: bytes) -> bool:
    rest = data.translate(None, _DROPPED)
    return any(short in rest and sign in data for short, sign in _ODD)
