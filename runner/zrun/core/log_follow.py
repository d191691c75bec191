"""Reading on in a log that is being written, also after its middle was cut out; nothing twice and nothing missed.

How far it was read is a Place, which may be kept as text and handed back by one who asks from elsewhere. Knows
nothing about filters, ranks or HTTP.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from zrun.core.log_files import Line, parse
from zrun.core.log_gap import NO_GAP, Gap, find_gap

_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Place:
    """Everything before `offset` has been given; offsets are those of a log that was never shortened."""

    offset: int = 0
    inode: int = 0
    gap: Gap = NO_GAP
    """Of the file with this inode, so that it is looked for once only."""

    def text(self) -> str:
        return f"{self.offset}.{self.inode}.{self.gap.at}.{self.gap.end}.{self.gap.bytes}"

    @classmethod
    def of(cls, text: str) -> "Place":
        """Raises ValueError."""
        offset, inode, *gap = (int(number) for number in text.split("."))
        if len(gap) != 3 or min(offset, inode, *gap) < 0:
            raise ValueError(text)
        return cls(offset, inode, Gap(*gap))


class Growing:
    """A file that is being written: each call gives the whole lines added since the last one."""

    def __init__(self, path: Path, *, at_end: bool = False, place: Place | None = None) -> None:
        self._path = path
        self.place = place or Place()
        if at_end:
            self._to_end()

    @property
    def end(self) -> int:
        """How many bytes of the file as it is now have been given."""
        return self.place.gap.place(self.place.offset)

    def read(self, most: int = 4 << 20) -> list[Line]:
        """At most about `most` bytes of lines; a longer line is waited for."""
        return [parse(raw) for raw in self.read_raw(most).split(b"\n")[:-1]]

    def read_raw(self, most: int) -> bytes:
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            self._know(handle)
            at = self.end
            data = os.pread(handle, most, at)
            while data and b"\n" not in data and (more := os.pread(handle, most, at + len(data))):
                data += more
        finally:
            os.close(handle)
        whole = data[: data.rfind(b"\n") + 1]
        gap = self.place.gap
        self.place = Place(gap.offset(at + len(whole)), self.place.inode, gap)
        return whole

    def _know(self, handle: int) -> None:
        facts = os.fstat(handle)
        if facts.st_ino != self.place.inode:
            self.place = Place(self.place.offset, facts.st_ino, find_gap(handle, facts.st_size))

    def _to_end(self) -> None:
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            self._know(handle)
            end = _last_newline(handle, os.fstat(handle).st_size)
        finally:
            os.close(handle)
        self.place = Place(self.place.gap.offset(end), self.place.inode, self.place.gap)


def _last_newline(handle: int, size: int) -> int:
    """The offset behind the last whole line."""
    at = size
    while at > 0:
        start = max(0, at - _BLOCK)
        found = os.pread(handle, at - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        at = start
    return 0
