"""The agent's side of a deck: a snapshot of what a rank says of itself, and writing its order page.

Works whatever the rank does (GIL held, stopped, dead): it only reads memory.
"""

import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zrun.core import deck as d
from zrun.core.batch import BatchId


@dataclass(frozen=True, slots=True)
class DeckState:
    """One look at a deck. Times are time.monotonic() seconds of this machine, 0.0 = never."""

    rank: int
    attempt: int
    pid: int
    pid_started: int
    phase: d.Phase
    phase_name: str
    flags: d.Flag
    step: int
    completed: int
    progress: int
    progress_at: float
    phase_at: float
    step_s: float
    batch: BatchId | None
    total_steps: int
    ack_seq: int
    beat_at: float
    wait_s: float
    coll_seq: int
    coll_done: int
    coll_entered_at: float
    coll_left_at: float
    coll_bytes: int
    coll_group: int
    coll_op: str
    coll_group_seq: int
    metrics: dict[str, Any]

    @property
    def in_collective(self) -> bool:
        return self.coll_seq > self.coll_done


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """One of the last 64 collectives of a rank; `left_at` 0.0 while inside."""

    sequence: int
    op: str
    group: int
    bytes: int
    entered_at: float
    left_at: float
    step: int
    group_sequence: int
    """Counted from 1 on its group: the number by which ranks are compared."""
    blocking: bool = False
    """Its caller can do nothing else until it is over."""


class DeckReader:
    """Maps a deck made by `create_deck`. Raises OSError, ValueError."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), d.SIZE)
        if self._map[:8] != d.MAGIC:
            raise ValueError(f"{path} is not a deck")

    def close(self) -> None:
        self._map.close()

    def _u64(self, at: int) -> int:
        return int(d.U64.unpack_from(self._map, at)[0])

    def _u32(self, at: int) -> int:
        return int(d.U32.unpack_from(self._map, at)[0])

    def _f64(self, at: int) -> float:
        return float(d.F64.unpack_from(self._map, at)[0])

    def read(self) -> DeckState:
        m = self._map
        _, _, rank, attempt, pid, started, _ = d.HEADER.unpack_from(m)
        epoch, ordinal, digest = d.BATCH.unpack_from(m, d.BATCH_AT)
        done = self._u64(d.COLL_DONE)  # before the sequence: a collective in between then counts as entered
        op, phase = m[d.COLL_OP], m[d.PHASE]
        name = bytes(m[d.PHASE_NAME : d.PHASE_NAME + d.PHASE_NAME_LEN])
        return DeckState(
            rank=rank, attempt=attempt, pid=pid, pid_started=started,
            phase=d.Phase(phase) if phase <= d.Phase.DONE else d.Phase.OWN,
            phase_name=name.rstrip(b"\0").decode("utf-8", "replace"),
            flags=d.Flag(self._u32(d.FLAGS)), step=self._u64(d.STEP), completed=self._u64(d.COMPLETED),
            progress=self._u64(d.PROGRESS), progress_at=self._f64(d.PROGRESS_AT), phase_at=self._f64(d.PHASE_AT),
            step_s=self._f64(d.STEP_S), batch=BatchId(epoch, ordinal, digest) if ordinal else None,
            total_steps=self._u64(d.TOTAL_STEPS), ack_seq=self._u64(d.ACK_SEQ),
            beat_at=self._f64(d.BEAT_AT), wait_s=self._f64(d.WAIT_S), coll_seq=self._u64(d.COLL_SEQ),
            coll_done=done, coll_entered_at=self._f64(d.COLL_ENTERED_AT), coll_left_at=self._f64(d.COLL_LEFT_AT),
            coll_bytes=self._u64(d.COLL_BYTES), coll_group=self._u32(d.COLL_GROUP),
            coll_op=d.OPS[op] if op < len(d.OPS) else "other", coll_group_seq=self._u64(d.COLL_GROUP_SEQ),
            metrics=self._metrics(),
        )  # fmt: skip

    def _metrics(self) -> dict[str, Any]:
        lock, size = self._u32(d.METRICS_LOCK), self._u32(d.METRICS_LEN)
        if not size or lock & 1 or size > d.METRICS_MAX:
            return {}
        raw = bytes(self._map[d.METRICS : d.METRICS + size])
        if self._u32(d.METRICS_LOCK) != lock:
            return {}
        try:
            value = json.loads(raw)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def ring(self) -> list[CollectiveRecord]:
        """The last collectives, oldest first."""
        records: list[CollectiveRecord] = []
        for slot in range(d.RING_SLOTS):
            at = d.RING_AT + slot * d.SLOT_SIZE
            seq, size, entered, left, of_group, group, op, blocking, step = d.RING.unpack_from(self._map, at)
            if seq:
                name = d.OPS[op] if op < len(d.OPS) else "other"
                records.append(CollectiveRecord(seq, name, group, size, entered, left, step, of_group, bool(blocking)))
        return sorted(records, key=lambda r: r.sequence)

    def ask_flight(self) -> None:
        """Ask the rank for what torch's flight recorder holds."""
        d.U64.pack_into(self._map, d.FLIGHT_ASKED, self._u64(d.FLIGHT_ASKED) + 1)

    def write_order(self, kind: d.StopKind, sequence: int, step: int, confirmed: int, deadline: float) -> None:
        """Replace the order page; the rank reads it at the top of its next step."""
        lock = self._u64(d.ORDER_AT) | 1
        d.U64.pack_into(self._map, d.ORDER_AT, lock)
        d.ORDER.pack_into(self._map, d.ORDER_AT, lock, kind, 0, sequence, step, confirmed, deadline)
        d.U64.pack_into(self._map, d.ORDER_AT, lock + 1)
