"""Writing into run folders in the background, in order, and living on when a folder cannot be written.

One thread for all folders, so that a slow disk delays papers and never an order. Knows files, not what they mean.
"""

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zrun.core.durable import write_bytes, write_json
from zrun.core.private import make_folder


class Scribe:
    """Says once in the log that a folder cannot be written, and once that it can again."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._work: queue.SimpleQueue[tuple[Path, Callable[[], None]] | None] = queue.SimpleQueue()
        self._broken: set[Path] = set()
        self._thread = threading.Thread(target=self._run, name="scribe", daemon=True)
        self._thread.start()

    def append_line(self, folder: Path, path: Path, line: str) -> None:
        self._work.put((folder, lambda: _append(path, line)))

    def put_json(self, folder: Path, path: Path, value: Any, lost: Callable[[], None] | None = None) -> None:
        """Whole or not at all; the folder of `path` is made if need be. `value` must not change afterwards.

        `lost` is called in the scribe's thread if it could not be written.
        """
        self._work.put((folder, lambda: _put_or(path, value, lost)))

    def put_text(self, folder: Path, path: Path, text: str, lost: Callable[[], None] | None = None) -> None:
        self._work.put((folder, lambda: _put_or(path, text, lost)))

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was handed in so far is written (or given up); False if it takes longer."""
        done = threading.Event()
        self._work.put((Path(), done.set))
        return done.wait(timeout_s)

    def after_all(self, call: Callable[[], None]) -> None:
        """`call` in the scribe's thread once all that was handed in so far is done."""
        self._work.put((Path(), call))

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            folder, work = item
            try:
                work()
            except OSError as error:
                if folder not in self._broken:
                    self._broken.add(folder)
                    self._log.warning("run folder cannot be written; going on without papers", folder=str(folder),
                                      because=error.strerror or str(error))  # fmt: skip
                continue
            if folder in self._broken:
                self._broken.discard(folder)
                self._log.warning("run folder is written again", folder=str(folder), because="a write succeeded")


def _append(path: Path, line: str) -> None:
    """One write(2), so that a kill leaves at most one line torn; a torn one is closed off first."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        os.write(handle, (b"\n" if torn else b"") + line.encode("utf-8", "backslashreplace") + b"\n")
    finally:
        os.close(handle)


def _put_or(path: Path, value: Any, lost: Callable[[], None] | None) -> None:
    try:
        _put(path, value)
    except OSError:
        if lost is not None:
            lost()
        raise


def _put(path: Path, value: Any) -> None:
    make_folder(path.parent)
    if isinstance(value, str):
        write_bytes(path, value.encode("utf-8", "backslashreplace"))
    else:
        write_json(path, value)
