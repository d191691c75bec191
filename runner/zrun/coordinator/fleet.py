"""The heart of the coordinator: events in, through the journal, to the machines, and out again as orders and papers.

An event is numbered, decided on at once and carried out when the journal says that it is on the disk; if the journal
cannot be written (disk full) that is said once and decisions are carried out all the same, because ending a broken
attempt must not wait for space. Knows no socket and no HTTP; runs on one thread and never waits.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from zrun.coordinator.clock import MachineClock, SilenceClock
from zrun.coordinator.held import HeldJob, Notebook
from zrun.coordinator.inbox import Seats, busy, facts
from zrun.coordinator.journal import Entry
from zrun.coordinator.outbox import ACK_EVERY, Link, OrderBook
from zrun.coordinator.papers import remark
from zrun.coordinator.peer_keys import PeerKeys
from zrun.coordinator.scribe import Scribe
from zrun.coordinator.table import NodeSeen, Table
from zrun.machine.actions import Action, Finish, Give, Note, OpenIncident
from zrun.machine.events import Command, CoordinatorStarted, Event, NodeHeard, Submitted
from zrun.machine.roll_call import roll_line
from zrun.wire.order import Ack
from zrun.wire.report import NodeReport

DEFAULT_LEASE_S = 3.0


class Appender(Protocol):
    """The part of the journal that a running fleet uses."""

    def append(self, job: str | None, at: float, event: Event) -> Entry: ...


class Fleet:
    """All jobs, all nodes. `changed(job)` is called after anything a person could see of it changed."""

    def __init__(self, journal: Appender, scribe: Scribe, clock: MachineClock, silence: SilenceClock, log: Any,
                 peer_keys: PeerKeys | None = None) -> None:  # fmt: skip
        self.journal = journal
        self.scribe = scribe
        self.clock = clock
        self.silence = silence
        self.log = log
        self.notebook = Notebook()
        self.jobs: dict[str, HeldJob] = {}
        self.table = Table()
        self.book = OrderBook(peer_keys)
        self.links: dict[str, Link] = {}
        self.trouble: str | None = None
        self.committed_n = 0
        self.last_n = 0
        self.events = 0
        self.changed: Callable[[str], None] = lambda _job: None
        self.on_decided: Callable[[], None] = lambda: None
        self._asking: list[tuple[int, asyncio.Future[None]]] = []
        self._waiting: deque[tuple[Entry, list[tuple[HeldJob, list[Action]]]]] = deque()

    # --- events

    def replay(self, entry: Entry) -> None:
        """Rebuild what an entry of the journal led to; sends nothing."""
        self.committed_n = entry.n
        for job, actions in self._decide(entry):
            self._carry(job, entry, actions, live=False)

    def begin(self) -> None:
        """After the replay: nodes the machines know get time to come back; tell the machines that we are new."""
        for job in self.jobs.values():
            for name, member in job.state.nodes.items():
                if member.boot and not member.gone:
                    seen = NodeSeen(name, member.boot, heard=self.silence.now, came=self.clock.now())
                    seen.connected, seen.closed = False, self.silence.now
                    self.table.nodes[name] = seen
            if job.state.over:
                job.views.remember(job.papers.read_verdict())
            job.papers.write_verdict()
        self.emit(None, CoordinatorStarted())

    def emit(self, job: str | None, event: Event) -> int:
        """Journal it, let the machine decide, and carry out what it decided once it is on the disk."""
        entry = self.journal.append(job, self.clock.now(), event)
        self._waiting.append((entry, self._decide(entry)))
        if self.trouble:
            self.committed(entry.n)
        self.on_decided()
        return entry.n

    def committed(self, upto: int) -> None:
        """The journal holds everything up to this event."""
        while self._waiting and self._waiting[0][0].n <= upto:
            entry, decided = self._waiting.popleft()
            for job, actions in decided:
                self._carry(job, entry, actions, live=True)
        self.committed_n = max(self.committed_n, upto)
        due = [future for n, future in self._asking if n <= upto and not future.done()]
        self._asking = [(n, future) for n, future in self._asking if n > upto]
        for future in due:
            future.set_result(None)

    async def until_committed(self, n: int) -> None:
        """Event n is on the disk and what it led to is carried out."""
        if n > self.committed_n:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._asking.append((n, future))
            await future

    def journal_trouble(self, text: str | None) -> None:
        """Commits began to fail, or work again (None)."""
        self.trouble = text
        what = "the journal cannot be written" if text else "the journal is written again"
        self.log.warning(what, because=text or "there is room again")
        for job in self.jobs.values():
            remark(job.papers, self.scribe, self.committed_n, what, error=text)
        if text and self._waiting:
            self.committed(self._waiting[-1][0].n)

    def _decide(self, entry: Entry) -> list[tuple[HeldJob, list[Action]]]:
        self.events += 1
        self.last_n = entry.n
        if isinstance(entry.event, Submitted):
            held = self.notebook.open(entry, self.scribe, self.table, self.clock)
            self.jobs[held.id] = held
            concerned = [held]
        elif entry.job is None:
            concerned = list(self.jobs.values())  # those that are over too: a resume must not trust old words
        else:
            concerned = [self.jobs[entry.job]] if entry.job in self.jobs else []
        if isinstance(entry.event, Command) and entry.event.what == "resume":
            for link in self.links.values():
                link.briefed.discard(entry.job or "")  # agents forgot the job, or know it as it was before
        return [(job, job.handle(entry, self.log)) for job in concerned]

    def _carry(self, job: HeldJob, entry: Entry, actions: list[Action], *, live: bool) -> None:
        for action in actions:
            match action:
                case OpenIncident() if live:
                    job.papers.roll_calls[action.number] = self._roll_call(job, action.attempt)
                case Give():
                    if self.book.give(action.node, action.boot, job.id, action.order) and live:
                        self.send_order(action.node)
                case Finish():
                    if live:
                        self.log.info("job is over", job=job.id, state=action.state, because=action.reason)
                case Note():
                    if live:
                        self.log.info("state", job=job.id, state=action.state, because=action.reason, n=action.because)
                case _:
                    pass  # incidents and records are papers alone
        try:
            job.papers.write(entry, actions, {i.number: i for i in job.state.incidents})
            if live:
                if isinstance(entry.event, Command) and "spec" in entry.event.options:
                    job.papers.write_job(job.spec)
                job.papers.write_verdict()
        except Exception as error:  # papers are for people: no mistake in them may hold up an order
            self.log.exception("papers not written", job=job.id, n=entry.n, because=f"{type(error).__name__}: {error}")
        if live:
            self.changed(job.id)

    def _roll_call(self, job: HeldJob, attempt: int) -> str:
        """Every rank as it was told of last, a line each."""
        current = job.state.current
        seats = current.nodes if current is not None and current.number == attempt else ()
        seen = [self.table.nodes[node] for node in seats if node in self.table.nodes]
        told = [(row, one) for one in seen for row in one.last_rows(job.id, attempt)]
        return "".join(f"{roll_line(row, one.phase_names(job.id).get(row.rank, ''))}, node {one.node}\n"
                       for row, one in sorted(told, key=lambda pair: pair[0].rank))  # fmt: skip

    # --- nodes

    def report(self, link: Link, report: NodeReport) -> None:
        """Fold a report into facts; answer with orders or an acknowledgement where due."""
        link.reports += 1
        report = self.notebook.redacted(report)
        seen = self.table.take(report, self.silence.now, self.clock.now())
        if seen is None:
            return
        first = link.reports == 1
        self.book.heard(seen.node, seen.boot, report.order_serial, set(report.jobs))
        self.fold(seen)
        if first or link.reports % ACK_EVERY == 0:
            self.send_order(seen.node)
        elif self.book.has_peers(seen.node):
            link.send(Ack(seen.boot, report.serial))

    def fold(self, seen: NodeSeen) -> None:
        """Tell every live job what this node's newest report adds."""
        for job in list(self.jobs.values()):
            for event in self._news(job, seen):
                self.emit(job.id, event)
            if seen.job(job.id) is not None:
                self.changed(job.id)

    def _news(self, job: HeldJob, seen: NodeSeen) -> list[Event]:
        mentioned = seen.job(job.id) is not None
        if job.state.over and not mentioned:
            return []
        holder = None if mentioned else self.holder(seen.node, job.id)
        if holder:
            return busy(job.told, seen, holder)
        current = job.state.current
        seats = Seats(current.number, current.nodes) if current else Seats(0, ())
        found = facts(job.id, job.told, seen, self.table, seats, self.clock.now())
        if job.state.over:
            return [event for event in found if isinstance(event, NodeHeard)]
        return found

    def holder(self, node: str, other_than: str) -> str | None:
        """The live job that has this node under an order."""
        for job in self.jobs.values():
            member = job.state.nodes.get(node)
            ordered = member is not None and member.order is not None and not member.order.release
            if ordered and job.id != other_than and not job.state.over:
                return job.id
        return None

    def send_order(self, node: str) -> None:
        """The newest order and acknowledgement, if the node is connected in the life it was meant for."""
        link = self.links.get(node)
        seen = self.table.nodes.get(node)
        if link is None or seen is None or seen.report is None:
            return
        ids = set(self.book.nodes[node].jobs) if node in self.book.nodes else set()
        held = [self.jobs[job] for job in ids if job in self.jobs]
        lease = min((job.spec.restart.lease_s for job in held), default=DEFAULT_LEASE_S)
        briefs = [self.notebook.brief(job) for job in held if job.id not in link.briefed]
        for job in held:
            if job.missing_secrets and job.id not in link.briefed | link.secrets_held:
                because = f"{', '.join(job.missing_secrets)}: they came with the submission and are in no file"
                self.log.warning("secrets without a value", job=job.id, node=node, because=because)
        self.book.send(link, briefs, seen.report.serial, lease, self.clock.now())

    # --- looking things up

    def find(self, name: str) -> HeldJob | None:
        """By id, else the newest whose name it is, else by a prefix that only one id has."""
        if name in self.jobs:
            return self.jobs[name]
        named = [job for job in self.jobs.values() if job.spec.name == name]
        if named:
            return named[-1]
        begun = [job for job in self.jobs.values() if name and job.id.startswith(name)]
        return begun[0] if len(begun) == 1 else None

    def next_deadline(self) -> float:
        return min((job.machine.deadline() for job in self.jobs.values() if not job.state.over), default=math.inf)
