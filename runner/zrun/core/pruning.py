"""Deleting from a checkpoint folder: old checkpoints by the rule, and what interrupted saves have left behind.

Nothing is deleted before it was renamed out of sight, and nothing that is being read. In an object store, where nothing
is renamed and nobody can tell who reads, the manifest goes first. Knows nothing about tensors.
"""

import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zrun.core import pins, reading, retention, storage
from zrun.core.manifest import CONTROL, MANIFEST, Found, claims, prefix_of
from zrun.core.place import ObjectPath, Place
from zrun.core.private import make_folder
from zrun.core.retention import Fate, Keep, Needed

UNFINISHED: Final = re.compile(r"step-(\d{6,})\.attempt-(\d+)\.tmp")
"""A checkpoint that is being written, or whose writer died."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """What an interrupted save, replacement or deletion left; `age_s` since anything in it changed."""

    path: Place
    what: str
    bytes: int
    age_s: float


def fates(directory: Place, found: Sequence[Found], keep: Keep, *, damaged_too: bool = False) -> list[Fate]:
    """The rule, with what the folder itself says about who needs what. Raises OSError."""
    claimed, store = claims(directory), storage.of(directory)
    needed = Needed(
        pinned=pins.pinned(directory, found),
        being_read={f.step for f in found if f.manifest is not None and store.being_read(f.path)},
        # An attempt that began from nothing claims step 0 as well: that is nothing to keep.
        resumed_from={claimed[max(claimed)]} - {0} if claimed else set(),
    )
    return retention.fates(found, keep, needed, damaged_too=damaged_too)


def delete(directory: Place, decided: Sequence[Fate]) -> list[Fate]:
    """Those that may go, oldest first; returns the ones that went. Raises OSError."""
    gone = sorted((fate for fate in decided if not fate.keep), key=lambda fate: fate.found.step)
    return [fate for fate in gone if remove(directory, fate.found.path)]


def remove(directory: Place, entry: Place) -> bool:
    """Delete a checkpoint, unless it is being read; False then, or if it is gone already. Raises OSError."""
    if not isinstance(directory, Path) or not isinstance(entry, Path):
        store = storage.of(entry)
        there = store.exists(entry)
        store.remove_all(entry)
        return there
    with reading.alone(entry) as free:
        if not free:
            return False
        try:
            target = _out_of_sight(directory, entry)
        except FileNotFoundError:
            return False
    shutil.rmtree(target, ignore_errors=True)
    return True


def drop(directory: Place, entry: Place) -> None:
    """Take a folder out of sight whoever reads it, for its name is needed; its files go when nobody does.

    Leaves no half-deleted checkpoint. Raises OSError.
    """
    if not isinstance(directory, Path) or not isinstance(entry, Path):
        storage.of(entry).remove_all(entry)
        return
    _empty(_out_of_sight(directory, entry))


def _out_of_sight(directory: Path, entry: Path) -> Path:
    target = place(directory, "trash") / f"{entry.name}.{secrets.token_hex(3)}"
    entry.rename(target)
    return target


def _empty(trash: Path) -> bool:
    if reading.being_read(trash):
        return False
    shutil.rmtree(trash, ignore_errors=True)
    return True


def place(directory: Path, name: str) -> Path:
    """A folder of ours inside `directory`. Raises OSError."""
    folder = directory / CONTROL / name
    make_folder(folder)
    return folder


def unfinished(directory: Place) -> list[tuple[Place, int, int]]:
    """(folder, step, attempt) of checkpoints that are being written or were never finished."""
    store = storage.of(directory)
    found: list[tuple[Place, int, int]] = []
    for name in store.folders(directory):
        entry = directory / name
        if isinstance(entry, ObjectPath):
            named = prefix_of(name)
            if named and MANIFEST not in store.files(entry):
                found.append((entry, *named))
        elif match := UNFINISHED.fullmatch(name):
            found.append((entry, int(match[1]), int(match[2])))
    return found


def leftovers(directory: Place, now_unix: float) -> list[Leftover]:
    """What no checkpoint needs any more, or perhaps still does: a save under way looks the same, but is young."""
    newest = max(claims(directory), default=0)
    found: list[Leftover] = []
    for entry, _, attempt in unfinished(directory):
        by = "is over" if attempt < newest else "may be writing it"
        found.append(_leftover(entry, f"unfinished save of attempt {attempt}, which {by}", now_unix))
    for name, what in (("leftovers", "moved aside by a later save"), ("trash", "half deleted")):
        if isinstance(directory, Path):
            folder = directory / CONTROL / name
            entries = sorted(folder.iterdir()) if folder.is_dir() else []
            found += [_leftover(entry, what, now_unix) for entry in entries]
    return found


def clear(directory: Place, leftover: Leftover) -> bool:
    """Delete one for good; False if it is being read, or gone. Raises OSError."""
    if isinstance(leftover.path, Path) and leftover.path.parent == directory / CONTROL / "trash":
        return _empty(leftover.path)
    return remove(directory, leftover.path)


def empty_trash(directory: Place) -> None:
    """What nobody reads any more of it. Raises OSError."""
    if not isinstance(directory, Path):
        return  # nothing is moved there
    folder = directory / CONTROL / "trash"
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        _empty(entry)


def _leftover(entry: Place, what: str, now_unix: float) -> Leftover:
    size, changed = storage.of(entry).contents(entry)
    return Leftover(entry, what, size, max(0.0, now_unix - changed))
