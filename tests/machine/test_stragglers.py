"""Who is steadily slower: by the share of waiting, over enough steps, and never because of a single bad moment."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from zrun.core.deck import Phase
from zrun.core.rows import RankRow, RowFlag
from zrun.machine.stragglers import Straggler, Stragglers


def rows(step: int, waits: Sequence[float | None], step_s: float = 0.1) -> dict[int, RankRow]:
    """Ranks at this step that spend such a share of their time in collectives."""
    return {
        rank: RankRow(
            rank, 100 + rank, step, Phase.STEP, None, 0.01, 9.0, step_s, 3 * step, 0.0, "all_reduce", 0.5, "S",
            RowFlag.ALIVE | RowFlag.STEPPING | RowFlag.RECORDER, wait_share=wait,
        )
        for rank, wait in enumerate(waits)
    }  # fmt: skip


def watched(looks: Sequence[Sequence[float | None]], nodes: str = "aaaaaaaa", every: int = 10) -> list[Straggler]:
    """All that is news over these looks, `every` steps apart."""
    judge, found = Stragglers(), []
    names: Mapping[int, str] = dict(enumerate(nodes))
    for number, waits in enumerate(looks, 1):
        found += judge.look(rows(number * every, waits), names)
    return found


def test_a_steadily_slower_rank_is_named_once_with_the_time_it_costs() -> None:
    [slow] = watched([[0.4, 0.1, 0.4, 0.4]] * 8)
    assert (slow.ranks, slow.node, slow.steps) == ((1,), "a", 50)
    assert abs(slow.factor - 1.5) < 0.01
    assert abs(slow.lost - 0.3) < 0.01
    assert slow.text == "rank 1 is 1.5 x as slow as its peers over 50 steps; they wait for it 30% of the time"


def test_of_two_ranks_the_one_that_waits_less_is_slow() -> None:
    assert [slow.ranks for slow in watched([[0.5, 0.05]] * 6)] == [(1,)]


def test_fewer_than_fifty_steps_tell_nothing() -> None:
    assert watched([[0.5, 0.05]] * 4) == []
    assert watched([[0.5, 0.05]] * 9, every=4) == []


def test_a_bad_moment_tells_nothing() -> None:
    assert watched([*[[0.2, 0.2, 0.2]] * 5, [0.8, 0.0, 0.8], *[[0.2, 0.2, 0.2]] * 5]) == []


def test_less_than_a_third_slower_is_like_the_others() -> None:
    assert watched([[0.2, 0.02]] * 10) == []


def test_all_ranks_of_a_node_are_a_slow_node() -> None:
    [slow] = watched([[0.4, 0.4, 0.4, 0.4, 0.05, 0.1]] * 6, nodes="aaaabb")
    assert (slow.ranks, slow.node) == ((4, 5), "b")
    assert slow.text.startswith("node b is 1.6 x")


def test_what_is_not_known_is_not_judged() -> None:
    assert watched([[0.5, None]] * 10) == []
    assert watched([[0.05]] * 10) == []


def test_one_that_is_fast_again_is_no_longer_among_them() -> None:
    judge = Stragglers()
    for number in range(1, 25):
        judge.look(rows(number * 10, [0.4, 0.1] if number < 8 else [0.2, 0.2]), {0: "a", 1: "a"})
    assert judge.now == []


@given(st.lists(st.lists(st.floats(0.15, 0.35), min_size=4, max_size=4), max_size=20))
def test_ranks_that_differ_by_noise_alone_are_never_named(looks: list[list[float]]) -> None:
    assert watched(looks) == []
