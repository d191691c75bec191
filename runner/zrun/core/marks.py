r"""The marker a rank writes into its own stdout and stderr at each step, so that step and batch of a line are true.

One marker is `\x1ez;STEP;BATCH;UNIXTIME\x1e`, written in one write(2), with no newline: it may stand inside a
line, and taking it out leaves the line as the script wrote it.
"""

import re
from dataclasses import dataclass
from typing import Final

_MARK: Final = re.compile(rb"\x1ez;(\d{1,20});([^;\x1e]{0,64});(\d+\.\d{1,9})\x1e")
LONGEST: Final = 2 + 20 + 1 + 64 + 1 + 24 + 1


@dataclass(frozen=True, slots=True)
class Mark:
    """From here on, lines belong to this step and batch."""

    step: int
    batch: str
    at: float
    """Unix time in seconds."""


def encode_mark(step: int, batch: str, at: float) -> bytes:
    """The bytes of one marker; `batch` may be empty."""
    return b"\x1ez;%d;%s;%.3f\x1e" % (step, batch.encode(), at)


def mark_at(chunk: bytes, place: int) -> Mark | None:
    """The marker that begins there, if one does."""
    found = _MARK.match(chunk, place)
    return _mark(found) if found is not None else None


def strip_marks(chunk: bytes) -> tuple[bytes, list[Mark]]:
    """(the script's own bytes, the markers that stood between them, in order)."""
    if b"\x1e" not in chunk:
        return chunk, []
    return _MARK.sub(b"", chunk), [_mark(found) for found in _MARK.finditer(chunk)]


def _mark(found: re.Match[bytes]) -> Mark:
    return Mark(int(found[1]), found[2].decode("ascii", "replace"), float(found[3]))
