"""What the job knows of its nodes: who answers, whose word is old, and when a node's processes are surely gone.

A report is the whole truth about its node, told by one life of its agent. Silence proves nothing before a lease is
over, and for a job on one node not even then (restart.fence). Knows nothing about faults or budgets.
"""

from typing import Final

from zrun.machine.events import CoordinatorStarted, NodeGone, NodeHeard, NodeSilent
from zrun.machine.moves import ORDERED, TRAINING
from zrun.machine.state import Job, Member
from zrun.machine.turn import Turn
from zrun.wire.report import Doing

RECONNECT_S: Final = 10.0
"""How long agents may take to find a coordinator that was restarted."""
RECONNECT: Final = "reconnect"
LEASE: Final = "lease:"
DEAD: Final = frozenset({Doing.IDLE, Doing.FINISHED})
"""No process of the job is alive."""


def heard(turn: Turn, event: NodeHeard) -> Member | None:
    """Take the report in; None if it is the word of an agent life that is over."""
    node = turn.job.nodes.setdefault(event.node, Member(event.node))
    if event.boot in node.past_boots:
        return None
    if node.boot and node.boot != event.boot:
        node.past_boots.add(node.boot)
    node.boot, node.doing, node.attempt, node.seen = event.boot, event.doing, event.attempt, event.seen
    node.settled, node.collected = event.settled, event.collected
    node.stopped_at, node.saved_at, node.step = event.stopped_at, event.saved_at, event.step
    node.leaving_in_s, node.warned = event.leaving_in_s, event.warned
    _take_remains(turn, node, event)
    node.address, node.peer_port = event.address, event.peer_port
    if node.silent and is_member(turn.job, node.name) and turn.job.stage in TRAINING:
        turn.say(f"{node.name} is heard again")
    node.heard_at, node.fresh, node.silent, node.gone = turn.now, True, False, ""
    turn.forget(LEASE + event.node)
    current = turn.job.current
    if current is not None and event.attempt == current.number and event.ranks and current.seat_of(event.node):
        current.ranks[event.node] = event.ranks
    _take_store(turn, event)
    _take_steps(turn.job)
    return node


def _take_remains(turn: Turn, node: Member, event: NodeHeard) -> None:
    """What its processes left: gone, which is told once, or alive though killed."""
    if event.swept and event.swept != node.swept:
        new = [words for words in event.swept if words not in node.swept]
        turn.record("swept", node=node.name, attempt=event.attempt, count=len(new), what=new)
    if event.stuck != node.stuck:
        turn.record("cannot-be-killed" if event.stuck else "ended-after-all", node=node.name, attempt=event.attempt,
                    what=list(event.stuck or node.stuck))  # fmt: skip
    node.swept, node.stuck = event.swept, event.stuck


def _take_store(turn: Turn, event: NodeHeard) -> None:
    """The first node of the newest attempt has picked the port of its store (or another one: the first was taken)."""
    current = turn.job.current
    seat = current.seat_of(event.node) if current is not None else None
    if current is None or seat is None or seat.node_rank or event.attempt != current.number or not event.master_port:
        return
    if event.boot == seat.boot and event.master_port != current.master_port:
        if current.master_port:
            turn.record("store-moved", attempt=current.number, node=event.node, port=event.master_port)
        current.master_port = event.master_port


def _take_steps(job: Job) -> None:
    current = job.current
    if current is None:
        return
    members = [job.nodes[name] for name in current.nodes]
    if all(m.attempt == current.number for m in members):
        current.completed = max(current.completed, min(m.step for m in members))
        current.last_step = max(current.last_step or 0, current.completed) or None


def gone(turn: Turn, event: NodeGone) -> None:
    """A goodbye starts the lease; it is no proof by itself."""
    node = turn.job.nodes.get(event.node)
    if node is None or node.boot != event.boot:
        return
    node.gone = event.why or "it said goodbye"
    if is_member(turn.job, event.node) and not turn.job.over:
        turn.wake_in(LEASE + event.node, turn.spec.restart.lease_s)


def silent(turn: Turn, event: NodeSilent) -> bool:
    """True if the silence counts now; not while agents may still be finding a restarted coordinator."""
    node = turn.job.nodes.get(event.node)
    if node is None or node.boot != event.boot or node.silent or RECONNECT in turn.job.timers:
        return False
    node.silent = True
    turn.forget(LEASE + event.node)
    return True


def coordinator_started(turn: Turn, _event: CoordinatorStarted) -> None:
    """All that was heard is old; silence starts to count again after the grace and one lease."""
    for node in turn.job.nodes.values():
        node.fresh = node.silent = False
        turn.forget(LEASE + node.name)
    if turn.job.stage in ORDERED:
        turn.wake_in(RECONNECT, RECONNECT_S + turn.spec.restart.lease_s)


def grace_over(turn: Turn) -> None:
    """Agents had their time to come back: who did not is silent."""
    for node in turn.job.nodes.values():
        if not node.fresh:
            node.silent = True


def is_member(job: Job, node: str) -> bool:
    """Does it hold a seat of the newest attempt?"""
    return job.current is not None and job.current.seat_of(node) is not None


def lost(job: Job, node: Member) -> bool:
    """Its lease is over, and that is enough to go on without it."""
    if not node.silent or job.current is None or job.spec is None:
        return False
    given_up = job.wish is not None and job.wish.by_force
    return len(job.current.seats) > 1 or job.spec.restart.fence == "lease" or given_up


def down(job: Job, node: Member) -> bool:
    """Surely no process of the newest attempt is alive there, and none will be."""
    if lost(job, node):
        return True
    if job.current is None or not node.fresh or node.silent or node.doing not in DEAD:
        return False
    seat = job.current.seat_of(node.name)
    return seat is None or node.boot != seat.boot or node.seen >= job.current.number


def members(job: Job) -> list[Member]:
    """The nodes of the newest attempt, in the order of their seats."""
    return [job.nodes[name] for name in job.current.nodes] if job.current is not None else []


def still_up(job: Job) -> list[str]:
    """What keeps the next attempt waiting, in words; empty when everybody is surely down."""
    return [f"{node.name} ({_word(node)})" for node in members(job) if not down(job, node)]


def strays(job: Job) -> list[str]:
    """Nodes that are not down though the attempt they run is over."""
    return [f"{node.name} ({_word(node)}, attempt {node.attempt})" for node in job.nodes.values()
            if node.fresh and not node.silent and node.doing not in DEAD]  # fmt: skip


def _word(node: Member) -> str:
    if node.silent:
        return "silent; its workers may be alive"
    if not node.fresh:
        return "not heard again yet"
    return "not ordered yet" if node.doing is Doing.IDLE else node.doing.value
