"""What time alone brings about: timers, silence, a hang verdict, max_duration, orders that have to be said again.

Runs every SWEEP_S on the fleet's thread. Knows when to ask, not what follows.
"""

import time
from collections.abc import Callable
from typing import Final

from zrun.coordinator.fleet import Fleet
from zrun.coordinator.held import HeldJob
from zrun.coordinator.inbox import ALIVE_S, Seats, facts
from zrun.coordinator.judging import judge
from zrun.coordinator.table import NodeSeen
from zrun.machine.events import DurationOver, NodeGone, NodeHeard, NodeSilent, TimerFired

RETURN_S: Final = 1.0
"""A connection that ended may come back this soon without being called gone."""
TIMER_ROUNDS: Final = 10
"""A machine whose deadline stays in the past after this many firings has a bug; the sweep goes on all the same."""


class Sweep:
    def __init__(
        self, fleet: Fleet, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.fleet = fleet
        self._monotonic = monotonic
        self._wall = wall

    def run(self) -> None:
        """One sweep over everything."""
        fleet = self.fleet
        silence = fleet.silence.sweep(self._monotonic())
        self.fire_timers()
        for seen in list(fleet.table.nodes.values()):
            self._nodes(seen, silence)
            if fleet.book.due(seen.node, fleet.clock.now()):
                fleet.send_order(seen.node)
        for job in list(fleet.jobs.values()):
            job.papers.write_lost()
            if not job.state.over:
                self._duration(job)
                self._alive_without_steps(job)
                judge(fleet, job)

    def fire_timers(self) -> None:
        """TimerFired for every machine whose deadline has come."""
        fleet = self.fleet
        for job in list(fleet.jobs.values()):
            for _ in range(TIMER_ROUNDS):
                if job.state.over or job.machine.deadline() > fleet.clock.now():
                    break
                fleet.emit(job.id, TimerFired())

    def _nodes(self, seen: NodeSeen, silence: float) -> None:
        fleet = self.fleet
        for job in list(fleet.jobs.values()):
            member = job.state.nodes.get(seen.node)
            if job.state.over or member is None or member.boot != seen.boot:
                continue
            closed_for = silence - seen.closed if seen.closed is not None else 0.0
            if closed_for >= RETURN_S and seen.node in job.told.heard:
                fleet.emit(job.id, NodeGone(seen.node, seen.boot, seen.closed_because or "its connection ended"))
            if silence - seen.heard >= job.spec.restart.lease_s and seen.node not in job.told.silent:
                fleet.emit(job.id, NodeSilent(seen.node, seen.boot))

    def _duration(self, job: HeldJob) -> None:
        limit = job.spec.max_duration_s
        if limit is not None and not job.told.duration_over and self._wall() - job.clock_from >= limit:
            self.fleet.emit(job.id, DurationOver())

    def _alive_without_steps(self, job: HeldJob) -> None:
        """A script without steps gives no report that says "started": the time does."""
        current = job.state.current
        since = job.told.running_since.get(current.number) if current else None
        if current is None or since is None or self.fleet.clock.now() - since < ALIVE_S:
            return
        seen = self.fleet.table.nodes.get(current.nodes[0])
        if seen is not None and seen.connected:
            seats = Seats(current.number, current.nodes)
            for event in facts(job.id, job.told, seen, self.fleet.table, seats, self.fleet.clock.now()):
                if not isinstance(event, NodeHeard):
                    self.fleet.emit(job.id, event)
