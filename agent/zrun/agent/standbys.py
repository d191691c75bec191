"""Processes that have imported everything and wait to become a rank: started, told apart from the job's, handed over.

The keeper's; standard library only. They survive the end of an attempt, which nothing else of the job does, and end
with the keeper. Knows nothing about when they are wanted.
"""

import json
import os
import selectors
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final, Protocol

from zrun.agent import proc_table
from zrun.agent.proc_table import Proc
from zrun.core.private import open_append

GO: Final = b"go"
_BACKLOG: Final = 2048


class NotReadyError(Exception):
    """The ranks cannot be started from standbys; its text says why. Nothing was started."""


@dataclass(slots=True)
class _Standby:
    rank: int
    proc: Proc
    line: socket.socket
    ready: bool = False


class Spared(Protocol):
    """Who knows which processes of ours are no part of the running attempt."""

    def spare(self, pid: int) -> None: ...
    def take(self, pid: int) -> None: ...
    def forget(self, pid: int) -> None: ...


class Standbys:
    """One a rank."""

    def __init__(self, selector: selectors.BaseSelector, say: Callable[..., None], spared: Spared) -> None:
        self._selector, self._say, self._spared = selector, say, spared
        self._by_rank: dict[int, _Standby] = {}

    def spawn(self, order: dict[str, Any]) -> None:
        """rank, argv (the number of its line is appended), env, cwd, log. Says what became of it later."""
        rank = int(order["rank"])
        self._end(rank)
        ours, theirs = socket.socketpair()
        try:
            with theirs, os.fdopen(open_append(Path(order["log"])), "ab") as log:
                child = subprocess.Popen(
                    [*order["argv"], str(theirs.fileno())], env=order["env"], cwd=order["cwd"],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )  # fmt: skip
        except OSError as error:
            ours.close()
            self._say(said="standby-gone", rank=rank, left_out="", why=str(error))
            return
        child.returncode = 0  # reaped by the watch; Popen shall not wait for it
        found = proc_table.stat(child.pid)
        self._spared.spare(child.pid)
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ)
        self._by_rank[rank] = _Standby(rank, Proc(child.pid, found.started if found else 0), ours)

    def hear(self, fileobj: object) -> bool:
        """What one of them says, if this is the line of one: that it is ready, or what it had to leave out."""
        standby = next((one for one in self._by_rank.values() if one.line is fileobj), None)
        if standby is None:
            return False
        try:
            text = standby.line.recv(4096).decode("utf-8", "replace").strip()
        except OSError:
            text = ""
        if text == "ready":
            standby.ready = True
            self._say(said="standby-ready", rank=standby.rank, pid=standby.proc.pid)
        else:  # it has ended, or is about to
            self._end(standby.rank)
            left_out = text.removeprefix("leave out ") if text.startswith("leave out ") else ""
            self._say(said="standby-gone", rank=standby.rank, left_out=left_out, why="it ended")
        return True

    def activate(self, order: dict[str, Any], began: Callable[[int, Proc], None]) -> None:
        """host, port, ranks = {rank: what it gets, as JSON}. `began` is told of each rank. Raises NotReadyError."""
        wanted = {int(rank): text for rank, text in order["ranks"].items()}
        for rank in wanted:
            if rank not in self._by_rank or not self._by_rank[rank].ready:
                raise NotReadyError(f"no standby is ready for rank {rank}")
        with _listening(order["host"], order["port"]) as listener:
            try:
                for rank, text in wanted.items():
                    self._hand_over(self._by_rank[rank], text, listener if rank == min(wanted) else None)
            except OSError as error:
                self.drop()  # some may be on their way already
                raise NotReadyError(f"a standby does not listen: {error}") from error
        for rank in sorted(wanted):
            proc = self._by_rank[rank].proc
            self._forget(rank)
            self._spared.take(proc.pid)
            began(rank, proc)

    def _hand_over(self, standby: _Standby, text: str, listener: socket.socket | None) -> None:
        """In a file that lives in memory alone: it holds secrets, and may be larger than a line takes at once."""
        page = os.memfd_create(f"zrun-rank-{standby.rank}", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(page), "wb") as file:
                file.write(text.encode())  # JSON: bytes that are no UTF-8 are escaped in it
            os.lseek(page, 0, os.SEEK_SET)
            socket.send_fds(standby.line, [GO], [page, *([listener.fileno()] if listener is not None else [])])
        finally:
            os.close(page)

    def drop(self) -> None:
        """End them all; nobody is told."""
        for rank in [*self._by_rank]:
            self._end(rank)

    def _end(self, rank: int) -> None:
        standby = self._by_rank.get(rank)
        if standby is not None:
            self._forget(rank)
            self._spared.forget(standby.proc.pid)
            proc_table.send(standby.proc, SIGKILL)

    def _forget(self, rank: int) -> None:
        standby = self._by_rank.pop(rank)
        self._selector.unregister(standby.line)
        standby.line.close()


def _listening(host: str, port: int) -> socket.socket:
    """Where the first rank will host the store of the attempt. Raises NotReadyError."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise NotReadyError(f"port {port}: {error}") from error
    return listener


def packed(env: dict[str, str], argv: list[str]) -> str:
    """What a standby needs to become its rank."""
    return json.dumps({"env": env, "argv": argv})
