"""What an agent tells of one rank, in 64 bytes: copied into the coordinator's table without being parsed."""

import struct
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

from zrun.core.batch import BatchId
from zrun.core.deck import OPS, Phase

ROW: Final = struct.Struct("<IIQQfffffIIIBcHBHx")
"""rank, pid, step, collective sequence, progress age, phase age, step time, collective age, cpu share,
epoch, ordinal, digest, phase, process state, flags, op, share of waiting (0 = not known, else 1..65535 for 0..1)."""
_SHARE: Final = 65534
assert ROW.size == 64, ROW.size


class RowFlag(IntFlag):
    ALIVE = 1
    IN_COLLECTIVE = 2
    SESSION = 4
    RECORDER = 8
    FINISHED = 16
    """Ended by itself with code 0."""
    FAILED = 32
    """Ended otherwise."""
    IO_MOVING = 64
    """/proc/PID/io of the rank or its children moved since the last report."""
    LAST_WORDS = 128
    IN_LOADER = 256
    NODE_OTHERS_RUN = 512
    """Set on a stopped rank (T): another rank of the node ran meanwhile."""
    STEPPING = 1024
    """At least one step was completed in this attempt."""
    GIL_HELD = 2048
    """No Python thread of it has run for a while, though it is not stopped."""
    AT_WORK = 4096
    """Its newest stack is inside a save or a compilation, and it has not moved since."""


@dataclass(frozen=True, slots=True)
class RankRow:
    """Ages in seconds when reported; `cpu` is cores used since the last report; `state` is R S D T Z or ?."""

    rank: int
    pid: int
    step: int
    phase: Phase
    batch: BatchId | None
    age_s: float
    """Since the last sign of progress."""
    phase_age_s: float
    step_s: float
    coll_seq: int
    """Collectives entered so far."""
    coll_age_s: float
    """Since the current collective was entered, or since the last one was left."""
    coll_op: str
    cpu: float
    state: str
    flags: RowFlag
    stopped_s: float = 0.0
    wait_share: float | None = None
    """Part of its time inside collectives, over its last ten steps or more; None = not known."""

    def pack(self) -> bytes:
        """64 bytes. For a stopped rank `cpu` carries minus the seconds it has been stopped."""
        batch = self.batch or BatchId(0, 0, 0)
        return ROW.pack(
            self.rank, self.pid, self.step, self.coll_seq, self.age_s, self.phase_age_s, self.step_s, self.coll_age_s,
            -self.stopped_s if self.state == "T" else self.cpu, batch.epoch, batch.ordinal, batch.digest,
            self.phase, self.state.encode()[:1], self.flags, OPS.index(self.coll_op),
            0 if self.wait_share is None else 1 + round(self.wait_share * _SHARE),
        )  # fmt: skip

    @classmethod
    def unpack(cls, row: bytes | memoryview) -> "RankRow":
        """Raises struct.error for a wrong length, ValueError for values no agent sends."""
        (rank, pid, step, seq, age, phase_age, step_s, coll_age, cpu, epoch, ordinal, digest, phase, state, flags,
         op, share) = ROW.unpack(row)  # fmt: skip
        if op >= len(OPS):
            raise ValueError(f"unknown collective {op}")
        letter = state.decode("ascii", "replace")
        return cls(
            rank=rank, pid=pid, step=step, phase=Phase(phase),
            batch=BatchId(epoch, ordinal, digest) if ordinal else None, age_s=age, phase_age_s=phase_age,
            step_s=step_s, coll_seq=seq, coll_age_s=coll_age, coll_op=OPS[op], cpu=0.0 if letter == "T" else cpu,
            state=letter, flags=RowFlag(flags), stopped_s=-cpu if letter == "T" else 0.0,
            wait_share=(share - 1) / _SHARE if share else None,
        )  # fmt: skip


def pack_rows(rows: list[RankRow]) -> bytes:
    return b"".join(row.pack() for row in rows)


def unpack_rows(block: bytes) -> list[RankRow]:
    """Raises ValueError if the block is not a whole number of rows."""
    if len(block) % ROW.size:
        raise ValueError(f"{len(block)} bytes are not rows of {ROW.size}")
    return [RankRow.unpack(block[at : at + ROW.size]) for at in range(0, len(block), ROW.size)]
