"""The node machine's state and the few moves every part of it makes; decides nothing about when."""

from typing import Final

from zrun.agent.failures import failure_of
from zrun.agent.node_actions import KillAll, NodeAction, Say
from zrun.agent.node_record import AttemptRecord
from zrun.core.failure import Failure, FailureKind
from zrun.wire.order import JobOrder
from zrun.wire.report import Doing

ECHO_S: Final = 0.15
"""A rank's death is often heard of after the outcry of those who were talking to it."""
KILLED_ECHO_S: Final = 0.05
SETTLE_S: Final = 1.0
REMOVED_TOLD: Final = 64

MOVES: Final[dict[Doing, frozenset[Doing]]] = {
    Doing.IDLE: frozenset({Doing.SETUP, Doing.STARTING, Doing.STOPPING}),
    Doing.SETUP: frozenset({Doing.STARTING, Doing.FAILED, Doing.STOPPING}),
    Doing.STARTING: frozenset({Doing.RUNNING, Doing.FAILED, Doing.FINISHED, Doing.STOPPING}),
    Doing.RUNNING: frozenset({Doing.FAILED, Doing.FINISHED, Doing.STOPPING}),
    Doing.FAILED: frozenset({Doing.STOPPING}),
    Doing.FINISHED: frozenset({Doing.STOPPING}),
    Doing.STOPPING: frozenset({Doing.IDLE}),
}


class IllegalMoveError(Exception):
    """A bug of the node machine; the message holds the story so far."""


class NodeState:
    """One job on one node, for one life of the agent. `now` is the time of the event being handled."""

    def __init__(
        self, job: str, node: str, *, setup: bool, exit_s: float, setup_s: float | None, standby_bytes: int
    ) -> None:
        self.job, self.node = job, node
        self.setup = setup
        """The job has set-up commands that this node has not run yet."""
        self.exit_s, self.setup_s = exit_s, setup_s
        self.standby_bytes = standby_bytes
        """The most memory that a standby may take; 0: none are wanted."""
        self.standbys_asked = False
        self.standby_tries = 0
        self.now = 0.0
        self.doing = Doing.IDLE
        self.seen = 0
        self.record = AttemptRecord()
        self.order: JobOrder | None = None
        self.keeper_ready = False
        self.keeper_asked = False
        self.collecting = 0
        self.collect_until = 0.0
        self.last_look = False
        """The evidence being taken was told to hurry: all are to be killed."""
        self.collected = 0
        self.save_taken = 0
        self.term_seen = False
        self.left_behind: list[str] = []
        """What could not be ended or removed, as it was last tried."""
        self.removed: list[str] = []
        """What dead processes of the job had left outside its folders, since the newest attempt began."""
        self.leave = ""
        self.released = False
        self.out: list[NodeAction] = []
        self._story: list[str] = []

    def move(self, to: Doing) -> None:
        self._story = [*self._story[-40:], f"{self.now:.3f} {self.doing} -> {to} (attempt {self.record.attempt})"]
        if to not in MOVES[self.doing]:
            raise IllegalMoveError("\n".join(self._story))
        self.out.append(Say(f"{self.doing} -> {to}, attempt {self.record.attempt}"))
        self.doing = to

    def kill(self, why: str) -> None:
        """Everything of the job on this node, once; answered by Swept."""
        if not self.record.killing:
            self.record.killing = True
            self.out.append(KillAll(why))

    def found(self, left: list[str], removed: list[str]) -> None:
        """By the keeper, after it ended all there was."""
        self.left_behind = left
        self.removed = [*self.removed, *removed][-REMOVED_TOLD:]

    def failures(self, *, failing: bool | None = None) -> list[Failure]:
        """Of this attempt, by time. `failing`: does an exception still in flight count? Default: if any rank failed."""
        record = self.record
        job_failing = record.failed_at is not None if failing is None else failing
        why = record.ending.why if record.ending else ""
        found = [failure_of(s, self.node, job_failing=job_failing, why=why) for s in record.stories.values()]
        every = [record.node_failure, *found] if record.node_failure else found
        return sorted((f for f in every if f is not None), key=lambda f: f.at)

    @property
    def settled(self) -> bool:
        """False while better evidence comes: just after a failure, while an exception that is not final yet unwinds,
        and while this node still looks whether it has the checkpoint folder of the others.
        """
        record = self.record
        if record.folder_asked and not record.folder_shared and record.node_failure is None and not record.killing:
            return False
        if record.failed_at is None or self.now >= record.failed_at + SETTLE_S:
            return True
        first = self.failures()[:1]
        if first and first[0].kind == FailureKind.SIGNALED:  # that is certain, whatever others cry out afterwards
            return self.now >= record.failed_at + KILLED_ECHO_S
        if self.now < record.failed_at + ECHO_S:
            return False
        return not any(story.words is None and story.fresh_candidate() for story in record.living)
