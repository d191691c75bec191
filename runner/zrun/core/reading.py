"""Who reads a checkpoint holds a shared lock on its manifest; who deletes one wants that lock for itself alone.

The kernel lets a dead reader's lock go, so nothing stale is left behind and no file is written: a checkpoint may be
read from where nothing can be written. On a file system without locks (some mounts of NFS and Lustre) nobody can tell,
and nothing is held back. Knows nothing about what is worth keeping.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from zrun.core.manifest import MANIFEST

_PATIENCE_S: Final = 1.0
"""Somebody asks or renames in microseconds; one that is stopped in the middle of it is not waited for."""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[int]:
    """While inside, nobody who asks deletes `folder`; yields a descriptor of it that stays right through a rename.

    Raises OSError (FileNotFoundError: it is gone).
    """
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        manifest = os.open(MANIFEST, os.O_RDONLY | os.O_CLOEXEC, dir_fd=place)
        try:
            _share(manifest)
            # Who deletes lets the lock go only when the folder has another name.
            if not os.path.samestat(folder.stat(), os.fstat(place)):
                raise FileNotFoundError(f"{folder} was replaced just now")
            yield place
        finally:
            os.close(manifest)
    finally:
        os.close(place)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """Inside, nobody reads `folder` and nobody begins to; False if somebody does. Raises no OSError of its own."""
    manifest = _open(folder / MANIFEST)
    if manifest is None:
        yield True  # no manifest: nothing that anybody would read
        return
    try:
        yield _take(manifest)
    finally:
        os.close(manifest)


def being_read(folder: Path) -> bool:
    """Is somebody reading it right now?"""
    with alone(folder) as free:
        return not free


def _open(path: Path) -> int | None:
    """For writing where that is allowed: over NFS a lock for oneself alone needs it."""
    for mode in (os.O_RDWR, os.O_RDONLY):
        with contextlib.suppress(OSError):
            return os.open(path, mode | os.O_CLOEXEC)
    return None


def _share(manifest: int) -> None:
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(manifest, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return
            time.sleep(0.005)
        except OSError:
            return  # no locks on this file system
        else:
            return


def _take(manifest: int) -> bool:
    try:
        fcntl.flock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
