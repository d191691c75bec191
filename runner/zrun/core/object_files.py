"""Files of a checkpoint in an object store: read in windows, written in parts. Knows nothing about what is in them."""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from zrun.core.place import ObjectPath, Place
from zrun.core.store_errors import refused

WINDOW: Final = 8 << 20
"""Read at a time: an answer takes tens of milliseconds, however little is asked for."""
_WINDOWS_KEPT: Final = 4
PART: Final = 16 << 20
"""Sent at a time."""
_MOST_PARTS: Final = 9000
"""S3 takes 10,000 of a file."""

Range = Callable[[Place, int, int], bytes]
"""Bytes [start, end) of an object."""


class ObjectFile:
    """Small reads are answered from windows that were read whole; large ones go straight to the store."""

    def __init__(self, place: Place, size: int, fetch: Range) -> None:
        self._place, self.bytes, self._fetch = place, size, fetch
        self.block = WINDOW
        self._windows: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def read_into(self, view: memoryview, at: int) -> int:
        count = min(len(view), self.bytes - at)
        if count <= 0:
            return 0
        if count >= WINDOW // 2:
            data = self._fetch(self._place, at, at + count)
        else:
            first = at // WINDOW * WINDOW
            data = self._window(first)[at - first :][:count]
        view[: len(data)] = data
        return len(data)

    def _window(self, first: int) -> bytes:
        with self._lock:  # who asks for the same one waits for it
            if first not in self._windows:
                self._windows[first] = self._fetch(self._place, first, min(first + WINDOW, self.bytes))
                while len(self._windows) > _WINDOWS_KEPT:
                    self._windows.popitem(last=False)
            self._windows.move_to_end(first)
            return self._windows[first]

    def expect(self, start: int, end: int) -> None:
        """Windows do that."""


class ObjectFolder:
    """`sizes`: of its files, as they were listed."""

    def __init__(self, folder: Place, sizes: Mapping[str, int], fetch: Range) -> None:
        self._folder, self._sizes, self._fetch = folder, sizes, fetch

    def open(self, name: str) -> ObjectFile:
        if name not in self._sizes:
            raise FileNotFoundError(f"{self._folder / name} is not there")
        return ObjectFile(self._folder / name, self._sizes[name], self._fetch)


class NewObject:
    """Nobody sees it before `finish` has come back."""

    def __init__(self, client: Any, place: ObjectPath, size: int) -> None:
        self._place = place
        block = max(PART, -(-size // _MOST_PARTS))
        try:
            self._file: Any = client.open(place.key, "wb", block_size=block)
        except Exception as error:  # each client has errors of its own
            raise refused(error, place) from error

    def write(self, view: memoryview) -> None:
        try:
            for at in range(0, len(view), PART):
                self._file.write(view[at : at + PART])
        except Exception as error:  # each client has errors of its own
            raise refused(error, self._place) from error

    def finish(self) -> None:
        try:
            self._file.close()
        except Exception as error:  # each client has errors of its own
            raise refused(error, self._place) from error
        self._file = None

    def discard(self) -> None:
        """Unless it is finished: the parts that were sent are let go."""
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(Exception):  # it was not sent, and `abort_uploads` finds what is left of it
            file.discard()
        file.closed = True  # else it is sent after all when it is collected
