"""What the system says when something cannot be written, in words: what it is, where, how much is free, the way out.

Knows nothing about checkpoints but their error.
"""

import errno
from pathlib import Path
from typing import Final

from zrun.core.errors import CheckpointError, StoreError
from zrun.core.free_space import free_bytes
from zrun.core.place import Place

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ROOM: Final = "make room, lower checkpoint.keep, or point checkpoint.dir at a larger disk"
_ROOM_FOR: Final = {
    errno.EDQUOT: "raise the quota, lower checkpoint.keep, or point checkpoint.dir elsewhere",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), or point checkpoint.dir at a file system that allows more",
}
_VANISHED: Final = ("the file system is gone", "mount it again; saves go on by themselves once it is there")
_NO_ACCESS: Final = ("not allowed to write", "let the job's user write there, or point checkpoint.dir elsewhere")
_OTHERS: Final = {
    errno.EROFS: (
        "", "see dmesg: an error may have made it so; mount it writable, or move checkpoint.dir",
    ),
    errno.EIO: ("the disk fails", "look at dmesg and the disk's health, and point checkpoint.dir at another one"),
    errno.ESTALE: _VANISHED, errno.ENOTCONN: _VANISHED, errno.ENODEV: _VANISHED, errno.ENXIO: _VANISHED,
    errno.EHOSTDOWN: _VANISHED,
    errno.EACCES: _NO_ACCESS, errno.EPERM: _NO_ACCESS,
    errno.ENAMETOOLONG: ("", "give checkpoint.dir a shorter path"),
    errno.ENOTDIR: ("something else stands in the way", "a part of the path is a file: move it, or checkpoint.dir"),
    errno.EMFILE: ("", "raise the limit on open files (ulimit -n)"),
}  # fmt: skip
"""errno -> what it is, where the system's own words do not say it, and the way out."""


class DiskFullError(CheckpointError):
    """No room, a quota or a limit on file sizes; its text begins with `disk full`."""


def explained(error: OSError, path: Place) -> CheckpointError:
    """The same failure in words. `path` if the error itself names none."""
    if isinstance(error, StoreError):
        return CheckpointError(str(error), hint=error.hint)
    where = error.filename or path
    said = f"{error.strerror or error} at {where} ({room(Path(str(where)))})"
    if error.errno in _FULL:
        return DiskFullError(f"disk full: {said}", hint=_ROOM_FOR.get(error.errno, _ROOM))
    kind, hint = _OTHERS.get(error.errno or 0, ("", ""))
    return CheckpointError(f"cannot write{', ' if kind else ''}{kind}: {said}", hint=hint)


def too_little(directory: Place, needed: int, free: int) -> DiskFullError:
    """Known before anything is written."""
    return DiskFullError(
        f"disk full: {needed} bytes needed for a checkpoint in {directory}, {free} bytes free", hint=_ROOM
    )


def room(path: Place) -> str:
    free = free_bytes(path) if isinstance(path, Path) else -1
    return f"{free} bytes free there" if free >= 0 else "nobody can say how much is free there"
