"""Which state each node should be in, as a function of the job's state: the only place where orders are made.

After every event the machine compares this with what each node was told, and gives what differs. Knows nothing about
how the job came to its stage.
"""

from typing import Final

from zrun.machine.actions import Give
from zrun.machine.moves import ORDERED, TRAINING, Stage
from zrun.machine.state import AttemptRecord, Job, Member, Seat
from zrun.machine.turn import Turn
from zrun.wire.order import End, Ending, JobOrder, LaunchPlan, Peer
from zrun.wire.report import Doing

KILL_S: Final = 2.0
"""How long ending at once may take."""


def give_orders(turn: Turn, heard: str = "") -> None:
    """Give each node what it was not told yet; node `heard` has just reported and is told again if it disagrees."""
    for node in turn.job.nodes.values():
        order = wanted(turn.job, node)
        if order is None:
            continue
        told = node.order if node.order_boot == node.boot else None
        if told is None or _differs(told, order) or (node.name == heard and disagrees(node, order)):
            order = _numbered(order, turn.number)
            node.order, node.order_boot = order, node.boot
            turn.actions.append(Give(node.name, node.boot, order, turn.number))


def wanted(job: Job, node: Member) -> JobOrder | None:
    """None: the node was never told anything, and need not be. `because` is filled in when the order is given."""
    current = job.current
    if current is None or not node.boot:
        return None
    if job.over:
        told = node.order is not None or node.attempt > 0
        return JobOrder(attempt=current.number, release=True, why=job.reason) if told else None
    seat = current.seat_of(node.name)
    if seat is None or job.stage not in ORDERED:
        return _idle(job, node)
    if job.stage in TRAINING or job.stage is Stage.SETTLING:
        return _run(job, current, seat, node)
    ending = _ending(job)
    return JobOrder(ending=ending, attempt=current.number, collect=_collect(job), why=ending.why)


def disagrees(node: Member, order: JobOrder) -> bool:
    """Does the node's report show that it is not in the ordered state, nor on its way there?"""
    if order.run is not None:
        return node.seen < order.run.attempt
    if order.release:
        return node.doing is not Doing.IDLE
    if order.ending is not None:
        return node.seen < order.attempt or node.doing not in {Doing.IDLE, Doing.FINISHED, Doing.STOPPING}
    return node.doing is not Doing.IDLE


def _idle(job: Job, node: Member) -> JobOrder | None:
    told = node.order if node.order_boot == node.boot else None
    if node.doing not in {Doing.IDLE, Doing.FINISHED} and node.attempt > 0:
        if told is not None and told.ending is not None and told.attempt == node.attempt:
            return told
        why = f"attempt {node.attempt} is over"
        return JobOrder(ending=Ending(End.KILL, KILL_S, why), attempt=node.attempt, why=why)
    if told is None or told.ending is not None or told.release:
        return told
    return JobOrder(attempt=job.attempt, why=job.reason)


def _run(job: Job, current: AttemptRecord, seat: Seat, node: Member) -> JobOrder:
    if node.boot != seat.boot:
        return JobOrder(attempt=current.number, collect=_collect(job), why="this attempt began in an earlier life")
    return JobOrder(
        run=plan(job, current, seat), attempt=current.number, collect=_collect(job), save=job.save,
        why=f"attempt {current.number}",
    )  # fmt: skip


def plan(job: Job, current: AttemptRecord, seat: Seat) -> LaunchPlan:
    """The attempt as this seat has to run it; the same for as long as the attempt lives, but for the store's port."""
    spec = job.spec
    if spec is None:
        raise AssertionError("a seat without a job")
    head = current.seats[0]
    return LaunchPlan(
        attempt=current.number, node_rank=seat.node_rank, nnodes=len(current.seats),
        nproc=spec.nproc_per_node if isinstance(spec.nproc_per_node, int) else 0,
        master_addr="127.0.0.1" if len(current.seats) == 1 else head.address or head.node,
        master_port=current.master_port if seat.node_rank else 0,
        peers=[Peer(other.node, other.address, other.peer_port) for other in current.seats],
        cause=current.cause, resume=current.resume, fresh=current.fresh,
        quarantined=list(current.quarantined), skip_setup=seat.node in current.setup_done,
    )  # fmt: skip


def _ending(job: Job) -> Ending:
    if job.wish is not None:
        return Ending(job.wish.how, job.wish.within_s, job.wish.why)
    incident = job.open_incident
    return Ending(
        End.KILL, KILL_S, incident.headline if incident is not None else job.reason, keep=incident is not None
    )


def _collect(job: Job) -> int:
    """Evidence is wanted for an open incident of this very attempt."""
    incident = job.open_incident
    return incident.number if incident is not None and incident.attempt == job.attempt else 0


def _differs(old: JobOrder, new: JobOrder) -> bool:
    """`why` and `because` are words for people, `keep` says how to get there: none is a new state."""
    return _bare(old) != _bare(new)


def _bare(order: JobOrder) -> JobOrder:
    ending = order.ending and Ending(order.ending.how, order.ending.within_s, "")
    return JobOrder(order.run, ending, order.attempt, order.collect, order.save, order.release)


def _numbered(order: JobOrder, number: int) -> JobOrder:
    return JobOrder(order.run, order.ending, order.attempt, order.collect, order.save, order.release, order.why, number)
