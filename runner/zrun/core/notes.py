"""Facts a rank leaves for its agent, one JSON line each, in `rank-R.notes` of the attempt's folder.

A note is written in one write(2) with O_APPEND, so it is whole or absent, and outlives the rank that wrote it. After
writing, the rank pokes the agent's datagram socket; a lost poke only means that the agent reads 100 ms later.
"""

import json
import os
import socket
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

from zrun.core.words import encodable


class NoteKind(StrEnum):
    """Which other keys a note carries stands beside each."""

    STARTED = "started"
    """pid, python, torch (absent until known), argv."""
    SESSION = "session"
    """resumed_step (0: none), tier ("disk" | "memory" | null), checkpoint (path | null), total_steps (int | null),
    skipped (list of {path, reason}: checkpoints passed over)."""
    LAST_WORDS = "last-words"
    """The keys of Failure that the rank knows: exception, message, where, traceback, step, batch, phase,
    collective, exit_code, final (true: the script is over; false: still unwinding); `at` is when it was first seen."""
    LEAVING = "leaving"
    """The exception of the newest last words will certainly leave the script, whatever its cleanup still does."""
    CAUGHT = "caught"
    """The exception of the newest last words is in an except clause of the script, which may go on from there."""
    HANDLED = "handled"
    """The exception of the newest last words is in flight no longer: the script goes on."""
    THREAD_ENDED = "thread-ended"
    """As last words, and thread (name): an exception ended another thread than the main one; the script goes on."""
    SAVE_REQUESTED = "save-requested"
    """step, batch, waited_s (how long training stood still for the save before it); written by rank 0. Nothing is on
    disk yet."""
    CHECKPOINT = "checkpoint"
    """step, batch, path, bytes, seconds (from request to disk), blocked_s (how long training stood still for the copy),
    pruned (steps of older checkpoints that were then deleted); written by rank 0 when it is on disk for good."""
    SAVE_FAILED = "save-failed"
    """step, error, path, disk_full (bool)."""
    HOLDS = "holds"
    """From now on this rank can be asked for its state (StopKind.HOLD)."""
    HOLDING = "holding"
    """bytes: so many are being copied into memory that outlives this rank, because something has failed."""
    HELD = "held"
    """step, bytes, seconds: the state after that step lies in memory; or step null and problem."""
    MEMORY = "memory"
    """step, bytes, seconds: the first copy of the cadence in memory."""
    STOPPED_AT = "stopped-at"
    """step: the safe point at which this rank obeyed a stop request; saved (bool)."""
    QUARANTINED = "quarantined"
    """step, batch: a batch was skipped as ordered."""
    GROUP = "group"
    """code, name, timeout_s (0: not known): a process group this rank is a member of, which gives up after so long."""
    WARNING = "warning"
    """message."""
    FINISHED = "finished"
    """The script ended by itself; exit_code."""


class NoteWriter:
    """Used inside a rank; never raises into user code once it is open."""

    def __init__(self, path: Path, wake: Path | None = None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._wake = str(wake) if wake else None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    def write(self, kind: NoteKind, **fields: Any) -> None:
        """Append one note stamped with the wall clock (`at`, Unix seconds)."""
        line = json.dumps({"kind": kind.value, "at": time.time(), **encodable(fields)}, default=str) + "\n"
        try:
            os.write(self._fd, line.encode("utf-8", "backslashreplace"))
        except OSError:
            return  # a full disk must not end training; the agent sees the rank's death itself
        self.poke()

    def close(self) -> None:
        """Give the descriptors back; a rank itself never needs to."""
        os.close(self._fd)
        self._socket.close()

    def poke(self) -> None:
        """Wake the agent; a lost poke costs it at most one poll."""
        if self._wake is None:
            return
        try:
            self._socket.sendto(b"!", self._wake)
        except OSError:
            pass


class NoteReader:
    """Used by the agent: gives each whole line once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """New notes since the last call; lines that are not JSON objects are dropped."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        notes: list[dict[str, Any]] = []
        for line in whole.splitlines():
            try:
                note = json.loads(line)
            except ValueError:
                continue
            if isinstance(note, dict):
                notes.append(encodable(note))
        return notes
