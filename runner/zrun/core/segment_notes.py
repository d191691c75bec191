"""Notes of what a rank makes outside its folders by name, so that it can be removed when the rank is killed.

Shared memory, and the folders in which Python's multiprocessing listens. Lines of inode and name, in a file beside the
decks. Written in the rank at each creation, read by the keeper.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SEGMENTS: Final = "segments"


@dataclass(frozen=True, slots=True)
class SegmentNote:
    """The inode tells a later one of the same name apart. Of shared memory the bare name, of a folder its path."""

    name: str
    inode: int


def write_note(folder: Path, note: SegmentNote) -> None:
    """One write to the end, for many processes write here. Raises OSError."""
    handle = os.open(folder / SEGMENTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, f"{note.inode} {note.name}\n".encode("utf-8", "surrogateescape"))
    finally:
        os.close(handle)


def read_notes(folder: Path) -> list[SegmentNote]:
    """All that are whole; none if there is no such file."""
    try:
        lines = (folder / SEGMENTS).read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    pairs = (line.partition(" ") for line in lines)
    return [SegmentNote(name, int(inode)) for inode, _, name in pairs if inode.isdigit() and name]
