"""From seats to steps: how an attempt begins, gets going and finishes by itself.

Knows nothing about faults but that an open incident closes when the attempt after it makes steps.
"""

from zrun.core.states import FaultClass
from zrun.machine.echo import says_disk_full
from zrun.machine.events import (
    AttemptStarted,
    CheckpointCommitted,
    CheckpointsPruned,
    ProgressVerified,
    SaveFailed,
    Suspended,
)
from zrun.machine.moves import TRAINING, Stage
from zrun.machine.nodes import RECONNECT, members, still_up, strays
from zrun.machine.placement import choose
from zrun.machine.state import AttemptRecord, CheckpointRecord, Incident, Job, Member, Seat
from zrun.machine.turn import Turn
from zrun.wire.report import Doing

BACKOFF = "backoff"


def try_to_start(turn: Turn) -> None:
    """In WAITING and RETRYING: begin the next attempt, or say what it waits for."""
    job = turn.job
    if BACKOFF in job.timers:
        return
    waits = strays(job) or ([] if job.current is None or job.current.down else still_up(job))
    if waits:
        turn.say(f"waiting until attempt {job.attempt} is surely over: {', '.join(waits)}")
        return
    seating = choose(job.nodes.values(), turn.spec, job.current.nodes if job.current is not None else ())
    if not seating.nodes:
        turn.say(seating.reason)
        return
    _begin(turn, seating.nodes, seating.reason)


def _begin(turn: Turn, nodes: tuple[str, ...], reason: str) -> None:
    job = turn.job
    incident = job.open_incident
    number = job.attempt + 1
    if job.attempts:
        job.restarts += 1
    cause = "" if number == 1 else f"incident {incident.number}: {incident.fault}" if incident else "asked for"
    record = AttemptRecord(
        number=number,
        seats=tuple(_seat(job.nodes[name], rank) for rank, name in enumerate(nodes)),
        cause=cause,
        ordered_at=turn.now,
        best_before=job.best_step,
        quarantined=tuple(job.quarantined),
        setup_done=frozenset(job.setup_done),
        resume=job.resume,
        fresh=job.fresh,
    )
    job.attempts.append(record)
    job.wish = None
    turn.forget(RECONNECT)
    turn.move(Stage.STARTING, f"attempt {number} {reason}" + (f" after {cause}" if cause else ""))
    turn.record("attempt-ordered", attempt=number, nodes=list(nodes), cause=cause)


def _seat(node: Member, rank: int) -> Seat:
    return Seat(node.name, node.boot, rank, node.address, node.peer_port)


def follow_setup(turn: Turn, node: Member) -> None:
    """SETUP is shown while any node runs the setup commands."""
    job = turn.job
    if job.current is None or node.attempt != job.attempt:
        return
    if node.doing in {Doing.STARTING, Doing.RUNNING, Doing.FINISHED}:
        job.setup_done.add(node.name)
    busy = [m.name for m in members(job) if m.attempt == job.attempt and m.doing is Doing.SETUP]
    if job.stage is Stage.STARTING and busy:
        turn.move(Stage.SETUP, f"setup commands run on {', '.join(busy)}")
    elif job.stage is Stage.SETUP and not busy:
        turn.move(Stage.STARTING, f"attempt {job.attempt}: set-up is done, workers start")


def attempt_started(turn: Turn, event: AttemptStarted) -> None:
    """Every rank has completed a step: the incident before it is over."""
    job = turn.job
    current = job.current
    if current is None or event.attempt != current.number:
        return
    if current.started_at is not None and (current.first_step != 0 or event.first_step == 0):
        return
    corrected = current.started_at is not None  # it only lived so far; its imports took long
    current.started_at = turn.now
    current.first_step = event.first_step
    current.last_step = max(current.last_step or 0, event.first_step)
    current.resumed_step = event.resumed_step
    current.resumed_from = event.resumed_from
    in_memory = event.resumed_tier == "memory"
    current.resumed_tier = "memory" if in_memory else "disk" if event.resumed_step else None
    current.skipped = list(event.skipped)
    _before_it(turn, current)
    for skipped in event.skipped:
        turn.record("checkpoint-passed-over", attempt=current.number, **skipped)
    came_from = f"began at step {event.first_step}"
    if event.resumed_step:
        came_from = f"resumed at step {event.resumed_step}{' from memory' if in_memory else ''}"
    if corrected:
        _correct_cost(turn, current, came_from)
    if job.stage not in {Stage.STARTING, Stage.SETUP}:
        return
    recovered(turn, came_from)
    turn.move(Stage.RUNNING, f"attempt {current.number} {came_from}")


def _before_it(turn: Turn, current: AttemptRecord) -> None:
    """A checkpoint that nobody told us of: the attempt before got that far while no coordinator listened."""
    earlier = [a for a in turn.job.attempts if a.number < current.number]
    step = current.resumed_step or 0
    if earlier and current.resume == "auto" and step > max(a.completed for a in earlier):
        _reached(earlier[-1], step)
        verify(turn, step)
        current.best_before = max(current.best_before, step)


def _reached(attempt: AttemptRecord, step: int) -> None:
    attempt.completed = max(attempt.completed, step)
    attempt.last_step = max(attempt.last_step or 0, step) or None


def recovered(turn: Turn, came_from: str) -> None:
    """Close the incident that the current attempt came after, with its cost."""
    incident, current = turn.job.open_incident, turn.job.current
    if incident is None or current is None or incident.attempt >= current.number:
        return
    _cost(turn, incident, current)
    turn.close_incident(f"attempt {current.number} {came_from}")


def _cost(turn: Turn, incident: Incident, current: AttemptRecord) -> None:
    incident.recovered_s = turn.now - incident.opened_at
    ended = next(a for a in turn.job.attempts if a.number == incident.attempt)
    if current.first_step == 0:
        incident.steps_lost = 0  # a script without steps
    elif current.first_step is not None:
        base = current.resumed_step if current.resumed_step is not None else current.first_step - 1
        incident.steps_lost = max(0, ended.reached - base)


def _correct_cost(turn: Turn, current: AttemptRecord, came_from: str) -> None:
    """The incident was closed when the attempt was only alive; now it is known where it went on."""
    before = [i for i in turn.job.incidents if i.attempt == current.number - 1 and i.recovered_s is not None]
    if before:
        _cost(turn, before[-1], current)
        before[-1].resolution = f"attempt {current.number} {came_from}"
        turn.update_incident(before[-1])
    if turn.job.stage is Stage.RUNNING:
        turn.say(f"attempt {current.number} {came_from}")


def progress_verified(turn: Turn, event: ProgressVerified) -> None:
    job = turn.job
    attempt = next((a for a in job.attempts if a.number == event.attempt), None)
    if attempt is None:
        return
    _reached(attempt, event.step)
    verify(turn, event.step)


def verify(turn: Turn, step: int) -> None:
    """Progress beyond anything before fills the budgets up again."""
    job = turn.job
    if step <= job.best_step:
        return
    job.best_step = step
    spent = job.spent
    if spent.restarts or spent.by_class or spent.without_progress:
        turn.record("budgets-refilled", step=step)
    spent.by_class.clear()
    spent.restarts = spent.without_progress = 0


def checkpoint_committed(turn: Turn, event: CheckpointCommitted) -> None:
    """A fact, also when it arrives after the end of its attempt."""
    known = any(c.attempt == event.attempt and c.step == event.step and c.tier == event.tier
                for c in turn.job.checkpoints)  # fmt: skip
    if known:
        return
    if event.attempt > turn.job.launched_after:
        turn.job.resume, turn.job.fresh = "auto", False  # from now on there is a checkpoint to go on from
    turn.job.checkpoints.append(
        CheckpointRecord(
            event.attempt, event.step, event.batch, event.path, event.bytes, event.seconds, event.tier
        )
    )  # fmt: skip
    for attempt in turn.job.attempts:
        if attempt.number == event.attempt:
            _reached(attempt, event.step)
            verify(turn, event.step)
    turn.record("checkpoint", attempt=event.attempt, step=event.step, bytes=event.bytes, seconds=event.seconds)


def checkpoints_pruned(turn: Turn, event: CheckpointsPruned) -> None:
    job = turn.job
    gone = [c for c in job.checkpoints if c.step in event.steps and c.attempt <= event.attempt and c.tier == "disk"]
    job.checkpoints = [c for c in job.checkpoints if c not in gone]
    if gone:
        turn.record("checkpoints-pruned", attempt=event.attempt, steps=[c.step for c in gone])


def save_failed(turn: Turn, event: SaveFailed) -> None:
    full = event.disk_full or says_disk_full(event.error)
    told = {"attempt": event.attempt, "step": event.step, "error": event.error, "disk_full": full}
    turn.job.save_failures.append(told)
    turn.record("save-failed", fault=FaultClass.DISK if full else FaultClass.CRASH, **told)


def suspended(turn: Turn, event: Suspended) -> None:
    """All ranks stopped from outside is never a hang."""
    job = turn.job
    if event.attempt != job.attempt or job.current is None:
        return
    if event.stopped and job.stage in TRAINING and job.stage is not Stage.SUSPENDED:
        incident = job.open_incident
        if incident is not None and incident.attempt == job.attempt:
            turn.close_incident("not a hang: all ranks are stopped from outside")
        turn.forget("patience", "busy")
        turn.move(Stage.SUSPENDED, "all ranks are stopped from outside (a scheduler's suspend, a debugger)")
    elif not event.stopped and job.stage is Stage.SUSPENDED:
        began = job.current.started_at is not None
        if began:
            recovered(turn, "runs again")
        turn.move(Stage.RUNNING if began else Stage.STARTING, f"attempt {job.attempt} runs again")


def finish_if_done(turn: Turn) -> None:
    """SUCCEEDED when every node of the attempt reports finished."""
    job = turn.job
    current = job.current
    if current is None or job.stage not in TRAINING or not all(_finished(job, m) for m in members(job)):
        return
    current.outcome, current.ended_at, current.down = "finished", turn.now, True
    recovered(turn, "finished")
    step = f" at step {current.last_step}" if current.last_step else ""
    helped = [words for node in members(job) for words in node.warned]
    ended = "every rank's script ended with code 0" if helped else "every rank ended by itself with code 0"
    turn.finish(Stage.SUCCEEDED, "; ".join([f"{ended}{step}", *helped, *_saves_failed(job)]))


def _saves_failed(job: Job) -> list[str]:
    """Of this launch, in words: a job can end well and yet have lost what it wanted to keep."""
    failed = [f for f in job.save_failures if f["attempt"] > job.launched_after]
    if not failed:
        return []
    newest = max((c.step for c in job.checkpoints), default=None)
    kept = f"newest checkpoint is step {newest}" if newest is not None else "there is no checkpoint"
    many = "1 save" if len(failed) == 1 else f"{len(failed)} saves"
    return [f"{many} failed ({failed[-1]['error'][:200]}), {kept}"]


def _finished(job: Job, node: Member) -> bool:
    return node.doing is Doing.FINISHED and node.attempt == job.attempt
