"""All output of one attempt on one node: two spools a rank, their last lines, and what is worth telling at once."""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from zrun.agent.launch import Where
from zrun.agent.line_maker import LAST_LINES
from zrun.agent.log_file import LogFile
from zrun.agent.log_ledger import Ledger
from zrun.agent.log_lines import Place, Read
from zrun.agent.log_steps import LogSteps
from zrun.agent.spool import Spool
from zrun.core.redact import Redactor
from zrun.wire.report import WarnLine

TOLD_AT_ONCE: Final = 200
"""Lines kept for the coordinator between two reports; more are counted only."""
TOLD_LENGTH: Final = 2000
POLL_S: Final = 0.1
"""A poll ends after about this long, so that the agent's loop is never held up; what is left waits in the files."""
_RAW: Final = {".out", ".err", ".notes", ".stacks"}
_T = TypeVar("_T")
_S = TypeVar("_S")
STREAMS: Final = (("out", "stdout"), ("err", "stderr"))


class AttemptLogs:
    """`say` is told of trouble with the disk, in words."""

    def __init__(self, where: Where, ranks: list[int], cap_bytes: int, say: Callable[[str], None],
                 hidden: Callable[[], Redactor] = Redactor, steps: LogSteps | None = None) -> None:  # fmt: skip
        folder, node, attempt = where.folder, where.node, where.attempt
        self._job, self._attempt, self._say = where.job, attempt, say
        self._tails: dict[int, deque[str]] = {rank: deque(maxlen=LAST_LINES) for rank in ranks}
        self._spools: dict[int, list[Spool]] = {}
        self._sinks: list[LogFile] = []
        self._ledgers: dict[int, Ledger] = {}
        self._first = 0
        self._told: list[WarnLine] = []
        self._steps = steps or LogSteps(None)
        self._dropped = 0
        self._trouble = ""
        source = where.attempt_dir
        for local, rank in enumerate(sorted(ranks)):
            ledger = self._ledgers[rank] = Ledger(source / f"rank-{rank}.offset")
            sink = LogFile(folder.rank_log(attempt, rank), cap_bytes, ledger)
            self._sinks.append(sink)
            self._spools[rank] = [
                Spool(
                    source / f"rank-{rank}.{ending}", Place(self._job, attempt, node, rank, local, stream), sink,
                    ledger, self._tails[rank], partial(self._heard, rank), hidden, partial(self._printed, rank),
                )
                for ending, stream in STREAMS
            ]  # fmt: skip

    def poll(self) -> None:
        """What is new. One rank that writes without end keeps no other from being read."""
        order = list(self._spools)
        order = order[self._first :] + order[: self._first]
        self._first = (self._first + 1) % max(1, len(order))
        until = time.monotonic() + POLL_S
        while order and time.monotonic() < until:
            order = [rank for rank in order if any(self._try(rank, Spool.poll))]

    def drain(self, ranks: list[int] | None = None) -> None:
        """Of dead ranks: to the last byte."""
        for rank in self._spools if ranks is None else ranks:
            self._try(rank, Spool.drain)

    def say_last(self, rank: int, text: str, level: str = "error") -> None:
        """One line of zrun's own behind all that a dead rank wrote, in its log alone: it is none of its last lines."""
        self.drain([rank])
        for spool in self._spools.get(rank, [])[-1:]:
            self._tried(rank, spool, lambda spool: spool.say(text, level))

    def remove_drained(self) -> None:
        """The attempt is over: what is in lines goes, what could not be taken waits for the next agent."""
        self.drain()
        for rank in self._spools:
            if all(self._try(rank, Spool.remove)):
                self._tried(rank, self._ledgers[rank], Ledger.remove)

    def last_lines(self, rank: int) -> list[str]:
        return list(self._tails.get(rank, ()))

    def take_told(self) -> tuple[list[WarnLine], int]:
        """(warnings and errors since the last call, how many more there were)."""
        told, dropped = self._told, self._dropped
        self._told, self._dropped = [], 0
        return told, dropped

    def close(self) -> None:
        for spools in self._spools.values():
            for spool in spools:
                spool.close()
        for sink in self._sinks:
            sink.close()
        for ledger in self._ledgers.values():
            ledger.close()

    def _try(self, rank: int, what: Callable[[Spool], _T]) -> list[_T | int]:
        """What it gave for each stream; 0 where the disk refused."""
        return [self._tried(rank, spool, what) for spool in self._spools.get(rank, [])]

    def _tried(self, rank: int, subject: _S, what: Callable[[_S], _T]) -> _T | int:
        try:
            return what(subject)
        except OSError as error:  # a full disk must not end training: the rest waits in the spool
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._say(f"log of rank {rank} cannot be written: {error}")
            return 0

    def _printed(self, rank: int, texts: list[str | tuple[str]]) -> None:
        self._steps.heard(rank, texts, time.monotonic())

    def _heard(self, rank: int, at: float, read: Read) -> None:
        if len(self._told) >= TOLD_AT_ONCE:
            self._dropped += 1
        else:
            self._told.append(WarnLine(self._job, self._attempt, rank, at, read.level, read.msg[:TOLD_LENGTH]))


def cap_of(max_size_bytes: int, ranks: int) -> int:
    """Of one rank's log, so that all `ranks` of an attempt together keep to logs.max_size."""
    return max_size_bytes // max(1, ranks)


def unread_attempts(node_folder: Path, before: int | None = None) -> list[tuple[int, list[int]]]:
    """(attempt, ranks) whose output an earlier agent may have left unread, oldest first; `before`: only older ones."""
    found: list[tuple[int, list[int]]] = []
    for folder in node_folder.glob("attempt-*"):
        ranks = sorted({int(path.stem.removeprefix("rank-")) for path in folder.glob("rank-*") if path.suffix in _RAW})
        number = folder.name.removeprefix("attempt-")
        if ranks and number.isdigit() and (before is None or int(number) < before):
            found.append((int(number), ranks))
    return sorted(found)
