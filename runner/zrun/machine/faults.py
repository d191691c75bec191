"""From the first sign of a fault to its evidence: incidents, suspicions, and the wait for echoes.

Whose fault it was says blame.py; what is done after it says ending.py. Knows nothing about budgets.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from zrun.core.failure import Failure, FailureKind
from zrun.core.states import FaultClass
from zrun.machine.blame import blame
from zrun.machine.echo import Weight, weigh
from zrun.machine.events import RankEnded, RollCalled, Suspected
from zrun.machine.moves import ORDERED, TRAINING, Stage
from zrun.machine.nodes import down, is_member, lost, members
from zrun.machine.state import AttemptRecord, Incident, Job, Member
from zrun.machine.turn import Turn
from zrun.wire.order import End
from zrun.wire.report import Doing

SETTLE: Final = "settle"
SETTLE_S: Final = 1.0
"""How long better evidence and echoes are waited for."""
SURE_S: Final = 0.3
"""The same once a rank has said with a traceback of its own what it raised: no echo can take that back."""
COLLECT_S: Final = 3.0
"""How long stacks of a hang are waited for before the first signal."""
PATIENCE: Final = "patience"
BUSY: Final = "busy"
BUSY_S: Final = 600.0
"""So long moving files can put off the end of a suspect; a rank may print for ever."""
PATIENCE_S: Final = 30.0
"""Until two pauses were seen."""
GIL_TIMES: Final = 2.0
"""Patience that is not stated is so many times as long with a rank whose native code holds the interpreter: such calls
come back more often than others.
"""


def rank_ended(turn: Turn, event: RankEnded) -> None:
    """All failures of one node so far; the newest telling replaces the one before."""
    job = turn.job
    current = job.current
    if current is None or event.attempt != current.number or not is_member(job, event.node):
        return
    failures = [f for f in map(_read, event.failures) if f is not None]
    for failure in failures:
        current.last_step = max(current.last_step or 0, failure.step or 0) or None
    if not current.down:
        current.ends[event.node] = failures
    real = any(f.kind is not FailureKind.ENDED_BY_US for f in failures)
    node = job.nodes[event.node]
    if real and node.doing is not Doing.FAILED and job.stage in TRAINING | {Stage.SETTLING}:
        node.settled = False  # its report is on the way and says whether better evidence is coming
    if job.stage in TRAINING and real:
        fault(turn, failures=failures)
    elif job.stage in {Stage.STOPPING, Stage.RENEWING} and real:
        _fault_while_leaving(turn, failures)
    else:
        _more_evidence(turn, event.node, failures)
    incident = _of_this_attempt(job)
    if incident is not None and incident.detected_s is None and event.age_s is not None:
        incident.detected_s = max(0.0, event.age_s)


def fault(turn: Turn, *, failures: Sequence[Failure] = (), lost_node: str = "", said: str = "") -> None:
    """The attempt is at an end: open the incident (or take over the suspicion) and settle."""
    incident = _incident_for(turn, failures, lost_node, said)
    hang = incident.fault is FaultClass.HANG
    turn.forget(PATIENCE, BUSY)
    turn.wake_in(SETTLE, COLLECT_S if hang else SETTLE_S)
    turn.move(Stage.SETTLING, incident.headline)
    _settle_sooner(turn, incident)


def check_member(turn: Turn, node: Member) -> None:
    """Does a member's report itself show that the attempt cannot go on?"""
    job = turn.job
    current = job.current
    seat = current.seat_of(node.name) if current is not None else None
    if current is None or seat is None or job.stage not in ORDERED:
        return
    runs_it = node.attempt == current.number and node.doing is not Doing.IDLE
    ended_itself = not runs_it and node.doing is Doing.IDLE and node.seen >= current.number
    if node.boot != seat.boot and runs_it:
        _adopt(current, node)  # its agent began anew, but its word is that the attempt lives
    elif job.stage in {Stage.STOPPING, Stage.RENEWING}:
        if runs_it and node.doing is Doing.FAILED:
            _end_the_rest(turn)
    elif job.stage not in TRAINING:
        if not runs_it and (node.boot != seat.boot or (ended_itself and job.stage is Stage.SETTLING)):
            _lost_as_well(turn, node)
    elif runs_it and node.doing is Doing.FAILED:
        fault(turn, said=f"a rank on {node.name} ended badly")
    elif not runs_it and node.boot != seat.boot:
        fault(turn, lost_node=node.name, said=f"the agent of {node.name} began anew: its workers are gone")
    elif ended_itself:
        fault(turn, lost_node=node.name, said=f"the workers on {node.name} are gone: its agent ended them")


def node_lost(turn: Turn, node: Member) -> None:
    """A member's lease is over (or, on one node, its silence is only noted)."""
    job = turn.job
    if not is_member(job, node.name):
        return
    if not lost(job, node):
        turn.say(f"nothing is heard of {node.name}; its workers may be alive, so its agent is waited for "
                 f"(restart.fence: confirm)")  # fmt: skip
        return
    if job.stage in TRAINING:
        fault(turn, lost_node=node.name, said=f"nothing was heard of {node.name} for a lease")
        return
    _lost_as_well(turn, node)
    if job.stage in {Stage.STOPPING, Stage.RENEWING}:
        _end_the_rest(turn)


def suspected(turn: Turn, event: Suspected) -> None:
    """The hang judge speaks: name it at once, act on proof, or when patience is over."""
    job = turn.job
    if event.attempt != job.attempt or job.stage not in TRAINING or job.stage is Stage.SUSPENDED:
        return
    incident = _of_this_attempt(job)
    if event.cleared:
        if incident is not None and incident.suspicion:
            _moved_again(turn, incident)
        return
    if incident is None:
        incident = turn.open_incident(FaultClass.HANG, event.roll_call, suspicion=True)
        incident.detected_s = event.blind_s
    incident.suspected, incident.headline = event, event.roll_call
    turn.update_incident(incident)
    act = turn.spec.watchdog.on_hang
    if act == "notify":
        turn.say(f"suspected: {event.roll_call} (watchdog.on_hang: notify, so nothing is ended)")
    elif event.kind == "slow":
        turn.say(f"suspected: {event.roll_call}; slow is not hung, so nothing is ended")
    elif event.provable:
        fault(turn)
    elif event.busy:
        _wait_while_busy(turn, incident)
    elif PATIENCE not in job.timers:
        whole = patience_s(job) * (GIL_TIMES if event.kind == "gil-held" and _auto(job) else 1.0)
        wait = whole if incident.patience_left_s is None else incident.patience_left_s
        turn.wake_in(PATIENCE, wait)
        turn.say(f"suspected: {event.roll_call}; not proved, so it has {wait:.3g} s")


def _wait_while_busy(turn: Turn, incident: Incident) -> None:
    """Only time in which no files move counts against a suspect, but not for ever."""
    timers = turn.job.timers
    if PATIENCE in timers:
        incident.patience_left_s = max(0.0, timers[PATIENCE] - turn.now)
        turn.forget(PATIENCE)
    if BUSY not in timers:
        turn.wake_in(BUSY, BUSY_S)
    turn.say(f"suspected: {incident.headline}; it reads or writes files, saves or compiles, so it is waited for")


def roll_called(turn: Turn, event: RollCalled) -> None:
    """A reason for the incident of this attempt, whatever else is known of it."""
    incident = _of_this_attempt(turn.job)
    if incident is not None and event.attempt == turn.job.attempt and not incident.roll:
        incident.roll = tuple(event.because)
        reblame(turn)


def patience_over(turn: Turn) -> None:
    incident = _of_this_attempt(turn.job)
    if turn.job.stage in TRAINING and incident is not None and incident.suspicion:
        turn.record("patience-over", incident=incident.number)
        fault(turn)


def patience_s(job: Job) -> float:
    """Three times the longest pause seen, once two were seen; what the job file says wins."""
    told = job.spec.watchdog.patience_s if job.spec is not None else None
    if told is not None:
        return told
    return PATIENCE_S if job.pauses < 2 else 3.0 * job.longest_pause_s


def _auto(job: Job) -> bool:
    return job.spec is None or job.spec.watchdog.patience_s is None


def _settle_sooner(turn: Turn, incident: Incident) -> None:
    """Is the cause certain already? Then only what is on its way is waited for."""
    said = next((f for f in incident.failures if f.traceback and f.exception and weigh(f) is Weight.CAUSE), None)
    sooner = turn.now + SURE_S
    if said is None or incident.suspected is not None or turn.job.timers.get(SETTLE, 0.0) <= sooner:
        return
    turn.wake_at(SETTLE, sooner)
    turn.record("cause-certain", incident=incident.number,
                why=f"rank {said.rank} itself told of {said.exception}: echoes need not be waited for")  # fmt: skip


def evidence_is_in(turn: Turn) -> bool:
    """In SETTLING: every member told all it has, or the wait is over."""
    job = turn.job
    incident = _of_this_attempt(job)
    if SETTLE not in job.timers or incident is None:
        return True
    real = [f for f in incident.failures if f.kind is not FailureKind.ENDED_BY_US]
    if incident.suspected is None and real and all(weigh(f) is Weight.ECHO for f in real):
        return False
    return all(_told_all(job, incident, node) for node in members(job))


def reblame(turn: Turn) -> None:
    """Say again whose fault it was, from all that is known now."""
    incident = _of_this_attempt(turn.job)
    if incident is None:
        return
    verdict = blame(incident.failures, incident.suspected, incident.lost_nodes, ran_before=_ran_before(turn.job))
    verdict = replace(verdict, because=(*verdict.because[:1], *incident.roll, *verdict.because[1:]))
    if verdict != incident.verdict:
        incident.verdict, incident.fault, incident.headline = verdict, verdict.fault, verdict.headline
        turn.update_incident(incident)


def _ran_before(job: Job) -> bool:
    return any(attempt.started_at is not None for attempt in job.attempts)


def _read(told: dict[str, Any]) -> Failure | None:
    try:
        return Failure.from_dict(told)
    except (KeyError, ValueError, TypeError):
        return None  # an agent of another version: its report still says FAILED


def _incident_for(turn: Turn, failures: Sequence[Failure], lost_node: str, said: str) -> Incident:
    incident = _of_this_attempt(turn.job)
    suspicion = incident.suspected if incident is not None else None
    lost_nodes = [lost_node] if lost_node else []
    verdict = blame(failures, suspicion, lost_nodes, ran_before=_ran_before(turn.job))
    headline = said if said and verdict.failure is None else verdict.headline
    if incident is None:
        incident = turn.open_incident(verdict.fault, headline)
    incident.suspicion, incident.fault, incident.headline, incident.verdict = False, verdict.fault, headline, verdict
    incident.failures, incident.lost_nodes = list(failures), lost_nodes
    turn.update_incident(incident)
    return incident


def _of_this_attempt(job: Job) -> Incident | None:
    incident = job.open_incident
    return incident if incident is not None and incident.attempt == job.attempt else None


def _more_evidence(turn: Turn, node: str, failures: list[Failure]) -> None:
    incident = _of_this_attempt(turn.job)
    if incident is None or incident.suspicion or incident.decision:
        return  # what comes after the decision is of the cleanup, and changes no reason
    others = [f for f in incident.failures if f.node != node]
    incident.failures = sorted(others + failures, key=lambda f: (f.at, f.rank))
    reblame(turn)
    _settle_sooner(turn, incident)


def _fault_while_leaving(turn: Turn, failures: list[Failure]) -> None:
    if _of_this_attempt(turn.job) is None:
        _incident_for(turn, failures, "", "")
    else:
        _more_evidence(turn, failures[0].node, failures)
    _end_the_rest(turn)


def _end_the_rest(turn: Turn) -> None:
    """A common stop step cannot be reached any more: end what is left at once."""
    wish = turn.job.wish
    if wish is not None and wish.how is not End.KILL:
        turn.job.wish = wish.at_once()
        turn.say(f"{wish.why}; a fault came in between, so what is left is ended at once")


def _lost_as_well(turn: Turn, node: Member) -> None:
    """It may explain what so far were only echoes."""
    incident = _of_this_attempt(turn.job)
    if incident is not None and not incident.suspicion and node.name not in incident.lost_nodes:
        incident.lost_nodes.append(node.name)
        reblame(turn)


def _adopt(current: AttemptRecord, node: Member) -> None:
    current.seats = tuple(replace(seat, boot=node.boot) if seat.node == node.name else seat for seat in current.seats)


def _moved_again(turn: Turn, incident: Incident) -> None:
    job = turn.job
    blind = incident.suspected.blind_s if incident.suspected is not None else 0.0
    pause = turn.now - incident.opened_at + blind
    job.pauses += 1
    job.longest_pause_s = max(job.longest_pause_s, pause)
    turn.forget(PATIENCE, BUSY)
    turn.close_incident(f"false alarm: it moved again after {pause:.1f} s")
    turn.say(f"attempt {job.attempt} moved again after {pause:.1f} s")


def _told_all(job: Job, incident: Incident, node: Member) -> bool:
    if lost(job, node) or (node.doing is Doing.IDLE and down(job, node)):
        return True
    if incident.suspected is not None:
        return node.collected >= incident.number
    if node.doing is Doing.FAILED and not any(f.node == node.name for f in incident.failures):
        return False
    return node.settled
