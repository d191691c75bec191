"""What an attempt has on this node while it lives: mapped decks, notes, logs, and the socket its ranks poke.

Reads and writes files; decides nothing and starts nothing.
"""

import asyncio
import contextlib
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from zrun.agent import evidence, flight
from zrun.agent.decks import Decks
from zrun.agent.disks import full_disks
from zrun.agent.evidence import Subject, stack_of
from zrun.agent.launch import SHM, Where, explained
from zrun.agent.log_steps import LogSteps
from zrun.agent.logs import AttemptLogs, cap_of, unread_attempts
from zrun.agent.oom import MemoryWatch
from zrun.agent.rank_story import RankStory
from zrun.agent.stop_step import StopAsk
from zrun.core.deck import wake_path
from zrun.core.errors import LaunchError
from zrun.core.notes import NoteKind, NoteReader
from zrun.core.place import place_of
from zrun.core.redact import Redactor
from zrun.spec.job import JobSpec

CHILD_KILLED: Final = re.compile(r"killed by signal: Killed|died with <Signals.SIGKILL|exit status (137|-9)")
"""What DataLoader and subprocess say of a child that got SIGKILL."""
LOADER_GONE: Final = re.compile(
    r"torch/utils/data/dataloader\.py.*^(Connection\w*|EOF|BrokenPipe)Error", re.DOTALL | re.MULTILINE
)
"""A DataLoader that only saw the line to its worker break."""


class Attempt:
    """`world`: ranks on all nodes. Raises LaunchError if a deck or the socket cannot be had."""

    def __init__(
        self, where: Where, ranks: list[int], spec: JobSpec, world: int, say: Callable[[str], None],
        poked: Callable[[], None], hidden: Callable[[], Redactor],
    ) -> None:  # fmt: skip
        self.where, self.ranks, self.disks = where, ranks, _places(where, spec)
        steps = LogSteps(spec.watchdog.log_pattern)
        try:
            self.decks = Decks(where.shm_dir, ranks, time.monotonic(), steps)
            self._wake = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            self._wake.bind(str(wake_path(where.shm_dir)))
        except (OSError, ValueError) as error:
            why = explained(error, where.shm_dir) if isinstance(error, OSError) else str(error)
            raise LaunchError(f"{why}: shared memory of the attempt cannot be used") from error
        self.logs = AttemptLogs(where, ranks, cap_of(spec.logs.max_size_bytes, world), say, hidden, steps)
        self.memory = MemoryWatch(time.time())
        self._hidden = hidden
        self._notes = {rank: NoteReader(where.attempt_dir / f"rank-{rank}.notes") for rank in ranks}
        for rank, notes in self._notes.items():
            if rank in ranks:
                notes.read()  # of an earlier launch of the same attempt
        self._poked = poked
        self._sampling: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_reader(self._wake, self._woken)

    def close(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
        asyncio.get_running_loop().remove_reader(self._wake)
        self._wake.close()
        self.decks.close()
        self.logs.close()

    def clear(self) -> None:
        """Nothing of it is alive: what its ranks wrote is in logs and reports, where secrets are hidden."""
        self.logs.remove_drained()
        clear(self.where, self.ranks, self._hidden())

    def look(self, living: Sequence[RankStory]) -> None:
        """At the living ranks' processes, from outside."""
        pids = {story.rank: story.pid for story in living}
        self.decks.look(pids, time.monotonic())
        self.memory.look(pids, time.time())
        self._look_at_suspects(living)

    def notes(self, rank: int) -> list[dict[str, Any]]:
        """What the rank wrote since; last words with what only the node can know about them."""
        reader = self._notes.get(rank)
        found = reader.read() if reader is not None else []
        return [note | self._seen_from_here(rank, note) for note in found]

    def _seen_from_here(self, rank: int, note: dict[str, Any]) -> dict[str, Any]:
        """`oom`: the child whose death it speaks of was killed by the kernel; `full_disks`: the room there was then."""
        if note.get("kind") != NoteKind.LAST_WORDS:
            return {}
        speaks = CHILD_KILLED.search(str(note.get("message"))) or LOADER_GONE.search(str(note.get("traceback")))
        oom = bool(speaks) and self.memory.killed(rank, float(note.get("at") or 0.0), time.time())
        return {"oom": oom, "full_disks": full_disks(self.disks)}

    def write_order(self, ask: StopAsk, within_s: float) -> None:
        self.decks.write_order(
            ask.kind, ask.sequence, ask.step, confirmed=ask.confirmed, deadline=time.time() + within_s
        )

    def _look_at_suspects(self, living: Sequence[RankStory]) -> None:
        """Take the stacks of those again of whom one was taken and who have not moved since."""
        due = self.decks.at_work.due({s.rank: s.deck for s in living if s.deck is not None}, time.monotonic())
        if due and (self._sampling is None or self._sampling.done()):
            chosen = self.subjects(story for story in living if story.rank in due)
            self._sampling = asyncio.get_running_loop().create_task(self._sample(chosen))

    async def _sample(self, subjects: list[Subject]) -> None:
        try:
            stacks = {subject.story.rank: await stack_of(subject) for subject in subjects}
        except OSError:
            return  # its dump cannot be read: then it counts as not at work
        self.decks.at_work.note(stacks, self.decks.read(), time.monotonic())

    def subjects(self, stories: Iterable[RankStory]) -> list[Subject]:
        self.logs.poll()
        return [
            Subject(
                story, self.where.attempt_dir / f"rank-{story.rank}.stacks", self.decks.ring(story.rank),
                story.last_lines or self.logs.last_lines(story.rank),
            )
            for story in stories
        ]  # fmt: skip

    async def evidence(self, wanted: Iterable[RankStory], into: Path, node: str) -> dict[int, str]:
        """All there is to know of what its ranks are doing, into folder `into`; gives the stacks. Raises OSError."""
        subjects = self.subjects(wanted)
        now = time.monotonic()
        asked = {s.story.rank: s.story.pid for s in subjects if s.story.pid and s.story.answers(now)}
        stories = {subject.story.rank: subject.story for subject in subjects}
        stacks, _ = await asyncio.gather(
            evidence.collect(subjects, into, node, now, self._hidden()),
            flight.collect(
                self.decks, asked, self.where.attempt_dir, into, node, lambda rank: stories[rank].spoken is not None
            ),
        )
        self.decks.at_work.note(stacks, self.decks.read(), time.monotonic())
        return stacks

    def _woken(self) -> None:
        try:
            while os.read(self._wake.fileno(), 64):
                pass
        except BlockingIOError:
            pass  # all pokes taken
        self._poked()


def take_left_over(
    here: Where, newest: int | None, spec: JobSpec, say: Callable[[str], None], hidden: Callable[[], Redactor]
) -> None:
    """What the ranks of attempts before `newest` wrote, and an earlier agent had not turned into lines when it died."""
    for number, ranks in unread_attempts(here.attempt_dir.parent, before=newest):
        where = replace(here, attempt=number)
        logs = AttemptLogs(where, ranks, cap_of(spec.logs.max_size_bytes, len(ranks)), say, hidden)
        logs.remove_drained()
        logs.close()
        clear(where, ranks, hidden())


def _places(where: Where, spec: JobSpec) -> list[Path]:
    """What the ranks write to without being told to."""
    run = where.folder.root
    checkpoints = place_of(spec.checkpoint.dir, run)
    return [*([checkpoints] if isinstance(checkpoints, Path) else []), run, Path(spec.workdir), SHM]


def clear(where: Where, ranks: list[int], hidden: Redactor) -> None:
    """Notes and stacks of an attempt that is over go, and torchrun's own output stays without secrets."""
    try:
        for rank in ranks:
            for ending in ("notes", "stacks", "flight"):
                (where.attempt_dir / f"rank-{rank}.{ending}").unlink(missing_ok=True)
        hidden.file(where.torchrun_log)
        with contextlib.suppress(OSError):  # what torch dumped by itself stays
            flight.own_dumps(where.attempt_dir).rmdir()
        shutil.rmtree(where.attempt_dir / "torchrun", ignore_errors=True)  # error files: all in the failures by now
    except OSError:
        pass  # a full or failing disk: they stay, 0600 in a folder 0700
