"""What people and programs ask for: stop, preempt, restart, resume, save; each is answered in words.

Where processes may be alive, an end is a wish that takes its time; otherwise it comes at once.
"""

from typing import Final

from zrun.core.states import FaultClass
from zrun.machine.ending import STOP
from zrun.machine.events import Command
from zrun.machine.faults import BUSY, PATIENCE, SETTLE
from zrun.machine.moves import ORDERED, TRAINING, Stage
from zrun.machine.nodes import is_member
from zrun.machine.orders import KILL_S
from zrun.machine.starting import BACKOFF
from zrun.machine.state import Member, Spent, Wish
from zrun.machine.turn import Turn
from zrun.spec.job import JobSpec, spec_from_dict, spec_to_dict
from zrun.wire.order import End

GUARD_S: Final = 5.0
"""After an ending's own time: what is still there is ended at once."""


def obey(turn: Turn, command: Command) -> None:
    who = f" by {command.who}" if command.who else ""
    spec = turn.spec
    match command.what:
        case "stop":
            _leave(turn, Wish("stop", End.SAVE, spec.stop_grace_s, f"stop was asked for{who}"))
        case "stop_now":
            _leave(turn, Wish("stop", End.KILL, KILL_S, f"stop at once was asked for{who}", by_force=True))
        case "preempt":
            preempt(turn, command.within_s, f"preemption was asked for{who}")
        case "restart":
            _restart(turn, f"a new attempt was asked for{who}")
        case "resume":
            _resume(turn, command, who)
        case "save":
            _save(turn, who)
        case _:
            turn.record("unknown-command", what=command.what)


def duration_over(turn: Turn) -> None:
    why = "time: max_duration is over"
    _leave(turn, Wish("stop", End.SAVE, turn.spec.stop_grace_s, why, timed_out=True))


def preempt(turn: Turn, within_s: float | None, why: str) -> None:
    grace = turn.spec.preempt.grace_s
    within = grace if within_s is None else max(0.0, min(within_s, grace))
    _leave(turn, Wish("preempt", End.SAVE, within, why))


def notice_from(turn: Turn, node: Member, *, term_seen: bool) -> None:
    """A node's report says that it, or a rank, was told to go."""
    job = turn.job
    if job.over or not is_member(job, node.name) or job.stage in {Stage.STOPPING, Stage.RENEWING}:
        return
    if term_seen and node.attempt == job.attempt and job.stage in ORDERED:
        preempt(turn, None, f"SIGTERM came from outside on {node.name}")
    elif node.leaving_in_s is not None and job.current is not None:
        why = f"{node.name} leaves in {node.leaving_in_s:g} s"
        if len(job.current.seats) == 1:
            preempt(turn, node.leaving_in_s, why)
        elif job.stage in TRAINING:
            turn.open_incident(FaultClass.PREEMPTION, why)
            _renew(turn, min(node.leaving_in_s, turn.spec.preempt.grace_s), why)


def stop_guard(turn: Turn) -> None:
    """The ending's own time and a little more are over."""
    if turn.job.wish is not None and turn.job.wish.how is not End.KILL:
        turn.job.wish = turn.job.wish.at_once()
        turn.say(f"{turn.job.wish.why}; time is over, what is left is ended at once")


def _leave(turn: Turn, wish: Wish) -> None:
    job = turn.job
    if job.over:
        turn.record("command-ignored", what=wish.what, why=f"the job is {job.state} already")
        return
    if job.stage not in ORDERED:
        _leave_at_once(turn, wish)
        return
    if job.stage is Stage.STOPPING and job.wish is not None:
        _tighten(turn, job.wish, wish)
        return
    if job.stage in {Stage.SETTLING, Stage.ENDING} or (job.wish is not None and job.wish.how is End.KILL):
        wish = wish.at_once()
    job.wish = wish
    turn.forget(PATIENCE, BUSY, SETTLE)
    turn.wake_in(STOP, wish.within_s + GUARD_S)
    turn.move(Stage.STOPPING, wish.why)


def _leave_at_once(turn: Turn, wish: Wish) -> None:
    job = turn.job
    job.timed_out = wish.timed_out
    newest = max((c.step for c in job.checkpoints), default=None)
    words = "what was left could not be killed" if job.stuck else "no process was alive"
    words += f", the newest checkpoint is step {newest}" if newest is not None else ""
    turn.finish(Stage.PREEMPTED if wish.what == "preempt" else Stage.STOPPED, f"{wish.why}; {words}")


def _tighten(turn: Turn, old: Wish, new: Wish) -> None:
    """A second wish may make the end sooner or change its name from preempt to stop, never soften it."""
    what = "stop" if "stop" in {old.what, new.what} else old.what
    how = End.KILL if End.KILL in {old.how, new.how} else old.how
    within = min(old.within_s, new.within_s)
    force = old.by_force or new.by_force
    if (what, how, within, force) == (old.what, old.how, old.within_s, old.by_force):
        turn.record("command-ignored", what=new.what, why=f"under way already: {old.why}")
        return
    turn.job.wish = Wish(what, how, within, new.why, old.timed_out, force)
    turn.wake_in(STOP, within + GUARD_S)
    turn.say(new.why)


def _restart(turn: Turn, why: str) -> None:
    job = turn.job
    if job.stage is Stage.RETRYING:
        turn.forget(BACKOFF)
        turn.say(f"{why}: no more waiting")
    elif job.stage in TRAINING:
        _renew(turn, turn.spec.stop_grace_s, why)
    else:
        hint = "use resume" if job.over else f"it is {job.stage}"
        turn.record("command-ignored", what="restart", why=hint)


def _renew(turn: Turn, within_s: float, why: str) -> None:
    turn.job.wish = Wish("restart", End.SAVE, within_s, why)
    turn.forget(PATIENCE, BUSY)
    turn.wake_in(STOP, within_s + GUARD_S)
    turn.move(Stage.RENEWING, why)


def _resume(turn: Turn, command: Command, who: str) -> None:
    """A job that is over goes on; one that was only interrupted takes a changed job file from its next attempt on."""
    job, before = turn.job, turn.spec
    changed = _changed_spec(turn, command)
    if not job.over and not changed:
        turn.record("command-ignored", what="resume", why=f"the job is live: {job.state}")
        return
    begin_from = _resume_from(turn.spec, before, command)
    if begin_from or job.over:
        job.resume, job.launched_after = begin_from or "auto", job.attempt
    if job.stage in TRAINING:
        _renew(turn, turn.spec.stop_grace_s, f"the job was changed{who}")
    elif job.over:
        job.spent, job.timed_out, job.ended_at = Spent(), False, None
        turn.move(Stage.WAITING, f"resume was asked for{who}")


def _changed_spec(turn: Turn, command: Command) -> bool:
    told = command.options.get("spec")
    spec = spec_from_dict(told) if isinstance(told, dict) else turn.spec
    if spec == turn.spec:
        return False
    old, new = spec_to_dict(turn.spec), spec_to_dict(spec)
    turn.job.spec = spec
    turn.record("job-changed", fields=[name for name, value in new.items() if value != old.get(name)])
    return True


def _resume_from(spec: JobSpec, before: JobSpec, command: Command) -> str:
    """What a person says now, or "": what job.yaml said at an earlier launch was for that one."""
    told = command.options.get("resume")
    if isinstance(told, str):
        return told
    return spec.checkpoint.resume if spec.checkpoint.resume != before.checkpoint.resume else ""


def _save(turn: Turn, who: str) -> None:
    job = turn.job
    if job.stage is not Stage.RUNNING:
        turn.record("command-ignored", what="save", why=f"nothing to save while {job.stage}")
        return
    job.save += 1
    turn.record("save-asked", number=job.save, who=who)
