"""An object store (S3, Google Cloud Storage, whatever else fsspec knows) as a store of checkpoints.

Nothing is renamed and nothing is locked. fsspec and the store's client are imported at the first use, so that nobody
who keeps checkpoints on a disk needs them. Errors come out as OSError: FileNotFoundError, FileExistsError, or a
StoreError with the way out. Knows nothing about tensors.
"""

import contextlib
import functools
import os
import random
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

from zrun.core.errors import StoreError
from zrun.core.object_files import NewObject, ObjectFolder
from zrun.core.place import ObjectPath, Place
from zrun.core.storage import NewFile, OpenFolder, Result
from zrun.core.store_errors import NOT_KNOWN, RefusedError, missing, refused

MANIFEST: Final = "manifest.json"
"""Deleted first: without it what is left is no checkpoint."""
TRIES: Final = 5
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
_OPTIONS: Final = {"use_listings_cache": False}
"""What others write has to be seen."""


@functools.cache
def _file_system(scheme: str, process: int) -> Any:  # noqa: ARG001 - a client does not outlive a fork
    """The client, one for all threads of a process. StoreError if it is not installed."""
    try:
        import fsspec
        from fsspec.registry import known_implementations
    except ImportError:
        raise missing(scheme, "fsspec") from None
    known = known_implementations.get(scheme)
    try:
        return fsspec.filesystem(scheme, skip_instance_cache=True, **_OPTIONS)
    except ImportError:
        raise missing(scheme, str(known["class"]).partition(".")[0] if known else f"a client of {scheme}") from None
    except Exception as error:  # each client has errors of its own
        raise refused(error, ObjectPath(scheme, "")) from error


def forget_clients() -> None:
    """The next use makes new ones, with the variables of that moment."""
    _file_system.cache_clear()


class ObjectStore:
    """All buckets of one scheme. What fails for a reason that may pass is tried again, with growing pauses."""

    def __init__(self, scheme: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._scheme = scheme
        self._sleep = sleep

    @property
    def _client(self) -> Any:
        return _file_system(self._scheme, os.getpid())

    def _ask(self, place: Place, act: Callable[[Any, str], Result]) -> Result:
        """`act(client, key)`; its errors become ours."""
        assert isinstance(place, ObjectPath), f"{place} is in no object store"

        def once() -> Result:
            try:
                return act(self._client, place.key)
            except Exception as error:  # each client has errors of its own
                if isinstance(error, StoreError):
                    raise
                raise refused(error, place) from error

        return self.again(once)

    def again(self, act: Callable[[], Result]) -> Result:
        pause_s = FIRST_PAUSE_S
        for left in reversed(range(TRIES)):
            try:
                return act()
            except RefusedError as error:
                if not error.passing or not left:
                    raise
            self._sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - so that ranks do not come back all at once
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise AssertionError("unreachable")

    def folders(self, place: Place) -> list[str]:
        return sorted(name for name, entry in self._listed(place).items() if entry["type"] == "directory")

    def files(self, place: Place) -> dict[str, int]:
        return {name: int(entry["size"]) for name, entry in self._listed(place).items() if entry["type"] == "file"}

    def _listed(self, place: Place) -> dict[str, dict[str, Any]]:
        try:
            entries = self._ask(place, lambda client, key: client.ls(key, detail=True))
        except FileNotFoundError:
            return {}
        named = {str(entry["name"]).rstrip("/").rpartition("/")[2]: entry for entry in entries}
        return {name: entry for name, entry in named.items() if name and entry["name"].strip("/") != _key(place)}

    def exists(self, place: Place) -> bool:
        try:
            self._ask(place, lambda client, key: client.info(key))
        except FileNotFoundError:
            return False
        return True

    def read(self, place: Place) -> bytes:
        return self._ask(place, lambda client, key: bytes(client.cat_file(key)))

    def write(self, place: Place, data: bytes) -> None:
        self._ask(place, lambda client, key: client.pipe_file(key, data))

    def create(self, place: Place, data: bytes) -> bool:
        """By a conditional PUT; where the store knows none, written and read back."""
        if self.exists(place):
            raise FileExistsError(f"{place} is there")
        guarded = True
        try:
            self._ask(place, lambda client, key: client.pipe_file(key, data, mode="create"))
        except FileExistsError:
            if self.read(place) != data:  # else it is ours: the answer to the first try was lost
                raise
        except RefusedError as error:
            if not error.codes & (NOT_KNOWN | {"TypeError", "ValueError", "NotImplementedError"}):
                raise
            guarded = False
            self.write(place, data)
        if self.read(place) != data:
            raise FileExistsError(f"{place} is somebody else's")
        return guarded

    def remove(self, place: Place) -> bool:
        if not self.exists(place):
            return False
        with contextlib.suppress(FileNotFoundError):
            self._ask(place, lambda client, key: client.rm_file(key))
        return True

    def remove_all(self, folder: Place) -> None:
        self.remove(folder / MANIFEST)
        with contextlib.suppress(FileNotFoundError):
            self._ask(folder, lambda client, key: client.rm(key, recursive=True))

    def move(self, source: Place, target: Place) -> None:
        """Copied inside the store, object by object; the manifest is the last to come and the first to go."""
        files = self._ask(source, lambda client, key: client.find(key))
        assert isinstance(source, ObjectPath)
        assert isinstance(target, ObjectPath)
        for file in sorted(files, key=lambda name: name.endswith(f"/{MANIFEST}")):
            to = target.key + str(file).strip("/").removeprefix(source.key)
            self._ask(source, lambda client, _, file=file, to=to: client.cp_file(file, to))  # type: ignore[misc]
        self.remove_all(source)

    @contextlib.contextmanager
    def new_file(self, place: Place, size: int) -> Iterator[NewFile]:
        """Sent in parts while it is written. Not tried again here: only who has the bytes can."""
        assert isinstance(place, ObjectPath)
        file = NewObject(self._client, place, size)
        try:
            yield file
        finally:
            file.discard()

    @contextlib.contextmanager
    def held(self, folder: Place) -> Iterator[OpenFolder]:
        """Nobody is kept from deleting it: no store tells who reads."""
        if MANIFEST not in (sizes := self.files(folder)):
            raise FileNotFoundError(f"{folder} is gone")
        yield ObjectFolder(folder, sizes, self._range)

    def _range(self, place: Place, start: int, end: int) -> bytes:
        return self._ask(place, lambda client, key: bytes(client.cat_file(key, start=start, end=end)))

    def being_read(self, folder: Place) -> bool:  # noqa: ARG002 - no store tells
        return False

    def contents(self, place: Place) -> tuple[int, float]:
        try:
            found = self._ask(place, lambda client, key: client.find(key, detail=True))
        except FileNotFoundError:
            return 0, 0.0
        entries = list(found.values())
        return sum(int(one["size"]) for one in entries), max((_changed(one) for one in entries), default=0.0)

    def free_bytes(self, place: Place) -> int:  # noqa: ARG002 - there is no end
        return -1

    def identity(self, place: Place) -> int:  # noqa: ARG002 - a bucket is not mounted
        return 0

    def abort_uploads(self, directory: ObjectPath, stale: Callable[[str], bool]) -> int:
        """Let go of what was sent of files that nobody will finish: `stale` hears the folder's name. Where the store
        keeps such things and its client can tell (S3); others forget them by themselves.
        """
        client, gone = self._client, 0
        if not hasattr(client, "list_multipart_uploads") or not hasattr(client, "abort_mpu"):
            return 0
        inside = directory.key.partition("/")[2]
        for upload in self._ask(directory, lambda client, _: client.list_multipart_uploads(directory.bucket)):
            key = str(upload["Key"])
            name = key.removeprefix(f"{inside}/").partition("/")[0]
            if key.startswith(f"{inside}/" if inside else "") and stale(name):
                with contextlib.suppress(FileNotFoundError):
                    self._ask(
                        directory,
                        lambda client, _, key=key, number=upload["UploadId"]: client.abort_mpu(
                            directory.bucket, key, number
                        ),  # type: ignore[misc]
                    )
                gone += 1
        return gone


def _key(place: Place) -> str:
    return place.key if isinstance(place, ObjectPath) else str(place)


def _changed(entry: dict[str, Any]) -> float:
    """Clients call it by different names."""
    for name in ("LastModified", "mtime", "updated", "last_modified", "created"):
        value: Any = entry.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0
