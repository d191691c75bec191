"""A rank's side of its deck: cheap stores into shared memory (0.2 µs each), and reading the order page.

Knows nothing about torch. After a fork the child's writer is dead (`pid` differs): loader workers must not write.
"""

import json
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zrun.core import deck as d
from zrun.core.batch import BatchId
from zrun.core.standing import POINT_TO_POINT

_PAIRED: Final = frozenset(d.OP_CODE[name] for name in POINT_TO_POINT)
_READ_AGAIN: Final = 1000
"""Times; an agent that died in the middle of writing must not hold a rank up."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """What the order page says. `confirmed`: all ranks have acknowledged `sequence`, so the step holds."""

    kind: d.StopKind
    sequence: int
    step: int
    confirmed: bool
    deadline: float


class DeckWriter:
    """Maps an existing deck. Raises OSError or ValueError if it is not one."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), d.SIZE)
        magic, version, self.rank, self.attempt, _, _, made = d.HEADER.unpack_from(self._map)
        if magic != d.MAGIC or version != d.VERSION:
            raise ValueError(f"{path} is not a deck of version {d.VERSION}")
        self._pid = os.getpid()
        d.HEADER.pack_into(self._map, 0, magic, version, self.rank, self.attempt, self._pid, _started_jiffies(), made)
        self._flags: dict[int, bool] = {}
        self._progress = 0
        self._coll_seq = 0
        self._waited = self._counted_to = 0.0
        self._group_seqs: dict[int, int] = {}

    def owned(self) -> bool:
        """False in a forked child: it must not write."""
        return os.getpid() == self._pid

    def raise_flag(self, flag: d.Flag) -> None:
        self._flags[int(flag)] = True
        self._put_flags()

    def lower_flag(self, flag: d.Flag) -> None:
        """Of those that were raised alone."""
        self._flags[int(flag)] = False
        self._put_flags()

    def _put_flags(self) -> None:
        """A signal handler or another thread may raise one between any two lines here: then it is written again."""
        written = -1
        while written != (flags := self._up()):
            d.U32.pack_into(self._map, d.FLAGS, flags)
            written = flags

    def _up(self) -> int:
        up = 0
        for flag, raised in tuple(self._flags.items()):
            if raised:
                up |= flag
        return up

    def beat(self) -> None:
        """The watcher thread has just had the GIL."""
        d.F64.pack_into(self._map, d.BEAT_AT, time.monotonic())

    def flight_asked(self) -> int:
        """How often the agent has asked for torch's flight recorder."""
        return int(d.U64.unpack_from(self._map, d.FLIGHT_ASKED)[0])

    def progressed(self) -> None:
        """Something moved: restart the clock of the watchdog."""
        self._progress += 1
        d.F64.pack_into(self._map, d.PROGRESS_AT, time.monotonic())
        d.U64.pack_into(self._map, d.PROGRESS, self._progress)

    def enter_phase(self, phase: d.Phase, name: str = "") -> None:
        """`name` is for Phase.OWN; cut to 32 bytes."""
        raw = name.encode()[: d.PHASE_NAME_LEN].ljust(d.PHASE_NAME_LEN, b"\0")
        self._map[d.PHASE_NAME : d.PHASE_NAME + d.PHASE_NAME_LEN] = raw
        d.F64.pack_into(self._map, d.PHASE_AT, time.monotonic())
        d.U8.pack_into(self._map, d.PHASE, phase)
        self.progressed()

    def phase(self) -> tuple[d.Phase, str]:
        """(current phase, its own name or "")."""
        raw = self._map[d.PHASE_NAME : d.PHASE_NAME + d.PHASE_NAME_LEN]
        return d.Phase(self._map[d.PHASE]), raw.rstrip(b"\0").decode("utf-8", "replace")

    def begin_step(self, step: int, batch: BatchId | None) -> None:
        """`step` counts from 1."""
        if batch is not None:
            d.BATCH.pack_into(self._map, d.BATCH_AT, batch.epoch, batch.ordinal, batch.digest)
        d.U64.pack_into(self._map, d.STEP, step)
        self.progressed()

    def complete_step(self, step: int, step_s: float) -> None:
        d.F64.pack_into(self._map, d.STEP_S, step_s)
        d.U64.pack_into(self._map, d.COMPLETED, step)
        self.progressed()

    def set_total(self, steps: int) -> None:
        d.U64.pack_into(self._map, d.TOTAL_STEPS, steps)

    def step(self) -> int:
        return int(d.U64.unpack_from(self._map, d.STEP)[0])

    def completed(self) -> int:
        return int(d.U64.unpack_from(self._map, d.COMPLETED)[0])

    def batch(self) -> str | None:
        epoch, ordinal, digest = d.BATCH.unpack_from(self._map, d.BATCH_AT)
        return str(BatchId(epoch, ordinal, digest)) if ordinal else None

    def enter_collective(self, op: int, group: int, size: int, *, blocking: bool = False) -> int:
        """Record arrival at a collective; returns its sequence number in this rank, counted from 1."""
        self._coll_seq = sequence = self._coll_seq + 1
        now = time.monotonic()
        of_group = self._group_seqs.get(group, 0) + (op not in _PAIRED)
        self._group_seqs[group] = of_group
        slot = d.RING_AT + (sequence % d.RING_SLOTS) * d.SLOT_SIZE
        d.RING.pack_into(self._map, slot, sequence, size, now, 0.0, of_group, group, op, blocking, self.step())
        d.U64.pack_into(self._map, d.COLL_GROUP_SEQ, of_group)
        d.U64.pack_into(self._map, d.COLL_BYTES, size)
        d.U32.pack_into(self._map, d.COLL_GROUP, group)
        d.U8.pack_into(self._map, d.COLL_OP, op)
        d.F64.pack_into(self._map, d.COLL_ENTERED_AT, now)
        d.U64.pack_into(self._map, d.COLL_SEQ, sequence)
        return sequence

    def leave_collective(self, sequence: int, *, blind: bool = False) -> None:
        """`blind`: when it was over is not known, so the time in it is not counted as waiting."""
        now = time.monotonic()
        slot = d.RING_AT + (sequence % d.RING_SLOTS) * d.SLOT_SIZE
        if not blind:
            entered = d.F64.unpack_from(self._map, slot + 16)[0]
            self._waited += max(0.0, now - max(entered, self._counted_to))
            d.F64.pack_into(self._map, d.WAIT_S, self._waited)
        self._counted_to = now
        d.F64.pack_into(self._map, d.COLL_LEFT_AT, now)
        d.F64.pack_into(self._map, slot + 24, now)
        d.U64.pack_into(self._map, d.COLL_DONE, sequence)

    def collective(self) -> str | None:
        """`all_reduce #17` while inside one."""
        sequence = int(d.U64.unpack_from(self._map, d.COLL_SEQ)[0])
        if sequence == d.U64.unpack_from(self._map, d.COLL_DONE)[0]:
            return None
        return f"{d.OPS[self._map[d.COLL_OP]]} #{sequence}"

    def put_metrics(self, metrics: dict[str, Any]) -> None:
        """Reported numbers as JSON; what does not fit into 640 bytes is not shown."""
        raw = json.dumps(metrics).encode()
        if len(raw) > d.METRICS_MAX:
            return
        lock = d.U32.unpack_from(self._map, d.METRICS_LOCK)[0] + 1
        d.U32.pack_into(self._map, d.METRICS_LOCK, lock)
        self._map[d.METRICS : d.METRICS + len(raw)] = raw
        d.U32.pack_into(self._map, d.METRICS_LEN, len(raw))
        d.U32.pack_into(self._map, d.METRICS_LOCK, (lock + 1) & 0xFFFFFFFE)

    def stop_request(self) -> StopRequest | None:
        """The order page; None while it asks for nothing. Being written takes a microsecond: then it is read again,
        for a request missed once may be a stop step passed.
        """
        for _ in range(_READ_AGAIN):
            lock, kind, _, sequence, step, confirmed, deadline = d.ORDER.unpack_from(self._map, d.ORDER_AT)
            if not lock & 1 and d.U64.unpack_from(self._map, d.ORDER_AT)[0] == lock:
                if not kind:
                    return None
                return StopRequest(d.StopKind(kind), sequence, step, confirmed == sequence, deadline)
        return None

    def acknowledge(self, sequence: int) -> None:
        """This rank saw stop request `sequence` while at or before its step."""
        d.U64.pack_into(self._map, d.ACK_SEQ, sequence)


def _started_jiffies() -> int:
    """Field 22 of /proc/self/stat: with the pid it names a process for ever. 0 where there is no /proc."""
    try:
        stat = Path("/proc/self/stat").read_bytes()
    except OSError:
        return 0
    return int(stat[stat.rfind(b")") + 2 :].split()[19])
