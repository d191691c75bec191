"""This process as one rank: its deck, its notes, its settings. Without an agent every call does nothing.

It knows nothing about torch. There is one per process because what it stands for (the file descriptors, the signal
handlers, the deck) is one per process: the bootstrap arms it, Session and recorder find it with `this_rank()`. A
forked child (a loader worker) forgets it, so that no child writes what the rank should say.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zrun.core import env
from zrun.core.batch import BatchId
from zrun.core.deck import Flag, Phase, deck_path, wake_path
from zrun.core.deck_writer import DeckWriter, StopRequest
from zrun.core.marks import encode_mark
from zrun.core.notes import NoteKind, NoteWriter
from zrun.core.settings import RankSettings

if TYPE_CHECKING:
    from zrun.worker.drill import Faults
    from zrun.worker.trace import Trace


@dataclass
class ThisRank:
    """`deck` and `notes` are None without an agent and in a forked child."""

    rank: int
    world_size: int
    attempt: int
    settings: RankSettings
    deck: DeckWriter | None = None
    notes: NoteWriter | None = None
    spooled: bool = False
    """fd 1 and 2 are the agent's spool files: markers may be written into them."""
    session: bool = False
    """A Session counts the steps."""
    sweepers: list[Callable[[bool], None]] = field(default_factory=list)
    """Called with True at ends of steps and phases, with False every 50 ms: see which collectives are over."""
    told: int = 0
    """id() of the exception whose last words were written last, 0 once it was handled: nobody writes them twice."""
    over: bool = False
    """The script is over, well or not: what is in flight from now on is no news."""
    child: bool = False
    """A forked child of the rank."""
    trace: "Trace | None" = None
    """In a drill: what this rank does, step by step."""
    faults: "Faults | None" = None
    """In a drill: what is to befall this rank."""

    def note(self, kind: NoteKind, **fields: Any) -> None:
        if self.notes is not None:
            self.notes.write(kind, **fields)

    def warn(self, message: str) -> None:
        """Tell the agent and whoever reads stderr; never raises."""
        self.note(NoteKind.WARNING, message=message)
        try:
            print(f"zrun: warning: {message}", file=sys.stderr, flush=True)
        except (OSError, ValueError, AttributeError):
            pass  # stderr closed, full or None: the note has said it

    def raise_flag(self, flag: Flag) -> None:
        if self.deck is not None:
            self.deck.raise_flag(flag)

    def lower_flag(self, flag: Flag) -> None:
        if self.deck is not None:
            self.deck.lower_flag(flag)

    def enter_phase(self, phase: Phase, name: str = "") -> None:
        self.sweep(moved_on=True)
        if self.deck is not None:
            self.deck.enter_phase(phase, name)

    def phase(self) -> tuple[Phase, str]:
        return self.deck.phase() if self.deck is not None else (Phase.SETUP, "")

    def progressed(self) -> None:
        if self.deck is not None:
            self.deck.progressed()

    def beat(self) -> None:
        if self.deck is not None:
            self.deck.beat()

    def begin_step(self, step: int, batch: BatchId | None, at: float) -> None:
        """`at` is Unix seconds for the marker in the rank's own output."""
        if self.deck is not None:
            self.deck.begin_step(step, batch)
        if self.spooled:
            mark = encode_mark(step, str(batch) if batch else "", at)
            for descriptor in (1, 2):
                try:
                    os.write(descriptor, mark)
                except OSError:
                    pass  # the script closed it, or the disk is full: only the stamp on its lines suffers

    def complete_step(self, step: int, step_s: float) -> None:
        self.sweep(moved_on=True)
        if self.deck is not None:
            self.deck.complete_step(step, step_s)
            if self.trace is not None:
                self.trace.completed(step, self.deck.batch(), session=self.session)

    def sweep(self, *, moved_on: bool) -> None:
        for sweeper in self.sweepers:
            sweeper(moved_on)

    def stop_request(self) -> StopRequest | None:
        return self.deck.stop_request() if self.deck is not None else None

    def forget(self) -> None:
        """In a forked child: it is not the rank."""
        self.child = True
        self.deck = None
        self.notes = None
        self.spooled = False
        self.trace = self.faults = None
        self.sweepers.clear()


_here: list[ThisRank] = []


def this_rank() -> ThisRank:
    """The one the bootstrap armed; in a process without bootstrap a quiet one, read from torchrun's variables."""
    if not _here:
        _here.append(_from_environment())
    return _here[0]


def _from_environment() -> ThisRank:
    return ThisRank(
        rank=int(env.get("RANK") or 0), world_size=int(env.get("WORLD_SIZE") or 1),
        attempt=int(env.get(env.ATTEMPT) or 0), settings=RankSettings.from_json(env.get(env.SETTINGS)),
    )  # fmt: skip


def arm() -> tuple[ThisRank, Path | None]:
    """Map the deck and open the notes: (this rank, the attempt's folder). Called once, by the bootstrap.

    Raises OSError or ValueError if the agent promised a deck that is not there.
    """
    rank = this_rank()
    shm, folder = env.get(env.SHM_DIR), env.get(env.ATTEMPT_DIR)
    os.register_at_fork(after_in_child=rank.forget)
    if shm:
        path = deck_path(Path(shm), rank.rank)
        rank.deck = DeckWriter(path)
        env.put(env.DECK, str(path))
    if folder:
        wake = wake_path(Path(shm)) if shm else None
        rank.notes = NoteWriter(Path(folder) / f"rank-{rank.rank}.notes", wake)
    return rank, Path(folder) if folder else None
