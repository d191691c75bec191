"""A fault is survived if it came, was noticed as what it was, and the job went on; times are from the ranks' traces."""

from typing import Any

import pytest
from tests.drill.telling import incident, ran, traced

from zrun.drill.compare import compare
from zrun.drill.faults import Placed, parse, placed
from zrun.drill.outcome import Outcome, left_out_from, outcomes, problems
from zrun.drill.runs import Ran

CALM = ran(traced((1, 10)), name="undisturbed")
FROM_5 = [{"attempt": 1, "resumed_from": None}, {"attempt": 2, "resumed_from": {"tier": "memory", "step": 5}}]


def fault(text: str, steps: int = 10) -> list[Placed]:
    return placed([parse(text)], 2, steps)


def came(step: int, at: float, **other: Any) -> dict[int, dict[str, Any]]:
    return {0: {"at": at, "attempt": 1, "step": step, "rank": 1, **other}}


def one(text: str, run: Ran, steps: int = 10) -> Outcome:
    return outcomes(fault(text, steps), run)[0]


def test_a_killed_rank_is_survived_and_told_with_its_times_and_cost() -> None:
    run = ran(traced((1, 5), (6, 10)), incidents=[incident()], attempts=FROM_5, came=came(6, 5.2))
    found = one("kill:rank=1,step=6", run)
    assert found.problem == ""
    assert (found.detected_s, found.steps_lost, found.resumed_from) == (0.03, 0, {"tier": "memory", "step": 5})
    assert found.recovered_s == pytest.approx(0.8)
    assert problems(CALM, run, [found], compare(CALM.traced, run.traced)) == []


def test_steps_that_had_to_be_done_again_are_counted_from_the_traces() -> None:
    run = ran(traced((1, 8), (4, 10)), incidents=[incident()], attempts=FROM_5, came=came(9, 8.1))
    assert one("kill:rank=1,step=9", run).steps_lost == 5


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rank": 0, "ranks": [0]}, "another rank was blamed"),
        ({"class": "hang"}, "told as hang, and not as crash"),
        ({"suspicion": True}, "only suspected"),
    ],
)
def test_a_fault_that_is_told_as_something_else_is_not_survived(changed: dict[str, Any], said: str) -> None:
    run = ran(traced((1, 5), (6, 10)), incidents=[incident(**changed)], attempts=FROM_5, came=came(6, 5.2))
    assert said in one("kill:rank=1,step=6", run).problem


def test_a_fault_that_nobody_noticed_or_that_never_came_is_not_survived() -> None:
    assert "nothing was noticed" in one("kill:step=6", ran(traced((1, 10)), came=came(6, 5.2))).problem
    assert "never came" in one("kill:step=6", ran(traced((1, 10)))).problem
    assert "needs a Loader" in one("poison:step=6", ran(traced((1, 10)))).problem


def test_a_run_that_ended_otherwise_and_an_incident_without_a_fault_stand_in_the_problems() -> None:
    run = ran(traced((1, 5), (6, 10)), state="FAILED", incidents=[incident(), incident(2)], attempts=FROM_5,
              came=came(6, 5.2))  # fmt: skip
    found = outcomes(fault("kill:rank=1,step=6"), run)
    told = problems(CALM, run, found, compare(CALM.traced, run.traced))
    assert told[0] == "the disturbed run is FAILED: because"
    assert told[1].startswith("incident 2, which no fault explains")


def test_every_incident_of_a_poisoned_batch_is_its_own_and_what_follows_is_not_claimed() -> None:
    batch = "e0-s000006-00000006"
    run = ran(
        traced((1, 5), (6, 5), (6, 10)), incidents=[incident(batch=batch), incident(2, batch=batch)],
        attempts=[*FROM_5, {"attempt": 3, "resumed_from": {"tier": "memory", "step": 5}}],
        came=came(6, 5.2, batch=batch),
    )  # fmt: skip
    found = outcomes(fault("poison:rank=1,step=6"), run)
    assert found[0].problem == ""
    assert [i["id"] for i in found[0].incidents] == [1, 2]
    assert left_out_from(found) == 6
    assert problems(CALM, run, found, compare(CALM.traced, run.traced, 5)) == []


def test_a_killed_coordinator_is_survived_if_training_went_on_in_the_same_attempt() -> None:
    assert one("coordinator-kill:step=6", ran(traced((1, 10)), came=came(6, 6.0))).problem == ""
    assert one("coordinator-kill:step=6", ran(traced((1, 6), (7, 10)), came=came(6, 6.0))).problem != ""


def test_a_slow_rank_must_be_told_once_it_was_slow_for_long_enough() -> None:
    told = [{"remark": "straggler", "ranks": [1], "text": "rank 1 works 2.0 x as long"}]
    assert one("slow:rank=1,step=6", ran(traced((1, 100)), came=came(6, 6.0), events=told), 100).told == told[0]["text"]
    assert "never told" in one("slow:rank=1,step=6", ran(traced((1, 100)), came=came(6, 6.0)), 100).problem
    short = one("slow:rank=1,step=6", ran(traced((1, 20)), came=came(6, 6.0)), 100)
    assert (short.problem, short.told) == ("", "too short to tell (15 steps)")


def test_a_save_that_failed_must_be_told() -> None:
    told = [{"decision": "save-failed", "attempt": 1, "step": 8, "error": "disk full: …"}]
    found = one("disk-full:step=6", ran(traced((1, 10)), came=came(6, 6.0), events=told))
    assert (found.problem, found.told) == ("", "save of step 8 failed: disk full: …")
    assert "nobody told" in one("disk-full:step=6", ran(traced((1, 10)), came=came(6, 6.0))).problem


def test_a_damaged_checkpoint_must_not_be_the_one_that_is_taken() -> None:
    run = ran(traced((1, 6), (6, 10)), incidents=[incident()], attempts=FROM_5, came=came(6, 5.2, checkpoint=5))
    assert "damaged checkpoint of step 5 was taken" in one("corrupt-checkpoint:rank=1,step=5", run).problem


def test_a_preemption_that_came_with_the_last_step_leaves_nothing_to_go_on_with() -> None:
    attempts = [{"attempt": 1}, {"attempt": 2, "outcome": "finished", "resumed_from": {"tier": "disk", "step": 10}}]
    found = one("preempt:step=9", ran(traced((1, 10)), attempts=attempts, came=came(9, 9.2)))
    assert (found.problem, found.told) == ("", "attempt 2 had no step left to make")


def test_a_run_that_takes_too_long_is_told_as_that() -> None:
    run = ran(traced((1, 5)), state="STOPPED", too_long=True)
    assert problems(CALM, run, [], compare(CALM.traced, run.traced))[0].startswith("the disturbed run was not over")
