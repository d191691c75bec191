"""The graph of waiting: which rank it comes down to, with one group and with many."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.core.standing import Standing
from zrun.machine.waiting import Knot, differing, untie

WORLD, ROWS, COLUMNS = 1, 2, 3


def left(group: int, sequence: int, op: str = "all_reduce", size: int = 8) -> Standing:
    return Standing(group, sequence, op, size, inside=False)


def held(group: int, sequence: int, op: str = "all_reduce", size: int = 8) -> Standing:
    return Standing(group, sequence, op, size, inside=True)


def knot(ranks: Mapping[int, Sequence[Standing]]) -> Knot:
    found = untie(ranks)
    assert found is not None
    return found


def test_nobody_inside_says_nothing() -> None:
    assert untie({0: [left(WORLD, 3)], 1: [left(WORLD, 3)]}) is None
    assert untie({}) is None


def test_the_one_that_does_not_come_is_the_end_of_the_waiting() -> None:
    found = knot({0: [held(WORLD, 17)], 1: [left(WORLD, 16)], 2: [held(WORLD, 17)]})
    assert (found.kind, found.culprits) == ("not-arrived", (1,))
    assert found.because == ("ranks 0, 2 can only wait in all_reduce #17",)


def test_waiting_is_followed_through_other_groups() -> None:
    """A 2 x 2 mesh: rank 3 sleeps, rank 2 waits for it in its row, and rank 0 for rank 2 in its column."""
    found = knot({
        0: [left(ROWS, 5), held(COLUMNS, 9)],
        1: [left(ROWS, 5), left(COLUMNS + 1, 9)],
        2: [left(COLUMNS, 8), held(ROWS + 10, 5)],
        3: [left(COLUMNS + 1, 8), left(ROWS + 10, 4)],
    })  # fmt: skip
    assert (found.kind, found.culprits) == ("not-arrived", (3,))


def test_ranks_outside_whom_nobody_awaits_are_not_accused() -> None:
    found = knot({0: [held(ROWS, 4)], 1: [left(ROWS, 3)], 2: [left(COLUMNS, 1)]})
    assert found.culprits == (1,)


def test_one_still_in_an_earlier_collective_is_behind() -> None:
    found = knot({0: [held(WORLD, 17)], 1: [held(WORLD, 16, "broadcast")]})
    assert (found.kind, found.culprits) == ("behind", (1,))


def test_two_that_wait_for_each_other_in_two_groups_are_a_deadlock() -> None:
    found = knot({0: [left(COLUMNS, 8), held(ROWS, 5)], 1: [left(ROWS, 4), held(COLUMNS, 9, "broadcast")]})
    assert (found.kind, found.culprits) == ("deadlock", (0, 1))
    assert found.because == (
        "rank 0 is in all_reduce #5 of group 1 and waits for rank 1",
        "rank 1 is in broadcast #9 of group 2 and waits for rank 0",
    )


def test_bystanders_of_a_deadlock_are_not_accused() -> None:
    found = knot({
        0: [left(COLUMNS, 8), held(ROWS, 5)], 1: [left(ROWS, 4), held(COLUMNS, 9)],
        2: [held(WORLD, 3)], 3: [left(WORLD, 3), held(ROWS, 5)],
    })  # fmt: skip
    assert (found.kind, found.culprits) == ("deadlock", (0, 1))


def test_different_collectives_at_one_place_are_a_mismatch() -> None:
    found = knot({0: [held(WORLD, 17)], 1: [held(WORLD, 17, "broadcast")], 2: [held(WORLD, 17)]})
    assert found.kind == "mismatched"
    assert found.because == ("different collectives: ranks 0, 2 all_reduce; rank 1 broadcast",)


def test_those_who_only_wait_for_ranks_in_a_mismatch_are_not_accused() -> None:
    found = knot({
        0: [left(COLUMNS, 39), held(ROWS, 40)], 1: [left(COLUMNS + 1, 39), held(ROWS, 40, "broadcast")],
        2: [held(COLUMNS, 40)], 3: [held(COLUMNS + 1, 40)],
    })  # fmt: skip
    assert (found.kind, found.culprits) == ("mismatched", (0, 1))


def test_different_sizes_are_a_mismatch_where_sizes_have_to_agree() -> None:
    found = knot({0: [held(WORLD, 17, size=8)], 1: [held(WORLD, 17, size=16)]})
    assert found.because == ("different sizes in all_reduce #17: rank 0 8 bytes; rank 1 16 bytes",)
    uneven = {0: [held(WORLD, 17, "all_gather", 8)], 1: [held(WORLD, 17, "all_gather", 16)]}
    assert knot(uneven).kind == "stalled-in-collective"


def test_all_inside_one_collective_is_a_stall() -> None:
    found = knot({0: [held(WORLD, 17)], 1: [held(WORLD, 17)]})
    assert (found.kind, found.culprits, found.because) == ("stalled-in-collective", (0, 1), ())


def test_send_and_recv_accuse_nobody_by_their_numbers() -> None:
    assert untie({0: [held(WORLD, 4, "send")], 1: [left(WORLD, 4)]}) is None
    found = knot({0: [held(WORLD, 4)], 1: [left(WORLD, 3), held(WORLD, 3, "recv")]})
    assert (found.kind, found.culprits) == ("not-arrived", (1,))


@pytest.mark.parametrize("told", [[], [1, 2], None, "abcde", [1, 2, 99, 0, 0], [1, 2, "x", 0, 0], [[1], 2, 3, 4, 5]])
def test_a_standing_that_no_agent_sends_is_refused(told: object) -> None:
    with pytest.raises(ValueError, match=r"no standing|unknown collective"):
        Standing.unpack(told)


standings = st.builds(
    Standing, st.integers(1, 3), st.integers(1, 4), st.sampled_from(["all_reduce", "broadcast", "send"]),
    st.sampled_from([8, 16]), st.booleans(),
)  # fmt: skip


@given(st.dictionaries(st.integers(0, 6), st.lists(standings, max_size=3), max_size=7))
def test_whoever_is_named_was_there_and_the_order_of_ranks_does_not_matter(
    ranks: dict[int, list[Standing]],
) -> None:
    found = untie(ranks)
    assert found == untie(dict(reversed(ranks.items())))
    if found is not None:
        assert found.culprits
        assert set(found.culprits) <= set(ranks)
        assert list(found.culprits) == sorted(set(found.culprits))


@given(standings)
def test_a_standing_survives_the_wire(one: Standing) -> None:
    assert Standing.unpack(one.pack()) == one


def test_after_a_failure_different_sizes_are_told_though_nobody_is_inside_any_more() -> None:
    ranks = {0: [left(COLUMNS, 9), held(ROWS, 40, size=32)], 1: [left(ROWS, 40, size=64)], 2: [left(COLUMNS, 9)]}
    assert differing(ranks) == ("different sizes in all_reduce #40: rank 0 32 bytes; rank 1 64 bytes",)
    assert differing({0: [left(ROWS, 40)], 1: [left(ROWS, 39, size=64)], 2: [held(ROWS, 3, "send")]}) == ()


def test_a_collective_that_is_over_for_some_and_not_for_others_is_inconclusive() -> None:
    found = knot({0: [left(WORLD, 17, "broadcast")], 1: [held(WORLD, 17, "broadcast")], 2: [left(WORLD, 18)]})
    assert (found.kind, found.culprits) == ("inconclusive", (0, 1, 2))
    assert found.because == ("rank 1 still in broadcast #17, which ranks 0, 2 left: the signs contradict each other",)


def test_a_deadlock_is_certain_only_where_both_can_do_nothing_else() -> None:
    def blocked(group: int, sequence: int) -> Standing:
        return Standing(group, sequence, "all_reduce", 8, inside=True, blocking=True)

    sure = {0: [left(COLUMNS, 8), blocked(ROWS, 5)], 1: [left(ROWS, 4), blocked(COLUMNS, 9)]}
    assert knot(sure).certain
    assert not knot(sure | {1: [left(ROWS, 4), held(COLUMNS, 9)]}).certain
