"""What the ranks of one attempt look like from outside: decks, /proc, and how long one has been stopped.

It reads only; a rank whose GIL is held or that is stopped is seen as well as any other. Judges nothing.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zrun.agent import proc_table
from zrun.agent.at_work import AtWork
from zrun.agent.log_steps import LogSteps
from zrun.agent.rank_story import RankStory
from zrun.agent.virtual_clock import VirtualClock
from zrun.agent.wait_share import WaitShares
from zrun.core.deck import Flag, Phase, StopKind, deck_path
from zrun.core.deck_reader import CollectiveRecord, DeckReader, DeckState
from zrun.core.rows import RankRow, RowFlag
from zrun.core.standing import Standing

STOPPED_S: Final = 0.5
"""Of the agent's own virtual time: so long a rank must be in state T before that means anything."""

BLOCKED_S: Final = 1.0
"""Without a beat of its watcher thread, which wants the GIL every 50 ms."""

STILL_S: Final = 0.75
"""Without progress and without a collective entered or left."""

WINDOW_S: Final = 0.5
"""CPU share and moving I/O are judged over at least so long: reports may follow each other at once."""
BUSY_IO: Final = 256 << 10
"""Bytes a second, by system calls or page faults, from which a rank counts as busy with files: a save or a load does
more, the lines that a stuck rank's threads still print do less."""


@dataclass(slots=True)
class _Look:
    """The last look at one rank's process."""

    state: str = "?"
    cpu_s: float = 0.0
    io: int = 0
    cpu_told: float = 0.0
    io_told: int = 0
    told_at: float = 0.0
    cpu: float = 0.0
    moving: bool = False
    stopped_s: float = 0.0
    reader: DeckReader | None = None


class Decks:
    """All ranks of one attempt on this node. Raises OSError, ValueError if a deck cannot be mapped."""

    def __init__(self, shm_dir: Path, ranks: list[int], now: float, steps: LogSteps) -> None:
        self._looks = {rank: _Look(told_at=now) for rank in ranks}
        for rank, look in self._looks.items():
            look.reader = DeckReader(deck_path(shm_dir, rank))
        self._clock = VirtualClock(now)
        self._waits = WaitShares()
        self._steps = steps
        self.at_work = AtWork()

    def close(self) -> None:
        for look in self._looks.values():
            if look.reader is not None:
                look.reader.close()
                look.reader = None

    def read(self) -> dict[int, DeckState]:
        found = {rank: look.reader.read() for rank, look in self._looks.items() if look.reader is not None}
        self._waits.note(found, time.monotonic())
        return self._steps.seen_in(found)

    def ring(self, rank: int) -> list[CollectiveRecord]:
        look = self._looks.get(rank)
        return look.reader.ring() if look is not None and look.reader is not None else []

    def standings(self, stories: dict[int, RankStory], now: float) -> dict[int, list[Standing]]:
        """Of each rank that has stood still for STILL_S, and of all once one has failed: where it stands on each of its
        groups, newest last; on one that it has not used of late, at 0.
        """
        failed = any(not story.alive and not story.finished for story in stories.values())
        found: dict[int, list[Standing]] = {}
        for rank, look in self._looks.items():
            deck = look.reader.read() if look.reader is not None else None
            if deck is None or not deck.coll_seq or (not failed and now - _moved_at(deck) < STILL_S):
                continue
            members = stories[rank].groups if rank in stories else set()
            newest = {group: Standing(group, 0, "none", 0, inside=False) for group in sorted(members)}
            for one in self.ring(rank):
                newest.pop(one.group, None)  # so that the newest comes last
                inside = one.sequence > deck.coll_done
                newest[one.group] = Standing(
                    one.group, one.group_sequence, one.op, one.bytes, inside, one.blocking and inside
                )
            found[rank] = list(newest.values())
        return found

    def ask_flight(self, rank: int) -> None:
        """Ask a rank for what torch's flight recorder holds."""
        look = self._looks.get(rank)
        if look is not None and look.reader is not None:
            look.reader.ask_flight()

    def write_order(self, kind: StopKind, sequence: int, step: int, *, confirmed: bool, deadline: float) -> None:
        """Into every rank's order page; `deadline` is Unix seconds."""
        for look in self._looks.values():
            if look.reader is not None:
                look.reader.write_order(kind, sequence, step, sequence if confirmed else 0, deadline)

    def look(self, pids: dict[int, int], now: float) -> None:
        """State and CPU of each living rank; counts how long each has been stopped."""
        passed = self._clock.tick(now)
        for rank, look in self._looks.items():
            found = proc_table.stat(pids[rank]) if rank in pids else None
            look.state = found.state if found else "?"
            if found is not None:
                look.cpu_s = found.cpu_s
            look.stopped_s = look.stopped_s + passed if look.state in ("T", "t") else 0.0

    def stopped(self, rank: int) -> bool:
        look = self._looks.get(rank)
        return look is not None and look.state in ("T", "t")

    def rows(self, stories: dict[int, RankStory], now: float) -> list[RankRow]:
        """One row a rank, for the report; `now` is monotonic. CPU and I/O are of the last half second or more."""
        others = {rank: any(look.state in "RSD" for other, look in self._looks.items() if other != rank)
                  for rank in self._looks}  # fmt: skip
        return [
            self._row(stories[rank], look, now, others_run=others[rank])
            for rank, look in self._looks.items()
            if rank in stories
        ]

    def _row(self, story: RankStory, look: _Look, now: float, *, others_run: bool) -> RankRow:
        deck = story.deck
        if deck is None:
            return RankRow(
                rank=story.rank, pid=story.pid, step=0, phase=Phase.BOOT, batch=None, age_s=0.0, phase_age_s=0.0,
                step_s=0.0, coll_seq=0, coll_age_s=0.0, coll_op="none", cpu=0.0, state=look.state,
                flags=RowFlag.ALIVE if story.alive and story.pid else RowFlag(0),
            )  # fmt: skip
        cpu, moving = self._since_told(story, look, now)
        stopped = look.state in ("T", "t")
        flags = _flags(story, deck, moving=moving)
        if not stopped and RowFlag.ALIVE in flags and deck.beat_at and now - deck.beat_at >= BLOCKED_S:
            flags |= RowFlag.GIL_HELD
        if self.at_work.of(deck, now):
            flags |= RowFlag.AT_WORK
        if stopped and look.stopped_s >= STOPPED_S and others_run:
            flags |= RowFlag.NODE_OTHERS_RUN
        coll_at = deck.coll_entered_at if deck.in_collective else deck.coll_left_at
        return RankRow(
            rank=story.rank, pid=story.pid or deck.pid, step=deck.step, phase=deck.phase, batch=deck.batch,
            age_s=_age(deck.progress_at, now), phase_age_s=_age(deck.phase_at, now), step_s=deck.step_s,
            coll_seq=deck.coll_seq, coll_age_s=_age(coll_at, now), coll_op=deck.coll_op, cpu=cpu,
            state="T" if stopped else look.state, flags=flags, stopped_s=look.stopped_s,
            wait_share=self._waits.of(story.rank),
        )  # fmt: skip

    def _since_told(self, story: RankStory, look: _Look, now: float) -> tuple[float, bool]:
        passed = now - look.told_at
        if passed < WINDOW_S:
            return look.cpu, look.moving and story.alive
        cpu = look.cpu = max(0.0, look.cpu_s - look.cpu_told) / passed
        if story.alive and story.pid:
            look.io = sum(_io_bytes(pid) for pid in [story.pid, *proc_table.descendants(story.pid)])
        moving = look.moving = (look.io - look.io_told) / passed >= BUSY_IO
        look.cpu_told, look.io_told, look.told_at = look.cpu_s, look.io, now
        return cpu, moving and story.alive


def _flags(story: RankStory, deck: DeckState, *, moving: bool) -> RowFlag:
    told = {
        RowFlag.ALIVE: story.alive and bool(story.pid),
        RowFlag.IN_COLLECTIVE: deck.in_collective,
        RowFlag.SESSION: Flag.SESSION in deck.flags,
        RowFlag.RECORDER: Flag.RECORDER in deck.flags,
        RowFlag.FINISHED: story.finished,
        RowFlag.FAILED: not story.alive and not story.finished,
        RowFlag.IO_MOVING: moving,
        RowFlag.LAST_WORDS: story.words is not None,
        RowFlag.IN_LOADER: Flag.IN_LOADER in deck.flags,
        RowFlag.STEPPING: deck.completed > 0,
    }
    flags = RowFlag(0)
    for flag, true in told.items():
        if true:
            flags |= flag
    return flags


def _moved_at(deck: DeckState) -> float:
    return max(deck.progress_at, deck.coll_entered_at, deck.coll_left_at)


def _age(at: float, now: float) -> float:
    return max(0.0, now - at) if at else 0.0


def _io_bytes(pid: int) -> int:
    """Bytes read and written so far, 0 where the kernel does not tell."""
    try:
        raw = (proc_table.PROC / str(pid) / "io").read_bytes()
    except OSError:
        return 0
    return sum(
        int(line.split()[1]) for line in raw.splitlines() if line.startswith((b"rchar", b"wchar", b"read_bytes"))
    )
