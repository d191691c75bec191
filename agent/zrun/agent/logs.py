"""All output of one attempt on one node: two spools a rank, their last lines, and what is worth telling at once."""

from collections import deque
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from zrun.agent.launch import Where
from zrun.agent.log_file import LogFile
from zrun.agent.log_lines import Place
from zrun.agent.spool import LAST_LINES, Spool
from zrun.core.redact import Redactor
from zrun.wire.report import WarnLine

TOLD_AT_ONCE: Final = 200
"""Lines kept for the coordinator between two reports; more are counted only."""
TOLD_LENGTH: Final = 2000
_RAW: Final = {".out", ".err", ".notes", ".stacks"}
STREAMS: Final = (("out", "stdout"), ("err", "stderr"))


class AttemptLogs:
    """`say` is told of trouble with the disk, in words."""

    def __init__(self, where: Where, ranks: list[int], cap_bytes: int, say: Callable[[str], None],
                 hidden: Callable[[], Redactor] = Redactor) -> None:  # fmt: skip
        folder, node, attempt = where.folder, where.node, where.attempt
        self._job, self._attempt, self._say = where.job, attempt, say
        self._tails: dict[int, deque[str]] = {rank: deque(maxlen=LAST_LINES) for rank in ranks}
        self._spools: dict[int, list[Spool]] = {}
        self._sinks: list[LogFile] = []
        self._told: list[WarnLine] = []
        self._dropped = 0
        self._trouble = ""
        source = where.attempt_dir
        for local, rank in enumerate(sorted(ranks)):
            sink = LogFile(folder.rank_log(attempt, rank), cap_bytes)
            self._sinks.append(sink)
            self._spools[rank] = [
                Spool(
                    source / f"rank-{rank}.{ending}", Place(self._job, attempt, node, rank, local, stream), sink,
                    self._tails[rank], self._heard, hidden,
                )
                for ending, stream in STREAMS
            ]  # fmt: skip

    def poll(self) -> None:
        for rank in self._spools:
            self._try(rank, lambda spool: spool.poll())

    def drain(self, ranks: list[int] | None = None) -> None:
        """Of dead ranks: to the last byte."""
        for rank in self._spools if ranks is None else ranks:
            self._try(rank, lambda spool: spool.drain())

    def remove_drained(self) -> None:
        """The attempt is over: what is in lines goes, what could not be taken waits for the next agent."""
        self.drain()
        for rank in self._spools:
            self._try(rank, lambda spool: spool.remove())

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

    def _try(self, rank: int, what: Callable[[Spool], object]) -> None:
        for spool in self._spools.get(rank, []):
            try:
                what(spool)
            except OSError as error:  # a full disk must not end training: the rest waits in the spool
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    self._say(f"log of rank {rank} cannot be written: {error}")

    def _heard(self, line: dict[str, Any]) -> None:
        if line["level"] not in ("warning", "error", "critical"):
            return
        if len(self._told) >= TOLD_AT_ONCE:
            self._dropped += 1
            return
        at = _unix(str(line["ts"]))
        self._told.append(
            WarnLine(
                self._job, self._attempt, int(line["rank"]), at, str(line["level"]), str(line["msg"])[:TOLD_LENGTH]
            )
        )


def cap_of(max_size_bytes: int, ranks: int) -> int:
    """Of one rank's log, so that all `ranks` of an attempt together keep to logs.max_size."""
    return max_size_bytes // max(1, ranks)


def unread_attempts(node_folder: Path) -> list[tuple[int, list[int]]]:
    """(attempt, ranks) whose output an earlier agent may have left unread, oldest first."""
    found: list[tuple[int, list[int]]] = []
    for folder in node_folder.glob("attempt-*"):
        ranks = sorted({int(path.stem.removeprefix("rank-")) for path in folder.glob("rank-*") if path.suffix in _RAW})
        number = folder.name.removeprefix("attempt-")
        if ranks and number.isdigit():
            found.append((int(number), ranks))
    return sorted(found)


def _unix(ts: str) -> float:
    return datetime.fromisoformat(ts).timestamp()
