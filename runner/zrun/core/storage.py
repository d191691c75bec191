"""The seam between checkpoints and where they lie: what a store must be able to do, in two kinds.

`LocalDisk` is a file system: a folder is written under another name and renamed. `ObjectStore` is S3, GCS or what else
fsspec knows: nothing is renamed, the manifest's PUT is what makes a checkpoint. Knows nothing about either.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from zrun.core.place import ObjectPath, Place

Result = TypeVar("Result")


class OpenFile(Protocol):
    """One file of a checkpoint, to be read by several threads at once."""

    @property
    def bytes(self) -> int: ...

    @property
    def block(self) -> int:
        """So many bytes are worth asking for at a time."""

    def read_into(self, view: memoryview, at: int) -> int:
        """Bytes read from `at` on; 0: the file ends there. Raises OSError."""

    def expect(self, start: int, end: int) -> None:
        """Soon these bytes will be asked for, one after the other."""


class OpenFolder(Protocol):
    """One checkpoint while somebody reads it."""

    def open(self, name: str) -> OpenFile:
        """Closed with the folder. Raises OSError (FileNotFoundError)."""


class NewFile(Protocol):
    """A file being written: in full, or as if it had never been begun, unless `finish` was called."""

    def write(self, view: memoryview) -> None: ...

    def finish(self) -> None:
        """Make it durable. Raises OSError."""


class Storage(Protocol):
    """All methods raise OSError. What fails for a reason that may pass was tried again before."""

    def folders(self, place: Place) -> list[str]:
        """Names of the folders right in `place`, sorted; none if it is not there."""

    def files(self, place: Place) -> dict[str, int]:
        """Name -> bytes of the files right in `place`; none if it is not there."""

    def exists(self, place: Place) -> bool:
        """Is there a file, or a folder with something in it?"""

    def read(self, place: Place) -> bytes: ...

    def write(self, place: Place, data: bytes) -> None:
        """So that a reader sees the old one or the new one; folders above it are made."""

    def create(self, place: Place, data: bytes) -> bool:
        """FileExistsError if somebody was first. False: made, but this store cannot keep two from being first at once.

        `data` must not be what anybody else would write.
        """

    def remove(self, place: Place) -> bool:
        """One file; False if it was not there."""

    def remove_all(self, folder: Place) -> None:
        """A folder with what is in it, the manifest first."""

    def move(self, source: Place, target: Place) -> None:
        """A folder or file under another name; in one step where the store can."""

    def new_file(self, place: Place, size: int) -> AbstractContextManager[NewFile]:
        """Of `size` bytes; FileExistsError where names are unique."""

    def held(self, folder: Place) -> AbstractContextManager[OpenFolder]:
        """While inside, nobody who asks deletes it. FileNotFoundError: it is gone."""

    def being_read(self, folder: Place) -> bool:
        """By somebody right now, as far as can be known."""

    def contents(self, place: Place) -> tuple[int, float]:
        """(bytes, unix time of the newest change) of all that lies below."""

    def free_bytes(self, place: Place) -> int:
        """-1 where nobody can say, or where there is no end."""

    def identity(self, place: Place) -> int:
        """Of the file system it lies on; changes when something else is mounted there."""

    def again(self, act: Callable[[], Result]) -> Result:
        """Do something that writes, and do it again, later, while it fails for a reason that may pass."""


def of(place: Place) -> Storage:
    """The store in which `place` lies."""
    if isinstance(place, ObjectPath):
        from zrun.core.object_store import ObjectStore

        return ObjectStore(place.scheme)
    from zrun.core.local_disk import LocalDisk

    return LocalDisk()
