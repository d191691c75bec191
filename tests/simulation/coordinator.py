"""The coordinator's loop in small: folds reports into facts, journals them, repeats orders, dies and comes back.

The machine inside is the real one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.agents import Agent, Report, without
from tests.simulation.world import LEASE_S, BrokenInvariantError, World

from zrun.core.ids import JobId
from zrun.machine.actions import Action, CloseIncident, Give, OpenIncident
from zrun.machine.events import (
    AttemptStarted,
    CheckpointCommitted,
    CoordinatorStarted,
    Event,
    NodeGone,
    NodeHeard,
    NodeSilent,
    ProgressVerified,
    RankEnded,
    Submitted,
    Suspected,
    TimerFired,
)
from zrun.machine.job import JobMachine
from zrun.machine.moves import TRAINING
from zrun.machine.state import Job
from zrun.spec.job import JobSpec, spec_to_dict
from zrun.wire.order import JobOrder
from zrun.wire.report import Doing

SWEEP_S = 0.25
HANG_S = 3.0
JOB = JobId("story-000000")


@dataclass
class Seen:
    """The newest report of a node, and when it came."""

    report: Report
    heard: float
    told: NodeHeard | None = None
    silent: bool = False
    gone: bool = False


@dataclass
class Told:
    """An order that is in force, and when it was sent last."""

    boot: str
    serial: int
    order: JobOrder
    sent: float = -10.0
    times: int = 0


class Coordinator:
    def __init__(self, world: World, spec: JobSpec, make: Callable[[JobId], JobMachine]) -> None:
        self.world = world
        self.make = make
        self.journal: list[tuple[int, float, Event, list[Action]]] = []
        self.agents: dict[str, Agent] = {}
        self.opened: set[int] = set()
        self.restarts = 0
        self.up = False
        self.start()
        self.emit(Submitted(JOB, spec_to_dict(spec), "/run"))

    @property
    def job(self) -> Job:
        return self.machine.job

    def start(self) -> None:
        """Begin (again) on the journal: the answers must be the ones given before."""
        self.machine = self.make(JOB)
        self.table: dict[str, Seen] = {}
        self.book: dict[str, Told] = {}
        self.serial = 0
        self.progress: tuple[int, int, float] = (0, 0, self.world.now)
        self.suspected = False
        self.awaited: set[float] = set()
        for number, now, event, answered in self.journal:
            again = self.machine.handle(event, number, now)
            if again != answered:
                raise BrokenInvariantError(f"replay differs at {number} {event}: {again} instead of {answered}")
            self._carry(again, live=False)
        self.up = self.world.coordinator_up = True
        self.world.coordinator_since = self.world.now
        life = self.restarts
        if self.journal:
            self.emit(CoordinatorStarted())
        self._sweep(life)

    def crash(self, away_s: float) -> None:
        if not self.up:
            return
        self.world.tell("coordinator killed")
        self.up = self.world.coordinator_up = False
        self.restarts += 1
        self.world.after(away_s, self.start)

    # -- events and orders

    def emit(self, event: Event) -> None:
        number = len(self.journal) + 1
        actions = self.machine.handle(event, number, self.world.now)
        self.journal.append((number, self.world.now, event, actions))
        self.world.tell(f"{number} {_short(event)} -> {self.job.stage}: {self.job.reason}")
        for action in actions:
            if isinstance(action, OpenIncident):
                self.opened.add(action.number)
            elif isinstance(action, CloseIncident):
                self.opened.remove(action.number)
        self._carry(actions, live=True)
        self._wake()

    def _wake(self) -> None:
        """The machine is called at its deadline, neither before nor after."""
        due, life = self.machine.deadline(), self.restarts

        def fire() -> None:
            if not self.up or life != self.restarts or self.job.over or self.machine.deadline() != due:
                return
            self.emit(TimerFired())
            if self.machine.deadline() <= due:
                raise BrokenInvariantError(f"the deadline {due} was reached and stays")

        if due < math.inf and due not in self.awaited:
            self.awaited.add(due)
            self.world.at(max(due, self.world.now), fire)

    def _carry(self, actions: list[Action], *, live: bool) -> None:
        for action in actions:
            if isinstance(action, Give):
                self.serial += 1
                self.book[action.node] = Told(action.boot, self.serial, action.order)
                if live:
                    self._send(action.node)

    def _send(self, node: str) -> None:
        told, seen, agent = self.book.get(node), self.table.get(node), self.agents[node]
        acked = seen.report.serial if seen else 0
        boot = told.boot if told else seen.report.boot if seen else ""
        order, serial = (told.order, told.serial) if told else (None, 0)
        bugs = self.world.bugs
        if told is not None:
            once = bugs.endings_said_once if told.order.run is None else bugs.runs_said_once
            if once and told.times > 0:
                order = None
            told.sent, told.times = self.world.now, told.times + 1
        self.world.send(node, lambda: agent.receive(boot, serial, order, acked))

    # -- reports

    def receive(self, report: Report) -> None:
        if not self.up or (self.job.over and report.doing is Doing.IDLE):
            return
        seen = self.table.get(report.node)
        if seen is not None and seen.report.boot == report.boot and report.serial <= seen.report.serial:
            return
        if seen is not None and report.boot in {s.boot for s in self._older(report.node)}:
            return
        old = seen.report if seen else None
        told = seen.told if seen and seen.report.boot == report.boot else None
        self.table[report.node] = Seen(report, self.world.now, told)
        self._fold(self.table[report.node], old)
        self._send(report.node)

    def _older(self, node: str) -> list[Told]:
        """Lives that are over, as the machine knows them."""
        member = self.job.nodes.get(node)
        return [Told(boot, 0, JobOrder()) for boot in member.past_boots] if member else []

    def _fold(self, seen: Seen, old: Report | None) -> None:
        report = seen.report
        if report.attempt == self.job.attempt:
            self._progress()
            if report.failures and (old is None or old.failures != report.failures or seen.told is None):
                self.emit(RankEnded(report.node, report.attempt, list(report.failures), 0.1))
        if seen.told is None or old is None or without(old) != without(report):
            seen.told = NodeHeard(
                report.node, report.boot, report.doing, report.attempt, report.seen, collected=report.collected,
                stopped_at=report.stopped_at, step=max(0, report.step), address=f"10.0.0.{ord(report.node)}",
                peer_port=4000, master_port=report.port,
            )  # fmt: skip
            self.emit(seen.told)

    def _progress(self) -> None:
        current = self.job.current
        if current is None:
            return
        reports = [self.table[n].report for n in current.nodes if n in self.table]
        if len(reports) < len(current.nodes) or any(r.attempt != current.number for r in reports):
            return
        step, resumed = min(r.step for r in reports), reports[0].resumed
        attempt, before, _ = self.progress
        if (attempt, before) != (current.number, step):
            self.progress = (current.number, step, self.world.now)
        if step > resumed and current.started_at is None:
            self.emit(AttemptStarted(current.number, resumed + 1, resumed, f"step-{resumed}" if resumed else None))
        if step > max(resumed, self.job.best_step) and (
            step % 20 == 0 or any(r.doing is not Doing.RUNNING for r in reports)
        ):
            self.emit(ProgressVerified(current.number, step))
        newest = max((c.step for c in self.job.checkpoints), default=0)
        if self.world.saved_step > newest:
            self.emit(CheckpointCommitted(current.number, self.world.saved_step, "b", "p", 1))

    # -- time

    def _sweep(self, life: int) -> None:
        if not self.up or life != self.restarts or self.job.over:
            return
        for node in sorted(set(self.job.nodes) | set(self.table)):
            self._silence(node)
            told, seen = self.book.get(node), self.table.get(node)
            if told and seen and seen.report.order_serial < told.serial and self.world.now - told.sent > 1.0:
                self._send(node)
        self._judge_hangs()
        self.world.after(SWEEP_S, lambda: self._sweep(life))

    def _silence(self, node: str) -> None:
        seen, agent = self.table.get(node), self.agents[node]
        if seen is None or seen.silent:
            return
        closed = not agent.up or (node in self.world.cut and self.world.now - seen.heard > 1.5)
        if closed and not seen.gone and self.world.chance.random() < 0.3:
            seen.gone, seen.told = True, None
            self.emit(NodeGone(node, seen.report.boot, "its connection ended"))
        if self.world.now >= seen.heard + LEASE_S:
            seen.silent, seen.told = True, None
            self.emit(NodeSilent(node, seen.report.boot))

    def _judge_hangs(self) -> None:
        current = self.job.current
        if current is None or self.job.stage not in TRAINING:
            self.suspected = False
            return
        attempt, step, since = self.progress
        training = self.world.training.get(current.number)
        silent = any(n not in self.table or self.table[n].silent for n in current.nodes)
        limit = HANG_S if current.started_at is not None else 2 * HANG_S
        stuck = attempt == current.number and self.world.now - since >= limit and training is not None and not silent
        stuck = stuck and all(self.table[n].report.doing is Doing.RUNNING for n in current.nodes)
        if stuck != self.suspected:
            self.suspected = stuck
            provable = self.world.chance.random() < 0.5
            self.emit(Suspected(current.number, [0], "not-arrived", provable, f"rank 0 not there at step {step}",
                                ["the others wait"], step=step, cleared=not stuck, blind_s=HANG_S))  # fmt: skip


def _short(event: Event) -> str:
    text = str(event)
    return text if len(text) < 160 else text[:157] + "..."
