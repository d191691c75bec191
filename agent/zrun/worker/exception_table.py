"""Which handler of a function an exception goes to, from its code object's exception table (python 3.11 and newer).

The format is CPython's (Objects/exception_handling_notes.txt). It knows nothing about what a handler does.
"""

from collections.abc import Iterator
from typing import NamedTuple

_UNIT = 2
"""Bytes of one code unit: the table counts in units."""


class Guarded(NamedTuple):
    """An exception in [begin, end) goes to the handler at `target`; all are offsets in bytes."""

    begin: int
    end: int
    target: int


def guarded_ranges(table: bytes) -> list[Guarded]:
    """All entries, in the order of their begins; ranges do not overlap. [] for a table that is cut off."""
    numbers = _numbers(table)
    found: list[Guarded] = []
    while True:
        entry = [number for _, number in zip(range(4), numbers, strict=False)]
        if len(entry) < 4:
            return found
        begin, length, target, _ = entry
        found.append(Guarded(begin * _UNIT, (begin + length) * _UNIT, target * _UNIT))


def handler_of(ranges: list[Guarded], offset: int) -> int | None:
    """Offset of the handler that an exception raised at `offset` goes to; None: it leaves the function."""
    return next((entry.target for entry in ranges if entry.begin <= offset < entry.end), None)


def _numbers(table: bytes) -> Iterator[int]:
    """Six bits a byte, most significant first; bit 6: more follow; bit 7 begins an entry."""
    value = 0
    for byte in table:
        value = value << 6 | byte & 0x3F
        if not byte & 0x40:
            yield value
            value = 0
