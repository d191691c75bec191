"""Five hundred bad days of a small cluster, and the proof that the simulator would see it if a rule were missing."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.stories import Plot, play
from tests.simulation.world import CALM, ROUGH, BrokenInvariantError, Bugs

from zrun.core.ids import JobId
from zrun.core.states import JobState
from zrun.machine import ending, faults, nodes, orders, starting
from zrun.machine.actions import Action, Note
from zrun.machine.events import Event, NodeHeard
from zrun.machine.job import JobMachine

STORIES = 600
TRIES = 400
"""A planted bug has to be caught by one of this many stories."""


def test_six_hundred_stories_hold() -> None:
    ends: Counter[JobState] = Counter()
    faults_seen: Counter[str] = Counter()
    for seed in range(STORIES):
        job, _ = play(seed)
        ends[job.state] += 1
        faults_seen.update(incident.fault.value for incident in job.incidents)
    assert ends[JobState.SUCCEEDED] > STORIES * 0.7
    assert set(ends) >= {JobState.SUCCEEDED, JobState.STOPPED, JobState.PREEMPTED}
    assert all(faults_seen[fault] > 50 for fault in ("crash", "hang", "node")), faults_seen


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_stories_hold() -> None:
    for seed in range(STORIES, 10_000):
        play(seed)


def test_a_coordinator_that_is_away_for_ten_leases_stops_no_worker() -> None:
    for seed in range(30):
        job, world = play(seed, plot=Plot(CALM, ("coordinator away",), 1, nodes=3, commands=False))
        assert (job.state, len(job.attempts), world.stopped_themselves) == (JobState.SUCCEEDED, 1, 0)


def caught(bugs: Bugs | None = None, make: Callable[[JobId], JobMachine] = JobMachine, plot: Plot | None = None) -> str:
    """What the first story that notices the bug says."""
    for seed in range(TRIES):
        try:
            play(seed, bugs, make, plot)
        except BrokenInvariantError as error:
            return str(error).partition("\n")[0]
    raise AssertionError(f"none of {TRIES} stories noticed")


@pytest.mark.parametrize("bugs", [Bugs(endings_said_once=True), Bugs(runs_said_once=True)], ids=["stop", "run"])
def test_an_order_that_is_not_repeated_is_caught(bugs: Bugs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "disagrees", lambda _node, _order: False)  # the machine's own repeating
    assert "does not end" in caught(bugs)


def test_an_agent_that_obeys_an_order_for_its_dead_self_is_caught() -> None:
    reboots = Plot(ROUGH, ("reboot",), 14, nodes=2, commands=False)
    assert "two attempts alive" in caught(Bugs(dead_self_obeyed=True), plot=reboots)


def test_a_cut_off_agent_that_does_not_end_its_workers_is_caught() -> None:
    assert "two attempts alive" in caught(Bugs(no_self_stop=True))


def test_an_order_that_comes_later_than_its_lease_begins_nothing() -> None:
    """It was on its way while its node was taken for lost and others were ordered: one story in ten thousand."""
    with pytest.raises(BrokenInvariantError, match="two attempts alive"):
        play(6689, Bugs(late_orders_obeyed=True))
    play(6689)


TAKEN_PORTS = Plot(CALM, how_many=0, nodes=3, commands=False, taken=0.5)


def test_a_taken_port_costs_no_attempt() -> None:
    assert {len(play(seed, plot=TAKEN_PORTS)[0].attempts) for seed in range(20)} == {1}


def test_an_agent_that_keeps_looking_for_the_store_where_it_is_no_more_is_caught() -> None:
    assert "does not end" in caught(Bugs(old_port_kept=True), plot=TAKEN_PORTS)


def test_a_port_that_is_not_told_to_the_others_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_take_store", lambda _turn, _event: None)
    assert "does not end" in caught(plot=Plot(CALM, nodes=2))


def test_going_on_without_waiting_for_leases_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "still_up", lambda _job: [])
    monkeypatch.setattr(starting, "strays", lambda _job: [])
    assert "two attempts alive" in caught()


def test_taking_a_goodbye_for_the_end_of_a_lease_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = nodes.down
    monkeypatch.setattr(nodes, "down", lambda job, node: bool(node.silent or node.gone) or honest(job, node))
    assert "alive" in caught()


def test_not_seeing_that_an_agent_began_anew_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = faults.check_member

    def blind(turn: Any, node: Any) -> None:
        seat = turn.job.current.seat_of(node.name) if turn.job.current else None
        if seat is None or seat.boot == node.boot:
            honest(turn, node)

    monkeypatch.setattr(faults, "check_member", blind)
    assert "does not end" in caught()


def test_no_grace_for_agents_after_a_coordinator_restart_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(turn: Any, event: Any) -> None:
        honest(turn, event)
        nodes.grace_over(turn)

    honest = nodes.coordinator_started
    monkeypatch.setattr(nodes, "coordinator_started", hasty)
    restarts = Plot(ROUGH, ("crash", "crash", "cut", "coordinator"), 14, commands=False)
    assert "two attempts alive" in caught(plot=restarts)


def test_an_incident_that_is_never_closed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "recovered", lambda _turn, _words: None)
    monkeypatch.setattr("zrun.machine.turn.Turn.close_incident", lambda _turn, _words: None)
    assert "still open" in caught()


class Forgetful(JobMachine):
    """Decides by something that is not in the journal."""

    made = 0

    def __init__(self, job: JobId) -> None:
        super().__init__(job)
        Forgetful.made += 1
        self.life = Forgetful.made

    def handle(self, event: Event, number: int, now: float) -> list[Action]:
        actions = super().handle(event, number, now)
        forgets = self.life % 2 and isinstance(event, NodeHeard)  # words alone: without an order nothing would go on
        return [action for action in actions if not (forgets and isinstance(action, Note))]


class Late(JobMachine):
    """A deadline that is not the expression it is checked by."""

    def deadline(self) -> float:
        return super().deadline() - 1e-6


def test_answers_that_replay_does_not_give_again_are_caught() -> None:
    assert "replay differs" in caught(make=Forgetful)


def test_a_deadline_that_differs_from_its_check_is_caught() -> None:
    assert "reached and stays" in caught(make=Late)
