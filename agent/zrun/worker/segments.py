"""Notes what this rank, or a child it forks, makes by name outside its folders: who is killed cannot remove it.

Named shared memory, and the folders in which multiprocessing listens (as loader workers that hand on tensors do).

Standard library only; what is done with the notes is the keeper's business.
"""

import contextlib
import functools
import importlib
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from zrun.core.segment_notes import SegmentNote, write_note

PLACE: Final = Path("/dev/shm")  # noqa: S108 - the kernel's own place for shared memory


def note_what_is_made(folder: Path) -> None:
    """From here on, into `folder`."""
    _note_listening_places(folder)
    _note_segments(folder)


def _note_listening_places(folder: Path) -> None:
    original = tempfile.mkdtemp

    def mkdtemp(*args: Any, **more: Any) -> Any:
        made = original(*args, **more)
        if isinstance(made, str) and Path(made).name.startswith("pymp-"):
            with contextlib.suppress(OSError):
                write_note(folder, SegmentNote(made, os.stat(made).st_ino))  # noqa: PTH116 - as it was given
        return made

    vars(tempfile)["mkdtemp"] = functools.update_wrapper(mkdtemp, original)


def _note_segments(folder: Path) -> None:
    """`multiprocessing.shared_memory` looks its function up at each call."""
    try:
        module: Any = importlib.import_module("_posixshmem")
    except ImportError:
        return  # a python without it makes none
    original = module.shm_open

    def shm_open(path: str, flags: int, mode: int = 0o777) -> int:
        name = path.lstrip("/")
        new = bool(flags & os.O_CREAT) and (bool(flags & os.O_EXCL) or not (PLACE / name).exists())
        handle: int = original(path, flags, mode)
        if new:
            with contextlib.suppress(OSError):  # the attempt may be over, its folder gone
                write_note(folder, SegmentNote(name, os.fstat(handle).st_ino))
        return handle

    module.shm_open = shm_open
