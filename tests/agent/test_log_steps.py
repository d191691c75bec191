"""Steps read from what ranks print."""

from dataclasses import replace
from pathlib import Path

import pytest

from zrun.agent.log_steps import LogSteps
from zrun.core.deck import Phase, create_deck, deck_path
from zrun.core.deck_reader import DeckReader, DeckState

PATTERN = r"step[ =:]+(?P<step>\d+)"


@pytest.fixture
def deck(tmp_path: Path) -> DeckState:
    create_deck(deck_path(tmp_path, 0), 0, 1, 0.0)
    reader = DeckReader(deck_path(tmp_path, 0))
    try:
        return replace(reader.read(), phase=Phase.SETUP)
    finally:
        reader.close()


def test_the_newest_step_of_what_was_printed_counts(deck: DeckState) -> None:
    steps = LogSteps(PATTERN)
    steps.heard(0, ["loading\nstep 1 loss 3\nstep 2 loss 2\n", ("a warning",)], 10.0)
    seen = steps.seen_in({0: deck})[0]
    assert (seen.step, seen.completed, seen.phase, seen.progress_at) == (2, 2, Phase.FIRST_STEP, 10.0)


def test_a_later_step_is_progress_and_tells_the_time_a_step_takes(deck: DeckState) -> None:
    steps = LogSteps(PATTERN)
    steps.heard(0, ["step 10\n"], 10.0)
    steps.heard(0, ["step 20\n"], 15.0)
    seen = steps.seen_in({0: deck})[0]
    assert (seen.step, seen.step_s, seen.phase, seen.progress_at) == (20, 0.5, Phase.STEP, 15.0)
    assert seen.progress > deck.progress


def test_the_same_step_printed_again_is_no_progress(deck: DeckState) -> None:
    steps = LogSteps(PATTERN)
    steps.heard(0, ["step 10\n"], 10.0)
    steps.heard(0, ["step 10\n"], 99.0)
    assert steps.seen_in({0: deck})[0].progress_at == 10.0


def test_a_step_counter_that_begins_again_is_progress(deck: DeckState) -> None:
    steps = LogSteps(PATTERN)
    steps.heard(0, ["epoch 1 step 100\n"], 10.0)
    steps.heard(0, ["epoch 2 step 1\n"], 11.0)
    assert (steps.seen_in({0: deck})[0].step, steps.seen_in({0: deck})[0].progress_at) == (1, 11.0)


def test_where_one_rank_prints_for_all_its_step_is_theirs(deck: DeckState) -> None:
    steps = LogSteps(PATTERN)
    steps.heard(0, ["step 7\n"], 10.0)
    assert {rank: seen.step for rank, seen in steps.seen_in({0: deck, 1: replace(deck, rank=1)}).items()} == {
        0: 7,
        1: 7,
    }


def test_steps_that_a_deck_shows_count_more(deck: DeckState) -> None:
    steps = LogSteps(PATTERN)
    steps.heard(0, ["step 7\n"], 10.0)
    own = replace(deck, step=3, completed=2, phase=Phase.STEP)
    assert steps.seen_in({0: own})[0] is own


def test_a_phase_of_its_own_stays_what_it_is(deck: DeckState) -> None:
    steps = LogSteps(PATTERN)
    steps.heard(0, ["step 7\n"], 10.0)
    assert steps.seen_in({0: replace(deck, phase=Phase.EVAL)})[0].phase is Phase.EVAL


def test_without_a_pattern_nothing_is_read(deck: DeckState) -> None:
    steps = LogSteps(None)
    steps.heard(0, ["step 7\n"], 10.0)
    assert steps.seen_in({0: deck})[0] is deck
