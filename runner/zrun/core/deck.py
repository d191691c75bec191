"""The deck: one shared-memory file per rank, written by the rank without locks and read by the agent at any time.

This file holds the layout alone (offsets in bytes, little endian). The agent makes the file before the rank starts.
Each number is aligned and written by one store, so a reader never sees half of one; it may see the fields of two
neighbouring moments together, and every judgement built on a deck has to live with that.
"""

import struct
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Final

MAGIC: Final = b"ZRUNDECK"
VERSION: Final = 3
SIZE: Final = 8192

HEADER: Final = struct.Struct("<8sIIIIQd")
"""magic, version, rank, attempt, pid (0 until the bootstrap ran), process start time (jiffies), made at (Unix s)."""

# Native form on purpose: CPython then writes the number by one memcpy, "<d" byte by byte.
U8: Final = struct.Struct("@B")
U32: Final = struct.Struct("@I")
U64: Final = struct.Struct("@Q")
F64: Final = struct.Struct("@d")

PHASE: Final = 64
FLAGS: Final = 68
STEP: Final = 72
"""The step being done; counts from 1, 0 before the first."""
COMPLETED: Final = 80
"""The last completed optimizer step."""
PROGRESS: Final = 88
"""Counts every sign of progress: step begun, step completed, phase entered, part of a step."""
PROGRESS_AT: Final = 96
"""time.monotonic() of the last one; the clock is the same in all processes of one machine."""
PHASE_AT: Final = 104
STEP_S: Final = 112
"""Duration of the last completed step, seconds."""
BATCH: Final = struct.Struct("<III")
BATCH_AT: Final = 120
"""epoch, ordinal, digest; ordinal 0 means none."""
TOTAL_STEPS: Final = 136
ACK_SEQ: Final = 144
"""The order page's stop sequence this rank has seen while still before or at the stop step."""
BEAT_AT: Final = 152
"""time.monotonic() at the newest look of the rank's watcher thread, 0 before the first. It needs the GIL for it: an old
one in a process that is not stopped means that the interpreter is blocked."""
WAIT_S: Final = 160
"""Seconds spent inside collectives so far, overlapping ones counted once; those whose end nobody sees left out."""
PHASE_NAME: Final = 168
PHASE_NAME_LEN: Final = 32

COLL_SEQ: Final = 256
"""Collectives entered so far."""
COLL_DONE: Final = 264
"""Collectives left so far; smaller than COLL_SEQ while inside one."""
COLL_ENTERED_AT: Final = 272
COLL_LEFT_AT: Final = 280
COLL_BYTES: Final = 288
COLL_GROUP: Final = 296
COLL_OP: Final = 300
COLL_GROUP_SEQ: Final = 304
"""Collectives entered so far on the group of the newest one: what ranks of one group agree about."""

METRICS_LOCK: Final = 320
METRICS_LEN: Final = 324
METRICS: Final = 328
METRICS_MAX: Final = 640

ORDER: Final = struct.Struct("<QIIQQQd")
ORDER_AT: Final = 1024
"""lock (odd while being written), stop kind, spare, stop sequence, stop step, confirmed sequence, deadline (Unix s)."""

FLIGHT_ASKED: Final = 1088
"""How often the agent has asked for what torch's own flight recorder holds; behind the order page, without its lock."""
assert ORDER_AT + ORDER.size <= FLIGHT_ASKED

RING_AT: Final = 2048
RING_SLOTS: Final = 64
SLOT_SIZE: Final = 64
RING: Final = struct.Struct("<QQddQIBBxxQ")
"""sequence, bytes, entered at, left at (0 while inside), sequence on its group, group, op, 1 if its caller can do
nothing else until it is over, step."""
assert RING.size <= SLOT_SIZE


class Phase(IntEnum):
    """What the rank is doing; each has a limit of its own."""

    BOOT = 0
    SETUP = 1
    FIRST_STEP = 2
    STEP = 3
    EVAL = 4
    SAVE = 5
    EXIT = 6
    OWN = 7
    """A phase named by the script; its name stands beside it."""
    DONE = 8

    @property
    def label(self) -> str:
        return self.name.lower()


class Flag(IntFlag):
    """Facts about a rank that only ever become true within an attempt, but for IN_LOADER and SESSION."""

    DUMP_READY = 1
    """The stack-dump signal is registered: it may be sent."""
    SESSION = 2
    """The script uses Session, or is in a framework's loop with our callback: stop requests are obeyed at a step."""
    RECORDER = 4
    """Collectives are recorded."""
    LAST_WORDS = 8
    """A final last-words note is on disk."""
    FINISHED = 16
    """The script ended by itself with code 0."""
    TERM_SEEN = 32
    """SIGTERM reached this rank: a preempt request for the whole job unless we sent it."""
    IN_LOADER = 64
    """Waiting for the next batch."""
    STOPPED_SAFE = 128
    """This rank obeyed a stop request at the stop step."""
    BUILT_RECORDER = 256
    """By the built recorder, which sees them even while the GIL is stuck."""


OPS: Final = (
    "none", "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
    "barrier", "send", "recv", "all_gather_into_tensor", "reduce_scatter_tensor", "allreduce_coalesced",
    "allgather_coalesced", "reduce_scatter_coalesced", "recv_any_source", "monitored_barrier", "other",
)  # fmt: skip
OP_CODE: Final = {name: code for code, name in enumerate(OPS)}


class StopKind(IntEnum):
    """What the order page asks for."""

    NONE = 0
    STOP = 1
    """Save at the stop step and end with code 0."""
    SAVE = 2
    """Save at the stop step and go on."""
    HOLD = 3
    """Something has failed: put the state of the last whole step into memory, now and wherever the rank is."""


def deck_path(shm_dir: Path, rank: int) -> Path:
    return shm_dir / f"deck.{rank}"


def wake_path(shm_dir: Path) -> Path:
    """The agent's datagram socket."""
    return shm_dir / "wake"


def create_deck(path: Path, rank: int, attempt: int, made_at: float) -> None:
    """Make an empty deck of SIZE bytes, mode 0600. Raises FileExistsError, OSError (no space in /dev/shm)."""
    body = HEADER.pack(MAGIC, VERSION, rank, attempt, 0, 0, made_at).ljust(SIZE, b"\0")
    with path.open("xb") as file:
        path.chmod(0o600)
        file.write(body)
