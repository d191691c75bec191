"""What happens to checkpoint folders on disk: begun under a temporary name, published whole, replaced, pruned.

One rank does these things for all. A folder under its final name always has its manifest; nothing is deleted before
it was renamed out of sight. Knows nothing about tensors.
"""

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from zrun.core.durable import fsync_folder, write_bytes
from zrun.core.errors import CheckpointError
from zrun.core.manifest import CONTROL, MANIFEST, Found, Manifest, folder_name, scan
from zrun.core.private import make_folder

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNFINISHED: Final = re.compile(r"step-\d{6,}\.attempt-(\d+)\.tmp")
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class DiskFullError(CheckpointError):
    """No room, a quota or a limit on file sizes; its text begins with `disk full`."""


def explained(error: OSError, path: Path) -> CheckpointError:
    """The same failure in words, naming path and free bytes where it is about room."""
    where = error.filename or path
    if error.errno == errno.EROFS:
        return CheckpointError(f"cannot write: {error.strerror} at {where}")
    if error.errno not in _FULL:
        return CheckpointError(f"cannot write {where}: {error.strerror or error}")
    return DiskFullError(
        f"disk full: {error.strerror} at {where} ({free_bytes(path)} bytes free there)",
        hint="make room, lower checkpoint.keep, or point checkpoint.dir at a larger disk",
    )


def free_bytes(path: Path) -> int:
    """Bytes that may still be written below `path`; -1 where nobody can say."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(folder).free
    return -1


def begin(directory: Path, step: int, attempt: int, needed: int, warn: Callable[[str], None]) -> Path:
    """A fresh folder to write into. Raises OSError, or DiskFullError before anything was written."""
    make_folder(directory / CONTROL)
    unfinished = directory / f"{folder_name(step)}.attempt-{attempt}.tmp"
    if unfinished.exists():
        warn(
            f"{unfinished.name} was left unfinished by an interrupted save; moved to {set_aside(directory, unfinished)}"
        )
    free = free_bytes(directory)
    if 0 <= free < needed:
        raise DiskFullError(
            f"disk full: {needed} bytes needed for a checkpoint in {directory}, {free} bytes free",
            hint="make room, lower checkpoint.keep, or point checkpoint.dir at a larger disk",
        )
    unfinished.mkdir(mode=0o700)
    return unfinished


def publish(unfinished: Path, manifest: Manifest, warn: Callable[[str], None]) -> Path:
    """Write the manifest, make everything durable, and give the folder its final name. Raises OSError.

    A checkpoint of that step that is already there is replaced in one move, so that there is always one of them.
    """
    directory = unfinished.parent
    final = directory / folder_name(manifest.step)
    write_bytes(unfinished / MANIFEST, manifest.to_json().encode())
    if final.exists() and not (final / MANIFEST).exists():
        warn(f"{final.name} has no manifest; moved to {set_aside(directory, final)}")
    if not final.exists():
        unfinished.rename(final)
    elif _exchange(unfinished, final):
        discard(directory, unfinished)
    else:
        replaced = _place(directory, "replaced") / final.name
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


def mend(directory: Path) -> None:
    """Put back a checkpoint whose replacement was interrupted between two renames. Raises OSError."""
    folder = directory / CONTROL / "replaced"
    if folder.is_dir():
        for entry in folder.iterdir():
            if not (directory / entry.name).exists():
                entry.rename(directory / entry.name)


def _place(directory: Path, name: str) -> Path:
    folder = directory / CONTROL / name
    make_folder(folder)
    return folder


def set_aside(directory: Path, entry: Path) -> Path:
    """Move something out of the way without deleting it; says where it went. Raises OSError."""
    target = _place(directory, "leftovers") / f"{entry.name}.{secrets.token_hex(3)}"
    entry.rename(target)
    return target


def discard(directory: Path, entry: Path) -> None:
    """Delete a folder: first out of sight by a rename, then its files. Leaves no half-deleted checkpoint."""
    target = _place(directory, "trash") / f"{entry.name}.{secrets.token_hex(3)}"
    entry.rename(target)
    shutil.rmtree(target, ignore_errors=True)


def sweep(directory: Path, attempt: int) -> list[str]:
    """Delete what attempts before this one left unfinished, and the trash. Returns the names. Raises OSError."""
    swept: list[str] = []
    for entry in sorted(directory.iterdir()):
        match = _UNFINISHED.fullmatch(entry.name)
        if match and int(match[1]) < attempt:
            discard(directory, entry)
            swept.append(entry.name)
    shutil.rmtree(directory / CONTROL / "trash", ignore_errors=True)
    return swept


def surplus(found: Sequence[Found], last: int, every: int | None, reading: int | None) -> list[Found]:
    """The complete checkpoints that no rule keeps: not among the `last` newest (at least one), no multiple of `every`.

    Step `reading` (the one a rank resumed from) is kept. Overtaken ones are of no use to anybody.
    """
    complete = [f for f in found if f.state == "complete"]
    kept = {f.step for f in complete[: max(1, last)]} | ({reading} if reading is not None else set())
    if every:
        kept |= {f.step for f in complete if f.step and f.step % every == 0}
    return [f for f in complete if f.step not in kept] + [f for f in found if f.state == "overtaken"]


def prune(directory: Path, last: int, every: int | None, reading: int | None) -> list[int]:
    """Delete what `surplus` names, oldest first; returns the steps that went. Raises OSError."""
    gone = sorted(surplus(scan(directory), last, every, reading), key=lambda f: f.step)
    for entry in gone:
        discard(directory, entry.path)
    return [entry.step for entry in gone]
