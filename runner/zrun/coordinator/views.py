"""What is shown of one job: the machine's knowledge joined with the newest rows, and with the wall time of each moment.

Machine time stands still while no coordinator runs; the wall time of what happened is the journal's. Reads only.
"""

from typing import Any

from zrun.coordinator.clock import MachineClock
from zrun.coordinator.table import NodeSeen, Table
from zrun.coordinator.watch import Watch
from zrun.machine.limits import Limit
from zrun.machine.state import Job
from zrun.machine.view import NodeNow, describe_view, incident_view, job_summary, job_view, verdict_view
from zrun.spec.job import Watchdog


class Views:
    """`walls`: machine time of an event -> RFC 3339, for those that opened an attempt or an incident."""

    def __init__(
        self, job: Job, submitted_unix: float, table: Table, clock: MachineClock, watch: Watch,
    ) -> None:  # fmt: skip
        self.walls: dict[float, str] = {}
        self._job = job
        self._kept: dict[str, Any] = {}
        self._submitted = submitted_unix
        self._table = table
        self._clock = clock
        self._watch = watch

    def status(self) -> dict[str, Any]:
        now = self._clock.now()
        shown = job_view(self._job, now, self._nodes(now), limits=self._limits(), submitted_unix=self._submitted)
        if not self._job.over:
            shown["stragglers"] = [one.to_dict() for one in self._watch.stragglers.now]
            shown["warnings"] += [self._watch.disorder] if self._watch.disorder else []
        return self._dated(self._with_kept(shown))

    def summary(self) -> dict[str, Any]:
        return job_summary(self._job, self._nodes(self._clock.now()), submitted_unix=self._submitted)

    def verdict(self) -> dict[str, Any]:
        nodes = self._nodes(self._clock.now()) if self._job.over else {}
        return self._dated(self._with_kept(verdict_view(self._job, nodes, submitted_unix=self._submitted)))

    def remember(self, verdict: dict[str, Any]) -> None:
        """Of a job that is over: what verdict.json says of its ranks, which no journal holds."""
        if (verdict.get("state"), verdict.get("attempt")) == (self._job.state.value, self._job.attempt):
            self._kept = {name: verdict[name] for name in ("nodes", "total_steps", "step_s") if verdict.get(name)}

    def _with_kept(self, shown: dict[str, Any]) -> dict[str, Any]:
        if self._kept and self._job.over and not any(node["ranks"] for node in shown["nodes"]):
            return {**shown, **self._kept}
        return shown

    def incident(self, number: int) -> dict[str, Any]:
        shown = incident_view(self._job, number, submitted_unix=self._submitted)
        shown["at"] = self.walls.get(self._job.incidents[number - 1].opened_at, shown["at"])
        return shown

    def describe(self) -> dict[str, Any]:
        from zrun.spec.write import not_in_force

        left_out = not_in_force(self._job.spec) if self._job.spec else []
        now = self._clock.now()
        shown = describe_view(
            self._job, now, self._nodes(now), limits=self._limits(), not_in_force=left_out,
            submitted_unix=self._submitted,
        )  # fmt: skip
        return self._dated(self._with_kept(shown))

    def _dated(self, shown: dict[str, Any]) -> dict[str, Any]:
        for attempt, record in zip(shown["attempts"], self._job.attempts, strict=True):
            attempt["at"] = self.walls.get(record.ordered_at, attempt["at"])
        for incident, known in zip(shown["incidents"], self._job.incidents, strict=True):
            incident["at"] = self.walls.get(known.opened_at, incident["at"])
        return shown

    def _limits(self) -> list[Limit]:
        return self._watch.limits(self._job.spec.watchdog if self._job.spec else Watchdog())

    def _nodes(self, now: float) -> dict[str, NodeNow]:
        """Nodes that have or had a part in this job; others are only what `job.nodes` says."""
        found: dict[str, NodeNow] = {}
        for name, seen in self._table.nodes.items():
            if name in self._job.nodes:
                found[name] = self._node(seen, now)
        return found

    def _node(self, seen: NodeSeen, now: float) -> NodeNow:
        job, attempt = self._job.job, self._job.attempt
        said, last = seen.job(job), seen.last.get(job)
        over = self._job.over
        return NodeNow(
            heard_s=max(0.0, now - seen.came),
            connected=seen.connected,
            rows=seen.last_rows(job, attempt) if over else seen.rows_of(job, attempt),
            total_steps=(said.total_steps if said else 0) or (last.total_steps if last else 0),
            metrics=said.metrics if said else last.metrics if last and over else {},
            phase_names=seen.phase_names(job),
            warnings=said.warnings if said else (),
            left_behind=said.left_behind if said else (),
            host=seen.vitals.host,
            standbys=said.standbys if said else (),
        )
