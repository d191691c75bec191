"""Which of the keeper's processes is which rank, and how each of them ended: by pidfd, status from the zombie.

Standard library only. Says each thing once, through `say`; decides nothing and signals only what it is told to.
"""

import os
import selectors
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from zrun.agent import proc_table
from zrun.agent.proc_table import Proc


@dataclass(slots=True)
class Watched:
    """A rank, or a process the keeper spawned itself (`rank` None)."""

    proc: Proc
    pidfd: int
    name: str
    rank: int | None = None
    spawn: int = 0
    """The agent's number for what it had spawned."""


@dataclass(slots=True)
class Expecting:
    """Ranks that torchrun will start as its own children."""

    parent: int
    first: int
    count: int
    known: set[int] = field(default_factory=set)


class ChildWatch:
    """`reaped` gets the pid of every child just before it is collected."""

    def __init__(
        self, selector: selectors.BaseSelector, say: Callable[..., None], reaped: Callable[[int], None]
    ) -> None:
        self._selector, self._say, self._reaped = selector, say, reaped
        self._watched: dict[int, Watched] = {}
        self._expecting: Expecting | None = None
        self.woken_unix = time.time()
        """When the keeper last woke: nearer to a death it then sees than the moment at which it tells of it."""

    def __len__(self) -> int:
        return len(self._watched)

    @property
    def expecting(self) -> bool:
        return self._expecting is not None

    def expect_none(self) -> None:
        self._expecting = None

    def add(self, pid: int, name: str, spawn: int, ranks: list[int] | None) -> None:
        """One that the keeper spawned; `ranks` = [first, count]: its children are watched as ranks."""
        found = proc_table.stat(pid)
        self._watch(Proc(pid, found.started if found else 0), name, None, spawn)
        if ranks is not None:
            self._expecting = Expecting(pid, ranks[0], ranks[1])

    def add_rank(self, rank: int, proc: Proc) -> None:
        """A process of the keeper's own has become a rank."""
        self._say(said="rank", rank=rank, pid=proc.pid, started=proc.started)
        self._watch(proc, "rank", rank)

    def turn(self, fds: Collection[int]) -> None:
        """`fds`: the pidfds that are ready."""
        self.reap()
        self._look_at_ended(fds)
        self._find_ranks()

    def all_pidfds(self) -> list[int]:
        return [watched.pidfd for watched in self._watched.values()]

    def signal(self, ranks: list[int], number: int) -> None:
        for watched in self._watched.values():
            if watched.rank is not None and watched.rank in ranks:
                proc_table.send(watched.proc, number)

    def give_up(self, procs: Collection[Proc]) -> None:
        """These cannot be ended: nobody waits for them any more."""
        for watched in [w for w in self._watched.values() if w.proc in procs]:
            self._ended(watched, None)

    def reap(self) -> None:
        """Collect our own children and the orphans that came to us."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    return
                self._reaped(ended.si_pid)
                pid, status = os.waitpid(ended.si_pid, os.WNOHANG)
            except ChildProcessError:
                return
            watched = self._watched.get(pid)
            if watched is not None:
                self._ended(watched, status)

    def _watch(self, proc: Proc, name: str, rank: int | None, spawn: int = 0) -> None:
        try:
            pidfd = os.pidfd_open(proc.pid)
        except OSError:  # ended, and already reaped by its parent
            self._tell_end(Watched(proc, -1, name, rank, spawn), None)
            return
        self._watched[proc.pid] = Watched(proc, pidfd, name, rank, spawn)
        self._selector.register(pidfd, selectors.EVENT_READ)

    def _find_ranks(self) -> None:
        """torchrun's children say in their environment which rank they are; one that died before is told by order."""
        expecting = self._expecting
        if expecting is None:
            return
        unknown: list[proc_table.Stat] = []
        for pid in proc_table.children(expecting.parent):
            found = proc_table.stat(pid)
            if pid in self._watched or found is None:
                continue
            text = proc_table.environ(pid).get(b"RANK", b"")
            if text.isdigit():
                self._found_rank(found.proc, int(text))
            elif not found.alive:
                unknown.append(found)
        missing = sorted(set(range(expecting.first, expecting.first + expecting.count)) - expecting.known)
        if unknown and len(unknown) == len(missing):
            for found, rank in zip(sorted(unknown, key=lambda s: (s.started, s.pid)), missing, strict=True):
                self._found_rank(found.proc, rank)
        if len(expecting.known) == expecting.count or proc_table.stat(expecting.parent) is None:
            self._expecting = None

    def _found_rank(self, proc: Proc, rank: int) -> None:
        if self._expecting is not None:
            self._expecting.known.add(rank)
        self._say(said="rank", rank=rank, pid=proc.pid, started=proc.started)
        self._watch(proc, "rank", rank)

    def _look_at_ended(self, fds: Collection[int]) -> None:
        """A rank's exit status is read from its zombie: torchrun will not reap it for an hour."""
        for watched in [w for w in self._watched.values() if w.pidfd in fds and w.rank is not None]:
            found = proc_table.stat(watched.proc.pid)
            if found is None or found.started != watched.proc.started:
                self._ended(watched, None)
            elif not found.alive and found.ppid != os.getpid():
                self._ended(watched, found.exit_status)

    def _ended(self, watched: Watched, status: int | None) -> None:
        self._selector.unregister(watched.pidfd)
        os.close(watched.pidfd)
        del self._watched[watched.proc.pid]
        self._tell_end(watched, status)

    def _tell_end(self, watched: Watched, status: int | None) -> None:
        code, by = (None, None) if status is None else proc_table.split_status(status)
        said = "exited" if watched.rank is None else "rank-exited"
        self._say(
            said=said, name=watched.name, id=watched.spawn, rank=watched.rank, pid=watched.proc.pid, exit_code=code,
            signal=by, known=status is not None, at=self.woken_unix,
        )  # fmt: skip


def kill(procs: Collection[Proc]) -> None:
    for proc in procs:
        proc_table.send(proc, signal.SIGKILL)
