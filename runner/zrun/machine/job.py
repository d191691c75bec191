"""The job machine: every decision about one job, as `handle(event, number, now) -> actions` and `deadline()`.

Two rules: everything that changes the job passes through here, and nothing here reads a clock, a file or a socket.
It does not know what carries its actions out, nor whether an event is new or replayed from the journal.
"""

from collections import deque
from typing import Final

from zrun.core.ids import JobId
from zrun.machine import commands, ending, faults, nodes, starting
from zrun.machine.actions import Action, Note
from zrun.machine.events import (
    AttemptStarted,
    CheckpointCommitted,
    CheckpointsPruned,
    Command,
    CoordinatorStarted,
    DurationOver,
    Event,
    NodeGone,
    NodeHeard,
    NodeSilent,
    ProgressVerified,
    RankEnded,
    RollCalled,
    SaveFailed,
    Submitted,
    Suspected,
    Suspended,
    TimerFired,
)  # fmt: skip
from zrun.machine.moves import TRAINING, Stage
from zrun.machine.orders import give_orders
from zrun.machine.state import Job
from zrun.machine.turn import Turn
from zrun.spec.job import spec_from_dict

STORY: Final = 60
"""How many of the last lines an illegal move can tell."""


class JobMachine:
    """`job` may be read by anybody and changed by nobody else."""

    def __init__(self, job: JobId) -> None:
        self.job = Job(job)
        self._story: deque[str] = deque(maxlen=STORY)

    def deadline(self) -> float:
        """When TimerFired is due, in machine time; inf if never."""
        return self.job.due

    def handle(self, event: Event, number: int, now: float) -> list[Action]:
        """`number` names the event in the journal; `now` never goes back."""
        job = self.job
        self._story.append(f"{number} at {now:.3f} s, {job.stage}: {event}")
        turn = Turn(job, number, now, self._story)
        before = (job.state, job.reason)
        if job.spec is not None or isinstance(event, Submitted):
            heard = _take(turn, event)
            _fire(turn)
            _go_on(turn)
            give_orders(turn, heard)
        if (job.state, job.reason) != before:
            turn.actions.append(Note(job.state, job.reason, number))
        return turn.actions


def _take(turn: Turn, event: Event) -> str:
    """What the event says; the answer is the node that has just reported, if one did."""
    match event:
        case Submitted():
            _submitted(turn, event)
        case NodeHeard():
            return _heard(turn, event)
        case NodeGone():
            nodes.gone(turn, event)
        case NodeSilent():
            if nodes.silent(turn, event):
                faults.node_lost(turn, turn.job.nodes[event.node])
        case RankEnded():
            faults.rank_ended(turn, event)
        case AttemptStarted():
            starting.attempt_started(turn, event)
        case ProgressVerified():
            starting.progress_verified(turn, event)
        case CheckpointCommitted():
            starting.checkpoint_committed(turn, event)
        case CheckpointsPruned():
            starting.checkpoints_pruned(turn, event)
        case SaveFailed():
            starting.save_failed(turn, event)
        case Suspected():
            faults.suspected(turn, event)
        case RollCalled():
            faults.roll_called(turn, event)
        case Suspended():
            starting.suspended(turn, event)
        case Command():
            commands.obey(turn, event)
        case DurationOver():
            commands.duration_over(turn)
        case CoordinatorStarted():
            nodes.coordinator_started(turn, event)
        case TimerFired():
            pass
    return ""


def _submitted(turn: Turn, event: Submitted) -> None:
    job = turn.job
    if job.spec is not None:
        turn.record("submitted-again", job=event.job)
        return
    job.spec, job.run_dir, job.fresh = spec_from_dict(event.spec), event.run_dir, event.fresh
    job.resume = job.spec.checkpoint.resume
    job.submitted_at = turn.now
    job.reason = "submitted"


def _heard(turn: Turn, event: NodeHeard) -> str:
    node = nodes.heard(turn, event)
    if node is None:
        return ""
    faults.check_member(turn, node)
    starting.follow_setup(turn, node)
    commands.notice_from(turn, node, term_seen=event.term_seen)
    return event.node


def _fire(turn: Turn) -> None:
    """A timer is due by the very comparison that deadline() promised: at <= now."""
    timers = turn.job.timers
    while due := [name for name, at in timers.items() if at <= turn.now]:
        for name in due:
            if timers.pop(name, None) is not None:
                _timer(turn, name)


def _timer(turn: Turn, name: str) -> None:
    if name == nodes.RECONNECT:
        nodes.grace_over(turn)
        for node in nodes.members(turn.job):
            if node.silent:
                faults.node_lost(turn, node)
    elif name.startswith(nodes.LEASE):
        node = turn.job.nodes[name.removeprefix(nodes.LEASE)]
        node.silent = True
        faults.node_lost(turn, node)
    elif name in {faults.PATIENCE, faults.BUSY}:
        faults.patience_over(turn)
    elif name == ending.STOP:
        commands.stop_guard(turn)


def _go_on(turn: Turn) -> None:
    """Whatever the stage waits for may be there now; go on until it is not."""
    stage = None
    while stage is not turn.job.stage:
        stage = turn.job.stage
        match stage:
            case Stage.WAITING | Stage.RETRYING:
                starting.try_to_start(turn)
            case Stage.SETTLING:
                ending.settle(turn)
            case Stage.ENDING:
                ending.end(turn)
            case Stage.STOPPING | Stage.RENEWING:
                ending.leave(turn)
            case _ if stage in TRAINING:
                starting.finish_if_done(turn)
            case _:
                pass
