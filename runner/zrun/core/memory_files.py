"""Names of the anonymous files in which ranks keep copies of their state; a node's keeper makes and holds them."""

import re
from typing import Final

PAGE: Final = "page"
SLOTS: Final = ("slot-a", "slot-b")
KINDS: Final = (PAGE, *SLOTS)
_LINK: Final = re.compile(r"/memfd:zrun-memory-(\d+)-([a-z-]+) \(deleted\)")


def file_name(rank: int, kind: str) -> str:
    """For memfd_create."""
    return f"zrun-memory-{rank}-{kind}"


def rank_of(link: str) -> tuple[int, str] | None:
    """(rank, kind) of what a link under /proc/PID/fd points to; None for any other file."""
    match = _LINK.fullmatch(link)
    return (int(match[1]), match[2]) if match else None
