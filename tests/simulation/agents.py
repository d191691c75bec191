"""A fake agent: keeps its node in the ordered state and tells the truth, as the real one promises to.

It is cut off when it hears nothing for a lease, unless every peer answers and it is the coordinator that is down. That
second judgement is taken from the truth here: how agents reach it by pinging each other is not this story.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.world import LEASE_S, MARGIN_S, STEP_S, TOTAL_STEPS, Training, World

from zrun.core.failure import Failure, FailureKind
from zrun.wire.order import End, JobOrder, LaunchPlan
from zrun.wire.report import Doing

ECHO = "Connection closed by peer [127.0.0.1]:30127"


@dataclass(frozen=True)
class Report:
    """NodeReport and JobReport in one, as far as the story needs them."""

    node: str
    boot: str
    serial: int
    order_serial: int
    doing: Doing
    attempt: int
    seen: int
    collected: int
    step: int
    resumed: int
    stopped_at: int | None
    failures: tuple[dict[str, Any], ...]
    port: int = 0
    """Of the store, if this node hosts it."""


class Agent:
    def __init__(self, world: World, name: str, submit: Callable[[Report], None]) -> None:
        self.world = world
        self.name = name
        self.submit = submit
        self.peers: dict[str, Agent] = {}
        self.lives = 0
        self.up = False
        self.begin()

    def begin(self) -> None:
        """A new life, which knows nothing of the one before."""
        self.lives += 1
        self.boot = f"{self.name}{self.lives}"
        self.up = True
        self.serial = self.order_serial = 0
        self.sent_at: dict[int, float] = {}
        self.contact = self.world.now
        self.doing = Doing.IDLE
        self.attempt = self.seen = self.collected = 0
        self.failures: list[dict[str, Any]] = []
        self.stopped_at: int | None = None
        self.alone = self.hosts = False
        self.port = 0
        self._every(1.0, self.report)
        self._every(0.2, self.check_touch)
        self._every(STEP_S, self.work)

    def _every(self, seconds: float, what: Callable[[], None]) -> None:
        boot = self.boot

        def again() -> None:
            if self.up and self.boot == boot:
                what()
                self.world.after(seconds, again)

        self.world.after(self.world.chance.random() * seconds, again)

    def _soon(self, within_s: float, what: Callable[[], None]) -> None:
        """In this life, and only while it is still about this attempt."""
        boot, attempt = self.boot, self.attempt

        def now() -> None:
            if self.up and self.boot == boot and self.attempt == attempt:
                what()

        self.world.after(self.world.chance.random() * within_s, now)

    # -- telling

    def report(self) -> None:
        self.serial += 1
        self.sent_at[self.serial] = self.world.now
        training = self.training
        told = Report(
            self.name, self.boot, self.serial, self.order_serial, self.doing, self.attempt, self.seen, self.collected,
            training.step if training else 0, training.resumed if training else 0, self.stopped_at,
            tuple(self.failures), self.port if self.hosts else 0,
        )  # fmt: skip
        self.world.send(self.name, lambda: self.submit(told))

    @property
    def training(self) -> Training | None:
        return self.world.training.get(self.attempt)

    # -- obeying

    def receive(self, boot: str, serial: int, order: JobOrder | None, acked: int) -> None:
        if not self.up:
            return
        if boot != self.boot and not self.world.bugs.dead_self_obeyed:
            return
        if boot == self.boot and acked in self.sent_at:
            self.contact = max(self.contact, self.sent_at[acked])
        if order is None or serial < self.order_serial:
            return
        late = self.world.now - self.contact >= LEASE_S - MARGIN_S and not self.world.bugs.late_orders_obeyed
        if late and order.run is not None and order.run.nnodes > 1:
            return  # it is repeated if it still holds
        news = serial > self.order_serial
        self.order_serial = serial
        if news:
            self.obey(order)
            self.report()

    def obey(self, order: JobOrder) -> None:
        if order.collect > self.collected:
            number = order.collect
            self._soon(0.5, lambda: self._collected(number))
        if order.run is not None:
            if order.run.attempt > self.seen:
                self._start(order.run)
            elif order.run.attempt == self.attempt and order.run.master_port not in {0, self.port}:
                self._port_told(order.run.master_port)
            return
        self.seen = max(self.seen, order.attempt)
        if self.world.alive.get(self.name) and order.ending is not None and order.ending.how is End.SAVE:
            self._soon(1.0, self._save_and_stop)
        elif self.doing is not Doing.IDLE:
            self.doing = Doing.STOPPING
            self._soon(0.3, self.end)

    def _collected(self, number: int) -> None:
        self.collected = max(self.collected, number)
        self.report()

    def _start(self, plan: LaunchPlan) -> None:
        self.seen = self.attempt = plan.attempt
        self.failures, self.stopped_at = [], None
        self.doing = Doing.STARTING
        self.alone, self.hosts = plan.nnodes == 1, plan.node_rank == 0
        self.port = 0
        self.world.attempt(plan.attempt, tuple(peer.node for peer in plan.peers))
        if self.hosts:
            self._port_told(self.world.chance.randint(20000, 31999))
        elif plan.master_port:
            self._port_told(plan.master_port)

    def _port_told(self, port: int) -> None:
        """Where the store is, is known now, or has changed before any rank was there: ranks begin (again)."""
        if self.doing is not Doing.STARTING:
            return
        if self.port and not self.hosts and self.world.bugs.old_port_kept:
            return
        self.port = port
        self.world.born(self.name, self.attempt)
        if self.hosts and not self.alone and self.world.chance.random() < self.world.taken:
            self._soon(1.0, self._port_taken)
            return
        self.world.ports[self.name] = (self.attempt, port)
        self._soon(1.0, self._running)

    def _port_taken(self) -> None:
        """torchrun found somebody else at the port it was given: another one, same attempt."""
        if self.doing is Doing.STARTING:
            self.world.tell(f"{self.name}: port {self.port} is taken")
            self._port_told(self.port % 31999 + 1)
            self.report()

    def _running(self) -> None:
        """Ranks are there once all nodes found the store."""
        if self.doing is Doing.STARTING and self.training and not self.world.meet(self.training):
            self._soon(0.5, self._running)
        elif self.doing is Doing.STARTING:
            self.doing = Doing.RUNNING
            self.report()

    def _save_and_stop(self) -> None:
        training = self.training
        if training is None or self.doing is not Doing.RUNNING:
            self.end()
            return
        self.world.saved_step = max(self.world.saved_step, training.step)
        self.world.dead(self.name)
        self.stopped_at = training.step
        self.doing = Doing.IDLE
        self.report()

    def end(self) -> None:
        self.world.dead(self.name)
        self.doing = Doing.IDLE
        self.report()

    # -- living

    def work(self) -> None:
        """Steps are made by the first node for all; then each looks at what became of its own ranks."""
        training = self.training
        if training is None or self.doing is not Doing.RUNNING:
            return
        if training.nodes[0] == self.name:
            self.world.steps(training)
        if training.step >= TOTAL_STEPS:
            self.world.dead(self.name)
            self.doing = Doing.FINISHED
            self.report()
        elif any(self._peer_failed(peer, training) for peer in training.nodes) and self.world.chance.random() < 0.5:
            self.fail(FailureKind.RAISED, exception="RuntimeError", message=ECHO, collective="all_reduce #17")

    def _peer_failed(self, name: str, training: Training) -> bool:
        other = self.peers[name]
        began = other.attempt == training.attempt or other.seen > training.attempt or other.attempt > 0
        return name != self.name and began and self.world.alive.get(name) != training.attempt and training.step > 0

    def fail(self, kind: FailureKind, **how: Any) -> None:
        """One rank ends badly; the others of this node are left alive until somebody says otherwise."""
        if self.doing not in {Doing.STARTING, Doing.RUNNING}:
            return
        training = self.training
        failure = Failure(0, self.name, kind, self.world.now, step=training.step + 1 if training else None,
                          phase="step", **how)  # fmt: skip
        self.world.tell(f"{self.name}: {failure.headline()}")
        self.failures = [*self.failures, failure.to_dict()]
        if training:
            training.broken = True
        self.doing = Doing.FAILED
        self.report()

    def check_touch(self) -> None:
        """Out of touch: is the coordinator down, or am I cut off?"""
        if self.alone or self.world.bugs.no_self_stop:
            return
        if not self.world.alive.get(self.name) and self.doing is not Doing.STARTING:
            return
        if self.world.now - max(self.contact, self.world.coordinator_since) < LEASE_S - MARGIN_S:
            return
        training = self.training
        others = [self.peers[name] for name in training.nodes if name != self.name] if training else []
        unreachable = self.name in self.world.cut or any(not p.up or p.name in self.world.cut for p in others)
        if unreachable or self.world.coordinator_up:
            self.world.tell(f"{self.name}: cut off, ends its own workers")
            self.world.stopped_themselves += 1
            self.end()

    def die(self, away_s: float) -> None:
        """The agent is killed; its keeper ends the workers, and only then a new life begins."""
        self.world.tell(f"{self.name}: agent killed")
        self.up = False
        gone = self.world.chance.random() * 0.3
        self.world.after(gone, lambda: self.world.dead(self.name))
        self.world.after(gone + away_s, self.begin)


def without(report: Report) -> Report:
    """The report without what is no news."""
    return replace(report, serial=0, order_serial=0, step=0, resumed=0, failures=())
