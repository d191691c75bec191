"""How an attempt ends and what comes after it: another attempt, the verdict, or the end that was asked for.

Everybody is ordered idle, and nothing goes on before all are, or their leases are over. Knows nothing about evidence.
"""

from zrun.core.states import FaultClass
from zrun.machine.budget import Decision, charge, decide
from zrun.machine.faults import SETTLE, evidence_is_in, reblame
from zrun.machine.moves import Stage
from zrun.machine.nodes import RECONNECT, members, still_up
from zrun.machine.poison import frame_of, in_a_step, strike_key
from zrun.machine.starting import BACKOFF, verify
from zrun.machine.state import AttemptRecord, Incident, Outcome
from zrun.machine.turn import Turn

STOP = "stop"


def settle(turn: Turn) -> None:
    """SETTLING -> ENDING when the evidence is in."""
    if not evidence_is_in(turn):
        return
    reblame(turn)
    turn.forget(SETTLE)
    incident = turn.job.open_incident
    turn.move(Stage.ENDING, incident.headline if incident is not None else turn.job.reason)


def end(turn: Turn) -> None:
    """ENDING -> RETRYING or FAILED when everybody is down."""
    job = turn.job
    attempt, incident = job.current, job.open_incident
    if attempt is None or incident is None:
        return
    up = still_up(job)
    if up:
        turn.say(f"{incident.headline}; waiting for {', '.join(up)}")
        return
    _over(turn, attempt, "fault", incident)
    if incident.verdict is None:
        reblame(turn)
    decision = decide(job, attempt, incident)
    _carry_out(turn, attempt, incident, decision)


def leave(turn: Turn) -> None:
    """STOPPING -> STOPPED or PREEMPTED, RENEWING -> RETRYING when everybody is down."""
    job = turn.job
    attempt, wish = job.current, job.wish
    if attempt is None or wish is None:
        return
    up = still_up(job)
    if up:
        return
    incident = job.open_incident
    own = incident if incident is not None and incident.attempt == attempt.number and not incident.suspicion else None
    outcome: Outcome = "preempted" if wish.what == "preempt" else "stopped"
    _over(turn, attempt, outcome, own)
    words = f"{wish.why}; {_saved(turn, attempt)}"
    given_up = [node.name for node in members(job) if node.silent]
    if given_up:
        words += f"; {', '.join(given_up)} did not answer, so its workers may still be alive"
    if own is not None:
        words += f"; meanwhile {own.headline}"
    if wish.what == "restart":
        if own is None:
            turn.close_incident("a new attempt was asked for")
        turn.move(Stage.RETRYING, words)
        return
    job.timed_out = wish.timed_out
    turn.finish(Stage.PREEMPTED if wish.what == "preempt" else Stage.STOPPED, words)


def _over(turn: Turn, attempt: AttemptRecord, outcome: Outcome, incident: Incident | None) -> None:
    attempt.outcome, attempt.ended_at, attempt.down = outcome, turn.now, True
    attempt.incident = incident.number if incident is not None else None
    turn.forget(RECONNECT, SETTLE, STOP)
    verify(turn, attempt.completed)
    turn.record("attempt-over", attempt=attempt.number, outcome=outcome, last_step=attempt.last_step)


def _carry_out(turn: Turn, attempt: AttemptRecord, incident: Incident, decision: Decision) -> None:
    job, verdict = turn.job, incident.verdict
    if verdict is None:
        return
    incident.decision = decision.reason
    _strike(turn, attempt, incident)
    charge(job, attempt, verdict, decision)
    for batch in decision.lift:
        job.quarantined.remove(batch)
        job.quarantine_lifted.append(batch)
        turn.record("quarantine-lifted", batch=batch)
    if decision.quarantine is not None and verdict.failure is not None:
        incident.fault = FaultClass.POISON
        job.quarantined.append(decision.quarantine)
        job.spent.poison_frame, job.spent.poison_step = frame_of(verdict.failure), verdict.failure.step or 0
        job.spent.poison_attempt = attempt.number
        turn.record("quarantined", batch=decision.quarantine, rank=verdict.rank)
    turn.record("decision", incident=incident.number, restart=decision.restart, reason=decision.reason)
    turn.update_incident(incident)
    if not decision.restart:
        turn.finish(Stage.FAILED, f"{incident.headline}: {decision.reason}")
        return
    if decision.backoff_s > 0:
        turn.wake_in(BACKOFF, decision.backoff_s)
    turn.move(Stage.RETRYING, f"{incident.headline}: {decision.reason}")


def _strike(turn: Turn, attempt: AttemptRecord, incident: Incident) -> None:
    failure = incident.verdict.failure if incident.verdict is not None else None
    if failure is not None and in_a_step(turn.job, attempt, failure):
        strikes = turn.job.spent.batch_strikes
        strikes[strike_key(failure)] = strikes.get(strike_key(failure), 0) + 1


def _saved(turn: Turn, attempt: AttemptRecord) -> str:
    """What a later launch will resume from, in words."""
    job = turn.job
    stops = [m.stopped_at for m in members(job) if m.attempt == attempt.number and m.stopped_at is not None]
    failed = [f for f in job.save_failures if f["attempt"] == attempt.number]
    newest = max((c.step for c in job.checkpoints), default=None)
    if stops and not any(f["step"] >= min(stops) for f in failed):
        return f"all ranks stopped after step {min(stops)} and saved it"
    last = f"the newest checkpoint is step {newest}" if newest is not None else "there is no checkpoint"
    if failed:
        return f"the last save failed ({failed[-1]['error']}), {last}"
    return f"not saved on the way out, {last}"
