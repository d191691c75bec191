"""The rank's half of the stop protocol and the cadences, without processes."""

import time
from pathlib import Path
from typing import Any

import pytest

from zrun.core.deck import StopKind, create_deck
from zrun.core.deck_reader import DeckReader
from zrun.core.deck_writer import DeckWriter
from zrun.core.settings import RankSettings
from zrun.worker.cadence import EverySeconds, EverySteps
from zrun.worker.rank import ThisRank
from zrun.worker.stops import Stops


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def page(tmp_path: Path) -> tuple[Stops, DeckReader]:
    path = tmp_path / "deck.0"
    create_deck(path, 0, 1, time.time())
    rank = ThisRank(0, 1, 1, RankSettings(), deck=DeckWriter(path))
    return Stops(rank, Clock()), DeckReader(path)


def test_a_request_ahead_is_acknowledged_and_one_behind_is_not(page: tuple[Stops, DeckReader]) -> None:
    stops, agent = page
    stops.at_top(1)
    assert agent.read().ack_seq == 0
    agent.write_order(StopKind.STOP, 1, 4, 0, 2000.0)
    stops.at_top(5)
    assert agent.read().ack_seq == 0
    assert stops.at_bottom(5) is StopKind.NONE
    agent.write_order(StopKind.STOP, 2, 6, 0, 2000.0)
    stops.at_top(6)
    assert agent.read().ack_seq == 2
    assert stops.requested()


def test_a_confirmed_stop_is_obeyed_at_its_step_only(page: tuple[Stops, DeckReader]) -> None:
    stops, agent = page
    agent.write_order(StopKind.STOP, 3, 8, 3, 2000.0)
    assert stops.at_bottom(7) is StopKind.NONE
    assert stops.at_bottom(8) is StopKind.STOP


def test_a_save_is_obeyed_once(page: tuple[Stops, DeckReader]) -> None:
    stops, agent = page
    agent.write_order(StopKind.SAVE, 3, 8, 3, 2000.0)
    assert stops.at_bottom(8) is StopKind.SAVE
    assert stops.at_bottom(8) is StopKind.NONE
    agent.write_order(StopKind.STOP, 4, 8, 4, 2000.0)
    assert stops.at_bottom(8) is StopKind.STOP


def test_a_request_that_is_never_confirmed_is_given_up_at_its_deadline(page: tuple[Stops, DeckReader]) -> None:
    stops, agent = page
    agent.write_order(StopKind.STOP, 3, 8, 0, 1003.0)
    assert stops.at_bottom(8) is StopKind.NONE
    assert agent.read().ack_seq == 3


def test_a_withdrawn_request_ends_the_wait(page: tuple[Stops, DeckReader]) -> None:
    stops, agent = page
    agent.write_order(StopKind.STOP, 3, 8, 0, 1e12)
    real = stops._rank.stop_request
    calls = 0

    def then_withdrawn() -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            agent.write_order(StopKind.NONE, 4, 0, 0, 0.0)
        return real()

    stops._rank.stop_request = then_withdrawn  # type: ignore[method-assign]
    assert stops.at_bottom(8) is StopKind.NONE


def test_every_n_steps() -> None:
    assert [n for n in range(1, 10) if EverySteps(3).due(n)] == [3, 6, 9]
    assert not any(EverySteps(None).due(n) for n in range(1, 10))


@pytest.mark.parametrize("step_s", [0.01, 1.0, 50.0, 700.0])
def test_every_s_seconds_with_few_meetings(step_s: float) -> None:
    now = 0.0
    meetings = 0

    def from_first(value: Any) -> Any:
        nonlocal meetings
        meetings += 1
        return value

    cadence = EverySeconds(600.0, from_first, lambda: now)
    saves: list[float] = []
    step = 0
    while now < 6000.0:
        step += 1
        now += step_s
        if cadence.due(step):
            saves.append(now)
            cadence.saved()
    gaps = [b - a for a, b in zip([0.0, *saves], saves, strict=False)]
    assert gaps
    assert all(600.0 <= gap <= 600.0 + 2 * step_s + 0.1 for gap in gaps)
    assert meetings <= 25 * (len(saves) + 1)


def test_ranks_whose_clocks_differ_save_at_the_same_steps() -> None:
    """Rank 1 is asked with rank 0's answers, as a broadcast does."""
    answers: list[Any] = []
    clocks = [0.0, 0.0]

    def first(value: Any) -> Any:
        answers.append(value)
        return value

    ranks = [EverySeconds(5.0, first, lambda: clocks[0]), EverySeconds(5.0, lambda _: answers.pop(), lambda: clocks[1])]
    for step in range(1, 200):
        clocks[0] += 0.5
        clocks[1] += 0.61
        due = [rank.due(step) for rank in ranks]
        assert due[0] == due[1]
        if due[0]:
            for rank in ranks:
                rank.saved()
