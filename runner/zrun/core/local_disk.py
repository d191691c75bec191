"""A file system as a store of checkpoints. Who reads holds a lock (zrun.core.reading); knows nothing about tensors."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from zrun.core import durable, free_space, reading
from zrun.core.place import Place
from zrun.core.private import make_folder
from zrun.core.storage import NewFile, OpenFolder, Result

BLOCK: Final = 1 << 20
"""It stays in the processor's cache from the disk to the digest."""
_WRITTEN_AT_ONCE: Final = 4 << 20


class LocalFile:
    """By its descriptor, so that it stays the same file whatever becomes of its name."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self.bytes = os.fstat(handle).st_size
        self.block = BLOCK

    def read_into(self, view: memoryview, at: int) -> int:
        return os.preadv(self._handle, [view], at)

    def expect(self, start: int, end: int) -> None:
        if hasattr(os, "posix_fadvise"):  # the disk works while digests are taken
            os.posix_fadvise(self._handle, start, end - start, os.POSIX_FADV_WILLNEED)


class LocalFolder:
    """`place`: a descriptor that stays right through a rename."""

    def __init__(self, place: int, stack: ExitStack) -> None:
        self._place = place
        self._stack = stack

    def open(self, name: str) -> LocalFile:
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._place)
        self._stack.callback(os.close, handle)
        return LocalFile(handle)


class NewLocalFile:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def write(self, view: memoryview) -> None:
        while len(view):
            view = view[os.write(self._handle, view[:_WRITTEN_AT_ONCE]) :]

    def finish(self) -> None:
        os.fsync(self._handle)


class LocalDisk:
    """What a file system does by itself is its own: nothing is tried again here."""

    def folders(self, place: Place) -> list[str]:
        path = _path(place)
        return sorted(entry.name for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []

    def files(self, place: Place) -> dict[str, int]:
        path = _path(place)
        found: dict[str, int] = {}
        for entry in path.iterdir() if path.is_dir() else ():
            with contextlib.suppress(OSError):  # deleted meanwhile, or a link that leads nowhere
                if entry.is_file():
                    found[entry.name] = entry.stat().st_size
        return found

    def exists(self, place: Place) -> bool:
        return _path(place).exists()

    def read(self, place: Place) -> bytes:
        return _path(place).read_bytes()

    def write(self, place: Place, data: bytes) -> None:
        path = _path(place)
        make_folder(path.parent)
        durable.write_bytes(path, data)

    def create(self, place: Place, data: bytes) -> bool:
        path = _path(place)
        make_folder(path.parent)
        durable.create_exclusive(path, data)
        return True

    def remove(self, place: Place) -> bool:
        try:
            _path(place).unlink()
        except FileNotFoundError:
            return False
        return True

    def remove_all(self, folder: Place) -> None:
        shutil.rmtree(_path(folder))

    def move(self, source: Place, target: Place) -> None:
        path = _path(target)
        make_folder(path.parent)
        _path(source).rename(path)

    @contextlib.contextmanager
    def new_file(self, place: Place, size: int) -> Iterator[NewFile]:  # noqa: ARG002 - object stores want to know it
        handle = os.open(_path(place), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            yield NewLocalFile(handle)
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def held(self, folder: Place) -> Iterator[OpenFolder]:
        with ExitStack() as stack:
            place = stack.enter_context(reading.held(_path(folder)))
            yield LocalFolder(place, stack)

    def being_read(self, folder: Place) -> bool:
        return reading.being_read(_path(folder))

    def contents(self, place: Place) -> tuple[int, float]:
        path = _path(place)
        size, changed = 0, 0.0
        for entry in (path, *path.rglob("*")):
            with contextlib.suppress(OSError):  # being written or deleted meanwhile
                status = entry.lstat()
                changed = max(changed, status.st_mtime)
                size += status.st_size if entry.is_file() else 0
        return size, changed

    def free_bytes(self, place: Place) -> int:
        return free_space.free_bytes(_path(place))

    def identity(self, place: Place) -> int:
        """0 for a path that leads nowhere at all."""
        path = _path(place)
        for folder in (path, *path.parents):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return folder.stat().st_dev
        return 0

    def again(self, act: Callable[[], Result]) -> Result:
        return act()


def _path(place: Place) -> Path:
    assert isinstance(place, Path), f"{place} is not on a disk"
    return place
