"""What happens to checkpoint folders on disk: begun under a temporary name, published whole, replaced, pruned.

One rank does these things for all. A folder under its final name always has its manifest; nothing is deleted before
it was renamed out of sight. An object store has ways of its own (zrun.state.object_commit). Knows nothing of tensors.
"""

import ctypes
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from zrun.core import pruning
from zrun.core.durable import fsync_folder, write_bytes
from zrun.core.free_space import free_bytes
from zrun.core.manifest import CONTROL, MANIFEST, Manifest, folder_name, scan
from zrun.core.place import ObjectPath, Place
from zrun.core.private import make_folder
from zrun.core.retention import Keep
from zrun.state import object_commit
from zrun.state.disk_errors import too_little
from zrun.state.kill_points import reached

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


discard: Final = pruning.drop


def begin(directory: Place, step: int, attempt: int, needed: int, warn: Callable[[str], None]) -> Place:
    """A fresh folder to write into. Raises OSError, or DiskFullError before anything was written."""
    if isinstance(directory, ObjectPath):
        return object_commit.begin(directory, step, attempt, warn)
    make_folder(directory / CONTROL)
    unfinished = directory / f"{folder_name(step)}.attempt-{attempt}.tmp"
    if unfinished.exists():
        warn(
            f"{unfinished.name} was left unfinished by an interrupted save; moved to {set_aside(directory, unfinished)}"
        )
    free = free_bytes(directory)
    if 0 <= free < needed:
        raise too_little(directory, needed, free)
    unfinished.mkdir(mode=0o700)
    return unfinished


def publish(unfinished: Place, manifest: Manifest, warn: Callable[[str], None]) -> Place:
    """Write the manifest, make everything durable, and give the folder its final name. Raises OSError.

    A checkpoint of that step that is already there is replaced in one move, so that there is always one of them.
    """
    if isinstance(unfinished, ObjectPath):
        return object_commit.publish(unfinished, manifest)
    directory = unfinished.parent
    final = directory / folder_name(manifest.step)
    reached("manifest")
    write_bytes(unfinished / MANIFEST, manifest.to_json().encode())
    if final.exists() and not (final / MANIFEST).exists():
        warn(f"{final.name} has no manifest; moved to {set_aside(directory, final)}")
    reached("rename")
    if not final.exists():
        unfinished.rename(final)
    elif _exchange(unfinished, final):
        discard(directory, unfinished)
    else:
        replaced = pruning.place(directory, "replaced") / final.name
        if replaced.exists():
            discard(directory, replaced)
        final.rename(replaced)  # `mend` puts it back should we die right here
        unfinished.rename(final)
        discard(directory, replaced)
    fsync_folder(directory)
    return final


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step where the system can (Linux, most local file systems)."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    swapped: int = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return swapped == 0


def mend(directory: Place) -> None:
    """Put back a checkpoint whose replacement was interrupted between two renames. Raises OSError."""
    if isinstance(directory, ObjectPath):
        return
    folder = directory / CONTROL / "replaced"
    if folder.is_dir():
        for entry in folder.iterdir():
            if not (directory / entry.name).exists():
                entry.rename(directory / entry.name)


def set_aside(directory: Path, entry: Path) -> Path:
    """Move something out of the way without deleting it; says where it went. Raises OSError."""
    target = pruning.place(directory, "leftovers") / f"{entry.name}.{secrets.token_hex(3)}"
    entry.rename(target)
    return target


def sweep(directory: Place, attempt: int) -> list[str]:
    """Delete what attempts before this one left unfinished, and the trash. Returns the names. Raises OSError."""
    swept: list[str] = []
    for entry, _, writer in pruning.unfinished(directory):
        if writer < attempt:
            discard(directory, entry)
            swept.append(entry.name)
    pruning.empty_trash(directory)
    if isinstance(directory, ObjectPath) and (parts := object_commit.abort_uploads(directory, attempt)):
        swept.append(f"{parts} unfinished uploads")
    return swept


def prune(directory: Place, last: int, every: int | None, resumed_from: int | None) -> list[int]:
    """Delete what the rule does not keep (zrun.core.retention), oldest first; returns the steps. Raises OSError.

    Step `resumed_from` is kept besides; the newest claim says the same, unless somebody took it away.
    """
    reached("prune")
    decided = pruning.fates(directory, scan(directory), Keep(last, every))
    return [fate.found.step for fate in pruning.delete(directory, [f for f in decided if f.found.step != resumed_from])]
