"""Which losses are bad, as one rank alone judges them."""

import math

import pytest

from zrun.core.errors import BadLossError
from zrun.core.settings import RankSettings
from zrun.worker.losses import Losses
from zrun.worker.rank import ThisRank


def judge(factor: float | None, *losses: float | None) -> None:
    """One step for each; None: nothing was reported in it."""
    watch = Losses(ThisRank(0, 1, 1, RankSettings(on_bad_loss="skip", bad_loss_factor=factor)), 0, 1)
    for step, loss in enumerate(losses, start=1):
        watch.heard({"loss": loss} if loss is not None else {"lr": math.nan})
        watch.check(step)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_bad_in_any_step(loss: float) -> None:
    with pytest.raises(BadLossError, match=rf"the loss of step 2 is {loss} on rank 0"):
        judge(None, 1.0, loss)


def test_without_a_factor_no_finite_loss_is_bad() -> None:
    judge(None, *[1.0] * 30, 1e30)


def test_with_a_factor_the_median_of_what_came_before_is_the_measure() -> None:
    usual = [1.0 + n / 100 for n in range(24)]
    judge(10.0, *usual, 11.0, -11.0, None, 11.0)
    with pytest.raises(BadLossError, match=r"is 12, more than 10 times the usual 1\.115 on rank 0"):
        judge(10.0, *usual, 12.0)
    judge(10.0, *[1.0] * 19, 99.0)  # too early to know what is usual


def test_a_slow_fall_moves_the_measure_along() -> None:
    with pytest.raises(BadLossError, match="step 301"):
        judge(10.0, *[8.0] * 100, *[0.5] * 200, 8.0)
