"""Stands in for `python -m zrun.worker SCRIPT ARGS`: deck, notes, spool and dump signal, without torch.

The script finds `deck`, `notes`, `rank` and `step(n)` as globals.
"""

import faulthandler
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from zrun.core import env
from zrun.core.deck import Flag, Phase, StopKind, deck_path, wake_path
from zrun.core.deck_writer import DeckWriter
from zrun.core.marks import encode_mark
from zrun.core.notes import NoteKind, NoteWriter
from zrun.worker.segments import note_what_is_made


def reopen(folder: Path, rank: int) -> None:
    for fd, ending in ((1, "out"), (2, "err")):
        handle = os.open(folder / f"rank-{rank}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, fd)
        os.close(handle)


class Rank:
    def __init__(self) -> None:
        self.rank = int(env.get("RANK"))
        self.folder = Path(env.get(env.ATTEMPT_DIR))
        shm = Path(env.get(env.SHM_DIR))
        note_what_is_made(shm)
        self.deck = DeckWriter(deck_path(shm, self.rank))
        self.notes = NoteWriter(self.folder / f"rank-{self.rank}.notes", wake_path(shm))
        reopen(self.folder, self.rank)
        self.dump = (self.folder / f"rank-{self.rank}.stacks").open("a")
        faulthandler.register(signal.SIGRTMIN + 4, self.dump)
        self.deck.raise_flag(Flag.DUMP_READY)
        self.notes.write(NoteKind.STARTED, pid=os.getpid())
        self.deck.enter_phase(Phase.SETUP)
        self._saved = 0

    def session(self) -> None:
        self.deck.raise_flag(Flag.SESSION)
        self.notes.write(NoteKind.SESSION, resumed_step=0, tier=None, checkpoint=None, total_steps=None, skipped=[])
        self.deck.enter_phase(Phase.STEP)

    def step(self, number: int, seconds: float = 0.01) -> None:
        """One step as Session makes it: acknowledge, work, wait at the stop step for the word of all."""
        os.write(1, encode_mark(number, "", time.time()))
        self.deck.begin_step(number, None)
        request = self.deck.stop_request()
        if request is not None and number <= request.step:
            self.deck.acknowledge(request.sequence)
        time.sleep(seconds)
        self.deck.complete_step(number, seconds)
        self._at_stop_step(number)

    def _at_stop_step(self, number: int) -> None:
        request = self.deck.stop_request()
        while (
            request is not None and request.step == number and not request.confirmed and time.time() < request.deadline
        ):
            self.deck.acknowledge(request.sequence)
            time.sleep(0.005)
            request = self.deck.stop_request()
        if request is None or request.step != number or not request.confirmed:
            return
        if request.kind is StopKind.SAVE and request.sequence != self._saved:
            self._saved = request.sequence
            self.notes.write(NoteKind.CHECKPOINT, step=number, batch="", path="/none", bytes=1, seconds=0.0)
        elif request.kind is StopKind.STOP:
            self.deck.raise_flag(Flag.STOPPED_SAFE)
            self.notes.write(NoteKind.STOPPED_AT, step=number, saved=True)
            raise SystemExit(0)


def main() -> None:
    this = Rank()
    names: dict[str, Any] = {"this": this, "deck": this.deck, "notes": this.notes, "rank": this.rank, "step": this.step}
    script = Path(sys.argv[1])
    try:
        exec(compile(script.read_text(), str(script), "exec"), names)
    except Exception as error:
        this.notes.write(
            NoteKind.LAST_WORDS, final=True, exception=type(error).__name__, message=str(error), where=f"{script}:1",
            traceback=traceback.format_exc(), step=this.deck.step(), exit_code=1,
        )  # fmt: skip
        raise
    this.deck.enter_phase(Phase.DONE)
    this.deck.raise_flag(Flag.FINISHED)
    this.notes.write(NoteKind.FINISHED, exit_code=0)


if __name__ == "__main__":
    main()
