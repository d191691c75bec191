"""Which checkpoints stay, and for what reason: the rule that ranks and the command line share."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.core.manifest import Found
from zrun.core.retention import Fate, Keep, Needed, fates


def lying(*steps: int, **states: str) -> list[Found]:
    """Newest first; `s20="corrupt"` for one that is not complete."""
    return [
        Found(Path(f"step-{s:06d}"), s, states.get(f"s{s}", "complete"), "because") for s in sorted(steps, reverse=True)
    ]


def kept(decided: list[Fate]) -> dict[int, str]:
    return {fate.found.step: fate.reason for fate in decided if fate.keep}


def gone(decided: list[Fate]) -> dict[int, str]:
    return {fate.found.step: fate.reason for fate in decided if not fate.keep}


def test_the_newest_stay_and_the_round_ones() -> None:
    decided = fates(lying(0, 5, 10, 15, 20, 25), Keep(2, 10), Needed())
    assert kept(decided) == {25: "the last good one", 20: "one of the last 2", 10: "every 10 steps"}
    assert gone(decided) == dict.fromkeys([15, 5, 0], "not among the last 2, no multiple of 10")


def test_pinned_read_and_resumed_from_stay_whatever_the_rule_says() -> None:
    needed = Needed(pinned={1}, being_read={2}, resumed_from={3})
    decided = fates(lying(1, 2, 3, 4, 5), Keep(1), needed)
    assert kept(decided) == {
        5: "the last good one", 3: "the newest attempt resumed from it", 2: "being read", 1: "pinned",
    }  # fmt: skip


def test_what_is_not_complete_counts_for_nothing_and_is_left_to_be_looked_at() -> None:
    found = lying(1, 2, 3, 4, s4="corrupt", s3="partial", s1="overtaken")
    decided = fates(found, Keep(1), Needed())
    assert kept(decided) == {
        4: "corrupt, left to be looked at", 3: "partial, left to be looked at", 2: "the last good one",
    }  # fmt: skip
    assert gone(decided) == {1: "overtaken: because"}
    assert set(gone(fates(found, Keep(1), Needed(), damaged_too=True))) == {4, 3, 1}


def test_an_overtaken_one_that_is_read_or_pinned_stays() -> None:
    found = lying(1, 2, 3, s1="overtaken", s2="overtaken")
    assert set(kept(fates(found, Keep(1), Needed(being_read={1}, pinned={2})))) == {1, 2, 3}


@pytest.mark.parametrize("last", [-3, 0, 1])
def test_one_always_stays(last: int) -> None:
    assert set(kept(fates(lying(7, 8), Keep(last), Needed()))) == {8}


STATES = st.sampled_from(["complete", "complete", "partial", "corrupt", "overtaken"])
STEPS = st.frozensets(st.integers(0, 12))


@given(
    st.dictionaries(st.integers(0, 12), STATES),
    st.integers(0, 4),
    st.none() | st.integers(1, 5),
    STEPS,
    STEPS,
    STEPS,
    st.booleans(),
)
def test_the_last_good_one_and_whatever_is_needed_is_never_let_go(
    states: dict[int, str],
    last: int,
    every: int | None,
    pinned: frozenset[int],
    read: frozenset[int],
    resumed: frozenset[int],
    damaged: bool,
) -> None:
    found = lying(*states, **{f"s{step}": state for step, state in states.items()})
    decided = fates(found, Keep(last, every), Needed(pinned, read, resumed), damaged_too=damaged)
    assert [fate.found for fate in decided] == found
    assert all(fate.reason for fate in decided)
    stay = set(kept(decided))
    complete = sorted((step for step, state in states.items() if state == "complete"), reverse=True)
    assert set(complete[: max(1, last)]) <= stay
    assert (pinned | read) & set(states) <= stay
    assert resumed & set(complete) <= stay
