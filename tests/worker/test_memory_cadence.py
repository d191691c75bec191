"""When copies are made in memory: only where a death would lose state, seldom enough, on all ranks at the same steps."""

from collections.abc import Callable
from typing import Any

import pytest

from zrun.worker.memory_cadence import MemoryCadence


class Ranks:
    """Stands for the agreement of several ranks: the others answer what they are told to."""

    def __init__(self, others: Callable[[Any], list[Any]]) -> None:
        self._others = others

    def numbers(self, number: int) -> list[int]:
        return [number, *self._others(number)]

    def gather(self, value: Any) -> list[Any]:
        return [value, *self._others(value)]


def cadence(every: str, others: Callable[[Any], list[Any]]) -> MemoryCadence:
    made = MemoryCadence(Ranks(others), every)  # type: ignore[arg-type]
    assert [made.meets(step, tops) for step, tops in ((0, 1), (1, 2), (2, 3))] == [False, False, every != "off"]
    return made


def alike(value: Any) -> list[Any]:
    return [value]


def other(value: Any) -> list[Any]:
    return [value + 1]


def test_where_another_rank_holds_the_very_same_no_copy_is_made() -> None:
    made = cadence("auto", alike)
    made.settle(["model/a@0:4"])
    assert not made.wanted
    assert not made.meets(3, 4)


def test_where_no_rank_holds_the_same_copies_are_made_and_the_slowest_rank_says_how_often() -> None:
    made = cadence("auto", other)
    made.settle(["model/a@0:4"])
    assert made.wanted
    assert made.meets(2, 3)
    made._agreement = Ranks(lambda _: [[0.5, 0.1]])  # type: ignore[assignment]
    made.copied(2, 0.001)
    assert made.next_at == 2 + 500  # half a second is a hundredth of 500 steps of 0.1 s


@pytest.mark.parametrize(("every", "distance"), [("50", 50), ("30.0s", 300)])
def test_a_cadence_that_was_asked_for_holds_also_where_ranks_are_alike(every: str, distance: int) -> None:
    made = cadence(every, alike)
    made.settle(["model/a@0:4"])
    assert made.wanted
    made._agreement = Ranks(lambda _: [[0.001, 0.1]])  # type: ignore[assignment]
    made.copied(2, 0.001)
    assert made.next_at == 2 + distance


def test_one_rank_without_a_place_ends_it_for_all() -> None:
    made = cadence("auto", lambda _: [0])
    made.settle(["model/a@0:4"])
    assert not made.wanted
    made = cadence("auto", other)
    made.settle(["model/a@0:4"])
    made._agreement = Ranks(lambda _: [[None, 0.1]])  # type: ignore[assignment]
    made.copied(2, 0.001)
    assert not made.wanted


def test_off_means_that_nobody_ever_meets() -> None:
    assert not cadence("off", other).meets(2, 3)
