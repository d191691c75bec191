"""Two runs are equal only if every loss, sample and weight that was looked at is; the first difference is named."""

from tests.drill.telling import traced

from zrun.drill.compare import DIFFERENT, EQUAL, NOT_LOOKED_AT, STEPS, compare

CALM = traced((1, 10))


def test_a_run_that_resumed_and_did_the_same_is_equal() -> None:
    found = compare(CALM, traced((1, 5), (6, 10)))
    assert found.outcome == {"losses": EQUAL, "samples": EQUAL, "weights": EQUAL}
    assert found.first is None
    assert (found.steps, found.again) == (10, 0)


def test_a_step_that_the_broken_rank_never_completed_is_no_difference_if_another_did() -> None:
    assert compare(CALM, traced((1, 5), (6, 10), stop={1: 4})).all_equal


def test_steps_that_were_done_twice_must_be_equal_both_times() -> None:
    again = compare(CALM, traced((1, 8), (4, 10)))
    assert again.all_equal
    assert again.again == 10
    other = traced((1, 8), (4, 10))
    wrong = next(one for one in other.steps if (one.attempt, one.step, one.rank) == (1, 6, 1))
    wrong.metrics["loss"] = "0.5"
    found = compare(CALM, other)
    assert found.first is not None
    assert (found.first.step, found.first.rank, found.first.attempt) == (6, 1, 1)


def test_the_first_difference_has_step_rank_and_both_values_to_the_last_bit() -> None:
    found = compare(CALM, traced((1, 10), loss_at={(1, 7): "0.14285714285714288", (0, 9): "3.0"}))
    assert found.outcome == {"losses": DIFFERENT, "samples": EQUAL, "weights": EQUAL}
    assert str(found.first) == (
        "losses loss at step 7, rank 1, attempt 1: 0.14285714285714285 undisturbed, 0.14285714285714288 disturbed"
    )


def test_other_samples_come_before_the_losses_they_lead_to() -> None:
    found = compare(CALM, traced((1, 10), batch_at={(0, 4): "e0-s000005-00000005"}, loss_at={(0, 4): "2.0"}))
    assert found.first is not None
    assert found.first.what == "samples"


def test_weights_are_compared_by_name_on_each_rank() -> None:
    found = compare(CALM, traced((1, 10), weights={"model/w": "aa", "optimizer/w": "cc"}))
    assert found.outcome["weights"] == DIFFERENT
    assert found.first is not None
    assert (found.first.name, found.first.undisturbed, found.first.disturbed) == ("optimizer/w", "bb", "cc")


def test_a_step_that_nobody_did_and_one_too_many_are_differences() -> None:
    assert compare(CALM, traced((1, 5), (7, 10))).outcome[STEPS] == DIFFERENT
    assert compare(CALM, traced((1, 11))).outcome[STEPS] == DIFFERENT


def test_metrics_that_are_no_losses_may_differ_and_are_told() -> None:
    found = compare(traced((1, 4), metrics={"tokens_per_s": "10"}), traced((1, 4), metrics={"tokens_per_s": "11"}))
    assert found.all_equal
    assert found.others == ("tokens_per_s",)


def test_without_a_session_nothing_is_claimed() -> None:
    found = compare(traced((1, 10), session=False), traced((1, 5), (1, 10), session=False))
    assert set(found.outcome.values()) == {NOT_LOOKED_AT}
    assert "no Session" in found.why_not["losses"]


def test_after_a_batch_that_was_left_out_nothing_is_compared() -> None:
    shifted = traced((1, 10), loss_at={(0, 6): "9.0", (1, 6): "9.0"}, weights={"model/w": "zz"})
    found = compare(CALM, shifted, until=5)
    assert found.outcome == {"losses": EQUAL, "samples": EQUAL, "weights": NOT_LOOKED_AT}
    assert "step 6" in found.why_not["weights"]


def test_what_was_never_told_is_not_called_equal() -> None:
    mute = traced((1, 4))
    for one in mute.steps:
        one.metrics.clear()
    found = compare(mute, mute)
    assert found.outcome["losses"] == NOT_LOOKED_AT
    assert "run.report" in found.why_not["losses"]
