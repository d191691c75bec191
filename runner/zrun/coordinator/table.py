"""What the nodes last said: the newest report of each node, when it came, and its ranks' rows.

Decides nothing. Rows stay packed as they came until somebody looks at them; a look costs once per report.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from zrun.core.deck import Phase
from zrun.core.rows import RankRow, RowFlag, unpack_rows
from zrun.core.standing import Standing
from zrun.wire.report import JobReport, NodeReport, Vitals


@dataclass(frozen=True, slots=True)
class LastRows:
    """Of the newest report about a job that held rows."""

    attempt: int
    rows: bytes
    total_steps: int
    metrics: dict[str, Any]


@dataclass(slots=True)
class NodeSeen:
    """One node in one life of its agent. `heard` is on the silence clock, `came` on the machine clock."""

    node: str
    boot: str
    heard: float
    came: float
    report: NodeReport | None = None
    """None: connected (or known from the journal), nothing reported yet."""
    connected: bool = True
    silent: bool = False
    closed: float | None = None
    """When its connection ended, silence clock; None while connected."""
    closed_because: str = ""
    rows: dict[str, list[RankRow]] = field(default_factory=dict)
    """By job, unpacked at the first look."""

    last: dict[str, "LastRows"] = field(default_factory=dict)
    """By job: what its ranks were like when they were told of last, for eyes once the job is over."""

    def job(self, job: str) -> JobReport | None:
        return self.report.jobs.get(job) if self.report else None

    def phase_names(self, job: str) -> dict[int, str]:
        """Rank -> name of the script's own phase it is in."""
        said = self.job(job)
        return {int(rank): name for rank, name in said.phase_names.items() if rank.isdecimal()} if said else {}

    def standings(self, job: str) -> dict[int, list[Standing]]:
        """Of the ranks that stand still; what cannot be read is left out."""
        found: dict[int, list[Standing]] = {}
        for rank, told in (said.standings if (said := self.job(job)) else {}).items():
            with contextlib.suppress(ValueError):
                found[int(rank)] = [Standing.unpack(one) for one in told]
        return found

    def rows_of(self, job: str, attempt: int) -> list[RankRow]:
        """Rows of this attempt; empty if it reports another one or what it sent are no rows."""
        said = self.job(job)
        if said is None or said.attempt != attempt:
            return []
        if job not in self.rows:
            self.rows[job] = _unpacked(said.rows)
        return self.rows[job]

    def last_rows(self, job: str, attempt: int) -> list[RankRow]:
        """The same, from the newest report that held some."""
        last = self.last.get(job)
        return _unpacked(last.rows) if last is not None and last.attempt == attempt else []

    @property
    def vitals(self) -> Vitals:
        return self.report.vitals if self.report else Vitals()


class Table:
    """All nodes, by name."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeSeen] = {}

    def take(self, report: NodeReport, heard: float, came: float) -> NodeSeen | None:
        """Keep the report if it is the newest of the node's present life; None if it is late or of another life."""
        seen = self.nodes.get(report.node)
        if seen is None or seen.boot != report.boot:
            return None
        if seen.report is not None and report.serial <= seen.report.serial:
            return None
        seen.report, seen.heard, seen.came, seen.silent = report, heard, came, False
        seen.rows.clear()
        for job, said in report.jobs.items():
            if said.rows:
                seen.last[job] = LastRows(said.attempt, said.rows, said.total_steps, said.metrics)
        return seen

    def rows(self, job: str, attempt: int, nodes: Iterable[str]) -> dict[str, list[RankRow]] | None:
        """Rows by node, or None unless each of these nodes told of this attempt."""
        found: dict[str, list[RankRow]] = {}
        for node in nodes:
            seen = self.nodes.get(node)
            rows = seen.rows_of(job, attempt) if seen else []
            if not rows:
                return None
            found[node] = rows
        return found or None


def _unpacked(block: bytes) -> list[RankRow]:
    try:
        return unpack_rows(block)
    except ValueError:
        return []  # an agent of another make; its other words still count


def completed(row: RankRow) -> int:
    """The newest step this rank is known to have completed in this attempt; 0 = none."""
    if RowFlag.STEPPING not in row.flags:
        return 0
    return row.step if RowFlag.FINISHED in row.flags or row.phase is Phase.DONE else max(row.step - 1, 0)
