"""What an attempt has on this node while it lives: mapped decks, notes, logs, and the socket its ranks poke.

Reads and writes files; decides nothing and starts nothing.
"""

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from zrun.agent.decks import Decks
from zrun.agent.evidence import Subject
from zrun.agent.launch import Where, explained
from zrun.agent.logs import AttemptLogs
from zrun.agent.rank_story import RankStory
from zrun.agent.stop_step import StopAsk
from zrun.core.deck import wake_path
from zrun.core.errors import LaunchError
from zrun.core.notes import NoteReader
from zrun.core.redact import Redactor


class Attempt:
    """Raises LaunchError if a deck or the socket cannot be had."""

    def __init__(
        self, where: Where, ranks: list[int], cap_bytes: int, say: Callable[[str], None], poked: Callable[[], None],
        hidden: Callable[[], Redactor],
    ) -> None:  # fmt: skip
        self.where, self.ranks = where, ranks
        try:
            self.decks = Decks(where.shm_dir, ranks, time.monotonic())
            self._wake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            self._wake.bind(str(wake_path(where.shm_dir)))
        except (OSError, ValueError) as error:
            why = explained(error, where.shm_dir) if isinstance(error, OSError) else str(error)
            raise LaunchError(f"{why}: shared memory of the attempt cannot be used") from error
        self.logs = AttemptLogs(where, ranks, cap_bytes, say, hidden)
        self._hidden = hidden
        self._notes = {rank: NoteReader(where.attempt_dir / f"rank-{rank}.notes") for rank in ranks}
        for rank, notes in self._notes.items():
            if rank in ranks:
                notes.read()  # of an earlier launch of the same attempt
        self._poked = poked
        asyncio.get_running_loop().add_reader(self._wake, self._woken)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._wake)
        self._wake.close()
        self.decks.close()
        self.logs.close()

    def clear(self) -> None:
        """Nothing of it is alive: what its ranks wrote is in logs and reports, where secrets are hidden."""
        self.logs.remove_drained()
        clear(self.where, self.ranks, self._hidden())

    def notes(self, rank: int) -> list[dict[str, Any]]:
        reader = self._notes.get(rank)
        return reader.read() if reader is not None else []

    def write_order(self, ask: StopAsk, within_s: float) -> None:
        self.decks.write_order(
            ask.kind, ask.sequence, ask.step, confirmed=ask.confirmed, deadline=time.time() + within_s
        )

    def subjects(self, stories: Iterable[RankStory]) -> list[Subject]:
        return [
            Subject(
                story, self.where.attempt_dir / f"rank-{story.rank}.stacks", self.decks.ring(story.rank),
                story.last_lines or self.logs.last_lines(story.rank),
            )
            for story in stories
        ]  # fmt: skip

    def _woken(self) -> None:
        try:
            while os.read(self._wake.fileno(), 64):
                pass
        except BlockingIOError:
            pass  # all pokes taken
        self._poked()


def clear(where: Where, ranks: list[int], hidden: Redactor) -> None:
    """Notes and stacks of an attempt that is over go, and torchrun's own output stays without secrets."""
    try:
        for rank in ranks:
            for ending in ("notes", "stacks"):
                (where.attempt_dir / f"rank-{rank}.{ending}").unlink(missing_ok=True)
        hidden.file(where.torchrun_log)
        shutil.rmtree(where.attempt_dir / "torchrun", ignore_errors=True)  # error files: all in the failures by now
    except OSError:
        pass  # a full or failing disk: they stay, 0600 in a folder 0700
