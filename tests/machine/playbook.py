"""A script of the job machine: `>>` an event in, `<<` what it must answer.

Orders, opened and closed incidents and the end must all be named, in order; notes, records and updates may be left
out. Every script also checks that replaying its journal gives the same answers.
"""

from dataclasses import dataclass
from typing import Any

from zrun.core.failure import Failure, FailureKind
from zrun.core.ids import JobId
from zrun.core.states import JobState
from zrun.machine.actions import Action, CloseIncident, Finish, Give, Note, OpenIncident, Record, UpdateIncident
from zrun.machine.events import (
    AttemptStarted,
    CheckpointCommitted,
    Command,
    Event,
    NodeGone,
    NodeHeard,
    NodeSilent,
    ProgressVerified,
    RankEnded,
    Submitted,
    Suspected,
    TimerFired,
)
from zrun.machine.job import JobMachine
from zrun.machine.state import Job
from zrun.spec.job import JobSpec, spec_to_dict
from zrun.wire.report import Doing

JOB = JobId("gpt2-7f3a91")


@dataclass(frozen=True)
class After:
    """Time passes; deadlines that come meanwhile fire."""

    seconds: float


class Expected:
    """One action, by the fields that matter."""

    def __init__(self, kind: type[Any], **fields: Any) -> None:
        self.kind = kind
        self.fields = fields

    def matches(self, action: Action) -> bool:
        return isinstance(action, self.kind) and all(_agree(self, action, k, v) for k, v in self.fields.items())

    def __repr__(self) -> str:
        told = ", ".join(f"{k}={v!r}" for k, v in self.fields.items())
        return f"{self.kind.__name__}({told})"


def _agree(expected: Expected, action: Any, name: str, value: Any) -> bool:
    if name in {"run", "ends", "collects", "save", "release", "attempt"} and isinstance(action, Give):
        order = action.order
        told = {
            "run": order.run.attempt if order.run else None,
            "ends": order.ending.how.value if order.ending else None,
            "collects": order.collect,
            "save": order.save,
            "release": order.release,
            "attempt": order.attempt,
        }
        return bool(told[name] == value)
    found = getattr(action, name)
    return value in found if isinstance(value, str) and name in {"reason", "headline", "resolution"} else found == value


def gives(node: str, **fields: Any) -> Expected:
    """run=ATTEMPT, ends=save|term|kill, collects=INCIDENT, save=N, release=True; what is not said is not compared."""
    return Expected(Give, node=node, **fields)


def says(state: JobState, reason: str = "") -> Expected:
    return Expected(Note, state=state, reason=reason)


def opens(fault: str, headline: str = "", **fields: Any) -> Expected:
    return Expected(OpenIncident, fault=fault, headline=headline, **fields)


def closes(resolution: str = "", **fields: Any) -> Expected:
    return Expected(CloseIncident, resolution=resolution, **fields)


def finishes(state: JobState, reason: str = "", **fields: Any) -> Expected:
    return Expected(Finish, state=state, reason=reason, **fields)


def records(what: str) -> Expected:
    return Expected(Record, what=what)


class Playbook:
    """Actions that no `<<` named before the next `>>` (or before `done`) are an error."""

    def __init__(self, spec: JobSpec | None = None) -> None:
        self.machine = JobMachine(JOB)
        self.now = 0.0
        self.journal: list[tuple[int, float, Event, list[Action]]] = []
        self._open: list[Action] = []
        self._script: list[str] = []
        self.spec = spec or JobSpec(name="gpt2", run=["train.py"], nproc_per_node=2)

    @property
    def job(self) -> Job:
        return self.machine.job

    def __rshift__(self, event: Event | After) -> "Playbook":
        self._nothing_left()
        if isinstance(event, After):
            self._script.append(f">> {event.seconds:g} s pass")
            until = self.now + event.seconds
            while self.machine.deadline() <= until:
                self.now = max(self.now, self.machine.deadline())
                self._handle(TimerFired())
            self.now = until
        else:
            self._script.append(">> Submitted" if isinstance(event, Submitted) else f">> {event}")
            self.now += 0.01
            self._handle(event)
        return self

    def __lshift__(self, expected: Expected) -> "Playbook":
        self._script.append(f"<< {expected}")
        for place, action in enumerate(self._open):
            if expected.matches(action):
                del self._open[place]
                return self
            if not _optional(action) and not _optional_kind(expected.kind):
                break
        raise AssertionError(self._told(f"expected {expected}, but the machine answers"))

    def given(self, *events: Event | After) -> "Playbook":
        """What these are answered with is another test's concern."""
        for event in events:
            self >> event
            self._open.clear()
        return self

    def done(self) -> Job:
        """Everything was named, and the journal replays to the same answers."""
        self._nothing_left()
        again = JobMachine(JOB)
        for number, now, event, actions in self.journal:
            assert again.handle(event, number, now) == actions, f"replay differs at event {number}: {event}"
        assert again.job == self.job
        return self.job

    def _handle(self, event: Event) -> None:
        number = len(self.journal) + 1
        actions = self.machine.handle(event, number, self.now)
        assert all(action.because == number for action in actions)
        self.journal.append((number, self.now, event, actions))
        self._open += actions

    def _nothing_left(self) -> None:
        if any(not _optional(action) for action in self._open):
            raise AssertionError(self._told("nobody expected"))
        self._open = []

    def _told(self, what: str) -> str:
        story = "\n  ".join(self._script)
        answers = "\n  ".join(str(action) for action in self._open) or "nothing"
        return f"{what}\n  {answers}\nafter\n  {story}"


def _optional(action: Action) -> bool:
    return _optional_kind(type(action))


def _optional_kind(kind: type[Any]) -> bool:
    return issubclass(kind, Note | Record | UpdateIncident)


def submitted(spec: JobSpec) -> Submitted:
    return Submitted(JOB, spec_to_dict(spec), "/runs/gpt2-7f3a91")


def heard(node: str, doing: str = "idle", attempt: int = 0, *, seen: int | None = None, boot: str = "",
          **more: Any) -> NodeHeard:  # fmt: skip
    """`seen` is the attempt if not told; the boot of node a is a1 if not told."""
    return NodeHeard(node, boot or f"{node}1", Doing(doing), attempt, attempt if seen is None else seen, **more)


def gone(node: str, why: str = "its connection ended", boot: str = "") -> NodeGone:
    return NodeGone(node, boot or f"{node}1", why)


def silent(node: str, boot: str = "") -> NodeSilent:
    return NodeSilent(node, boot or f"{node}1")


def killed(rank: int, node: str = "a", at: float = 1.0, **more: Any) -> Failure:
    known: dict[str, Any] = {"signal": "SIGKILL", "step": 61, "phase": "step"}
    return Failure(rank, node, FailureKind.SIGNALED, at, **(known | more))


def raised(rank: int, exception: str = "ValueError", node: str = "a", at: float = 1.0, **more: Any) -> Failure:
    known: dict[str, Any] = {"message": "bad sample", "where": "train.py:10", "step": 61, "phase": "step",
                             "exit_code": 1}  # fmt: skip
    return Failure(rank, node, FailureKind.RAISED, at, exception=exception, **(known | more))


def ended(node: str, attempt: int, *failures: Failure, age_s: float | None = None) -> RankEnded:
    return RankEnded(node, attempt, [f.to_dict() for f in failures], age_s)


def started(attempt: int, resumed: int | None = 0) -> AttemptStarted:
    return AttemptStarted(attempt, (resumed or 0) + 1, resumed, f"/ckpt/step-{resumed:06d}" if resumed else None)


def verified(attempt: int, step: int) -> ProgressVerified:
    return ProgressVerified(attempt, step)


def committed(attempt: int, step: int) -> CheckpointCommitted:
    return CheckpointCommitted(attempt, step, f"e0-s{step:06d}-0", f"/ckpt/step-{step:06d}", 8)


def suspects(attempt: int, rank: int = 1, *, provable: bool = False, cleared: bool = False,
             blind_s: float = 2.5, busy: bool = False) -> Suspected:  # fmt: skip
    return Suspected(attempt, [rank], "stopped" if provable else "not-arrived", provable,
                     f"1 of 2 ranks in all_reduce #17; rank {rank} not there: data.py:10", ["the others wait"],
                     step=61, node="a", cleared=cleared, blind_s=blind_s, busy=busy)  # fmt: skip


def asks(what: str, within_s: float | None = None, **options: Any) -> Command:
    return Command(what, "a person", within_s, options)


def running(spec: JobSpec | None = None, nodes: str = "a") -> Playbook:
    """A job whose first attempt has made steps on these nodes."""
    play = Playbook(spec)
    play.given(submitted(play.spec), *[heard(node) for node in nodes])
    return play.given(*[heard(node, "running", 1) for node in nodes], started(1))


def fails(play: Playbook, attempt: int, *failures: Failure, step: int = 0) -> Playbook:
    """One node: a rank ends badly, the node says so, and everybody is ended."""
    said: list[Event] = [ended("a", attempt, *failures), heard("a", "failed", attempt, step=step)]
    return play.given(*said, heard("a", "idle", attempt, step=step))


def goes_on(play: Playbook, attempt: int, resumed: int = 0) -> Playbook:
    """The next attempt gets going on node a."""
    return play.given(heard("a", "running", attempt), started(attempt, resumed))


def spec_of(nodes: int = 1, **more: Any) -> JobSpec:
    return JobSpec(name="gpt2", run=["train.py"], nodes_min=nodes, nodes_max=nodes, nproc_per_node=2, **more)
