"""The one gap of a rank's log: the line that stands where bytes were left out, and what it says of offsets.

An offset in a log that was shortened would mean another line than before. So readers count in a log that was never
shortened: behind the gap a line's offset there is its place in the file plus `Gap.bytes`. Knows nothing about caps.
"""

import json
import os
from dataclasses import dataclass
from typing import Any, Final

_KEY: Final = b'"left_out": '
_WIDTH: Final = 20
_BLOCK: Final = 1 << 20
_LONGEST_LINE: Final = 8 << 20
_MARGIN: Final = 2 * _LONGEST_LINE
"""The gap begins in the first quarter of a file, give or take a line."""


@dataclass(frozen=True, slots=True)
class Gap:
    """No gap: all 0."""

    at: int = 0
    """Where its line begins in the file."""
    end: int = 0
    bytes: int = 0
    """How much further on the lines behind it were without any gap."""

    def place(self, offset: int) -> int:
        """Where in the file to read on for one who has read to `offset` of the whole; the gap's line, if it is gone."""
        if not self.bytes or offset <= self.at:
            return offset
        return offset - self.bytes if offset >= self.end + self.bytes else self.at

    def offset(self, place: int) -> int:
        """Of the whole, for a place in the file."""
        return place + self.bytes if self.bytes and place >= self.end else place


NO_GAP: Final = Gap()


def gap_line(beside: dict[str, Any], at: int, resumes: int) -> tuple[bytes, Gap]:
    """(the line, the gap) for a file that has its first `at` bytes, the line, and what came from `resumes` on.

    `beside` is the first line after it, whose fields the line takes over.
    """
    fields = {**{k: v for k, v in beside.items() if k != "fields"}, "level": "warning"}
    text = f"[zrun: {resumes - at} bytes of log left out here, logs.max_size]"
    fields = {**fields, "msg": text}
    head = json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace")[:-1] + b", " + _KEY
    size = len(head) + _WIDTH + 2
    left = resumes - at - size
    return head + str(left).rjust(_WIDTH).encode() + b"}\n", Gap(at, at + size, left)


def find_gap(handle: int, size: int) -> Gap:
    """The gap of an open log; a rank's own text cannot look like one, for its quotes are escaped. Raises OSError."""
    at, overlap = 0, len(_KEY) + _WIDTH + 2
    farthest = size // 4 + _MARGIN
    while at < farthest:
        block = os.pread(handle, _BLOCK + overlap, at)
        if not block:
            break
        found = block.find(_KEY)
        digits = block[found + len(_KEY) : found + overlap - 2]
        if found >= 0 and block[found + overlap - 2 : found + overlap] == b"}\n" and digits.strip().isdigit():
            return _gap_ending(handle, at + found + overlap, int(digits))
        at += _BLOCK if found < 0 else found + 1
    return Gap()


def _gap_ending(handle: int, end: int, left: int) -> Gap:
    before = max(0, end - _LONGEST_LINE)
    begin = os.pread(handle, end - 1 - before, before).rfind(b"\n") + 1
    return Gap(before + begin, end, left)
