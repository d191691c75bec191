"""What is shown of one job: the machine's knowledge joined with the newest rows, and with the wall time of each moment.

Machine time stands still while no coordinator runs; the wall time of what happened is the journal's. Reads only.
"""

from collections.abc import Callable
from typing import Any

from zrun.coordinator.clock import MachineClock
from zrun.coordinator.table import NodeSeen, Table
from zrun.machine.hang import HangJudge
from zrun.machine.limits import Limit, effective_limits
from zrun.machine.state import Job
from zrun.machine.view import NodeNow, describe_view, incident_view, job_summary, job_view, verdict_view
from zrun.spec.job import JobSpec


class Views:
    """`walls`: machine time of an event -> RFC 3339, for those that opened an attempt or an incident."""

    def __init__(
        self, job: Job, spec: JobSpec, submitted_unix: float, table: Table, clock: MachineClock,
        judge: Callable[[], HangJudge | None],
    ) -> None:  # fmt: skip
        self.walls: dict[float, str] = {}
        self._job = job
        self._spec = spec
        self._submitted = submitted_unix
        self._table = table
        self._clock = clock
        self._judge = judge

    def status(self) -> dict[str, Any]:
        now = self._clock.now()
        shown = job_view(self._job, now, self._nodes(now), limits=self._limits(), submitted_unix=self._submitted)
        return self._dated(shown)

    def summary(self) -> dict[str, Any]:
        return job_summary(self._job, self._nodes(self._clock.now()), submitted_unix=self._submitted)

    def verdict(self) -> dict[str, Any]:
        return self._dated(verdict_view(self._job, submitted_unix=self._submitted))

    def incident(self, number: int) -> dict[str, Any]:
        shown = incident_view(self._job, number, submitted_unix=self._submitted)
        shown["at"] = self.walls.get(self._job.incidents[number - 1].opened_at, shown["at"])
        return shown

    def describe(self) -> dict[str, Any]:
        from zrun.spec.write import not_in_force

        now = self._clock.now()
        shown = describe_view(
            self._job, now, self._nodes(now), limits=self._limits(), not_in_force=not_in_force(self._spec),
            submitted_unix=self._submitted,
        )  # fmt: skip
        return self._dated(shown)

    def _dated(self, shown: dict[str, Any]) -> dict[str, Any]:
        for attempt, record in zip(shown["attempts"], self._job.attempts, strict=True):
            attempt["at"] = self.walls.get(record.ordered_at, attempt["at"])
        for incident, known in zip(shown["incidents"], self._job.incidents, strict=True):
            incident["at"] = self.walls.get(known.opened_at, incident["at"])
        return shown

    def _limits(self) -> list[Limit]:
        judge = self._judge()
        return judge.limits.table() if judge else effective_limits(self._spec.watchdog)

    def _nodes(self, now: float) -> dict[str, NodeNow]:
        """Nodes that have or had a part in this job; others are only what `job.nodes` says."""
        found: dict[str, NodeNow] = {}
        for name, seen in self._table.nodes.items():
            if name in self._job.nodes:
                found[name] = self._node(seen, now)
        return found

    def _node(self, seen: NodeSeen, now: float) -> NodeNow:
        said = seen.job(self._job.job)
        return NodeNow(
            heard_s=max(0.0, now - seen.came),
            connected=seen.connected,
            rows=seen.rows_of(self._job.job, self._job.attempt),
            total_steps=said.total_steps if said else 0,
            metrics=said.metrics if said else {},
            warnings=said.warnings if said else (),
            left_behind=said.left_behind if said else (),
            host=seen.vitals.host,
        )
