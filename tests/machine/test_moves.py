"""The table of moves, its page, and what no order of events may do to the machine."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine.playbook import JOB, heard, killed, raised, spec_of, submitted, suspects

from zrun.machine.actions import Action, CloseIncident, Finish, OpenIncident
from zrun.machine.events import (
    AttemptStarted,
    CheckpointCommitted,
    Command,
    CoordinatorStarted,
    DurationOver,
    Event,
    NodeGone,
    NodeSilent,
    ProgressVerified,
    RankEnded,
    SaveFailed,
    Suspended,
    TimerFired,
)
from zrun.machine.job import JobMachine
from zrun.machine.moves import MOVES, OVER, SHOWN, IllegalMove, Stage, states_page
from zrun.machine.state import Job
from zrun.machine.turn import Turn
from zrun.wire.report import Doing

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_states_is_the_table() -> None:
    assert (ROOT / "docs" / "states.md").read_text() == states_page(), "python -m zrun.machine.moves > docs/states.md"


def test_every_stage_shows_as_a_state_and_has_its_moves() -> None:
    assert set(SHOWN) == set(MOVES) == set(Stage)


def test_nothing_but_resume_leads_out_of_an_end() -> None:
    assert all(MOVES[stage] == {Stage.WAITING: "resume"} for stage in OVER)


def test_every_stage_can_be_reached_and_left() -> None:
    reached = {Stage.WAITING}
    while more := {new for old in reached for new in MOVES[old]} - reached:
        reached |= more
    assert reached == set(Stage)


def test_an_illegal_move_raises_with_the_story_so_far() -> None:
    machine = JobMachine(JOB)
    machine.handle(submitted(spec_of()), 1, 0.0)
    turn = Turn(machine.job, 2, 0.1, machine._story)
    with pytest.raises(IllegalMove, match=r"(?s)no move from waiting to running; the story so far:.*Submitted"):
        turn.move(Stage.RUNNING, "no reason")


names = st.sampled_from(["a", "b", "c"])
boots = st.sampled_from(["1", "2"])
attempts = st.integers(0, 4)
steps = st.integers(0, 100)
failures = st.sampled_from([
    killed(0).to_dict(), killed(3, "b").to_dict(), raised(1, batch="e0-s000061-7f3a9c21").to_dict(),
    raised(0, "ImportError", step=None, phase="setup").to_dict(), {"rank": "nonsense"}, {},
])  # fmt: skip


@st.composite
def node_heard(draw: st.DrawFn) -> Event:
    name = draw(names)
    more: dict[str, Any] = {
        "seen": draw(attempts), "boot": name + draw(boots), "settled": draw(st.booleans()), "collected": draw(attempts),
        "step": draw(steps), "stopped_at": draw(st.none() | steps), "term_seen": draw(st.integers(0, 9)) == 0,
        "leaving_in_s": 30.0 if draw(st.integers(0, 9)) == 0 else None,
    }  # fmt: skip
    return heard(name, draw(st.sampled_from(list(Doing))).value, draw(attempts), **more)


events = st.one_of(
    node_heard(),
    node_heard(),
    node_heard(),
    st.builds(NodeGone, names, st.sampled_from(["a1", "b1", "c2"]), st.just("gone")),
    st.builds(NodeSilent, names, st.sampled_from(["a1", "b1", "c2"])),
    st.builds(RankEnded, names, attempts, st.lists(failures, max_size=3), st.none() | st.floats(0, 5)),
    st.builds(AttemptStarted, attempts, steps, st.none() | steps),
    st.builds(ProgressVerified, attempts, steps),
    st.builds(CheckpointCommitted, attempts, steps, st.just("b"), st.just("/c"), st.just(1)),
    st.builds(SaveFailed, attempts, steps, st.just("full")),
    st.builds(suspects, attempts, st.integers(0, 3), provable=st.booleans(), cleared=st.booleans()),
    st.builds(Suspended, attempts, st.booleans()),
    st.builds(Command, st.sampled_from(["stop", "stop_now", "preempt", "restart", "resume", "save", "dance"])),
    st.just(DurationOver()),
    st.just(CoordinatorStarted()),
    st.just(TimerFired()),
)


class Watch:
    """What has to hold after every event."""

    def __init__(self) -> None:
        self.open: set[int] = set()

    def check(self, job: Job, event: Event, before: Stage, actions: list[Action]) -> None:
        if before in OVER and not isinstance(event, Command):
            assert job.stage is before
        for action in actions:
            if isinstance(action, OpenIncident):
                self.open.add(action.number)
            if isinstance(action, CloseIncident):
                self.open.remove(action.number)
            if isinstance(action, Finish):
                assert not self.open
        assert len(self.open) <= 1
        assert self.open == {i.number for i in job.incidents if i.open}
        assert [a.number for a in job.attempts] == list(range(1, len(job.attempts) + 1))
        assert all(a.outcome is not None for a in job.attempts[:-1])
        if job.over:
            assert job.due == math.inf


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 2),
    st.lists(st.tuples(events, st.floats(0, 20)), max_size=40),
)
def test_no_order_of_events_breaks_the_machine(nodes: int, story: list[tuple[Event, float]]) -> None:
    machine, again, watch, now = JobMachine(JOB), JobMachine(JOB), Watch(), 0.0
    known: list[tuple[Event, float]] = [(submitted(spec_of(nodes=nodes)), 0.0), (heard("a"), 0.0), *story]
    for number, (event, wait) in enumerate(known):
        now += wait
        before = machine.job.stage
        actions = machine.handle(event, number, now)
        assert machine.deadline() > now
        watch.check(machine.job, event, before, actions)
        assert again.handle(event, number, now) == actions
    assert again.job == machine.job
