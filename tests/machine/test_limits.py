"""Limits: stated ones win, learned ones follow what the job has shown."""

import pytest

from zrun.core.deck import Phase
from zrun.machine.limits import CEILING_S, UNSEEN_S, Learned, Limits, effective_limits
from zrun.spec.job import Watchdog


def taught(*steps: float, watchdog: Watchdog | None = None, learned: Learned | None = None) -> Limits:
    limits = Limits(watchdog or Watchdog(), learned)
    for index, seconds in enumerate(steps, 4):
        limits.saw_step(seconds, index)
    return limits


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [
        (Phase.BOOT, 1800.0), (Phase.SETUP, 1800.0), (Phase.FIRST_STEP, 1800.0), (Phase.STEP, 1800.0),
        (Phase.EVAL, UNSEEN_S), (Phase.SAVE, 1800.0), (Phase.EXIT, 60.0), (Phase.DONE, 60.0), (Phase.OWN, UNSEEN_S),
    ],
)  # fmt: skip
def test_a_job_that_has_shown_nothing_has_patient_limits(phase: Phase, seconds: float) -> None:
    assert Limits(Watchdog()).of(phase).seconds == seconds


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        ((0.05,), 2.0),  # min_step
        ((0.05, 3.0, 0.05), 15.0),
        ((1.0, 1.5), 7.5),
        ((150.0,), CEILING_S),
        ((500.0,), 750.0),  # the ceiling never cuts into what goes well
    ],
)
def test_the_step_limit_is_a_multiple_of_the_slowest_recent_step(steps: tuple[float, ...], seconds: float) -> None:
    assert taught(*steps).of(Phase.STEP).seconds == seconds


def test_old_steps_are_forgotten() -> None:
    assert taught(10.0, *[0.5] * 256).of(Phase.STEP).seconds == 2.5


def test_stated_limits_win_over_learned_ones() -> None:
    watchdog = Watchdog(step_s=5.0, eval_s=7.0, save_s=9.0, exit_s=3.0, setup_s=11.0, phases_s={"tokenize": 99.0})
    limits = taught(60.0, watchdog=watchdog)
    found = {p: limits.of(p).seconds for p in (Phase.STEP, Phase.EVAL, Phase.SAVE, Phase.EXIT, Phase.SETUP)}
    assert list(found.values()) == [5.0, 7.0, 9.0, 3.0, 11.0]


def test_each_phase_of_the_scripts_own_has_its_own_limit_and_an_unlisted_one_is_learned() -> None:
    limits = Limits(Watchdog(phases_s={"tokenize": 99.0, "pack": 3600.0}))
    limits.saw_phase(Phase.OWN, 200.0, "export")
    found = {name: limits.of(Phase.OWN, own=name).seconds for name in ("tokenize", "pack", "export", "other")}
    assert found == {"tokenize": 99.0, "pack": 3600.0, "export": 1000.0, "other": 1800.0}
    assert {limit.name for limit in limits.table()} >= {"tokenize", "pack", "export", "own phases"}


def test_the_first_steps_teach_only_a_wide_limit() -> None:
    limits = Limits(Watchdog())
    limits.saw_step(20.0, 1)
    assert limits.of(Phase.STEP, warm=True).seconds == 100.0
    limits.saw_step(0.1, 2)
    assert limits.of(Phase.STEP).seconds == 8.0
    limits.saw_step(0.1, 4)
    assert limits.of(Phase.STEP).seconds == 2.0


def test_the_first_step_limit_is_the_roof_of_early_limits() -> None:
    limits = Limits(Watchdog(first_step_s=12.0))
    limits.saw_step(10.0, 1)
    assert limits.of(Phase.STEP, warm=True).seconds == 12.0


def test_an_attempt_hands_what_it_learned_to_the_next() -> None:
    limits = taught(3.0)
    limits.saw_step(4.0, 2)
    limits.saw_phase(Phase.EVAL, 20.0)
    after = Limits(Watchdog(), limits.learned())
    assert after.of(Phase.STEP, warm=True).seconds == 20.0
    assert after.of(Phase.EVAL).seconds == 100.0
    assert after.learned() == limits.learned()


def test_a_short_eval_does_not_make_a_short_limit() -> None:
    limits = Limits(Watchdog())
    limits.saw_phase(Phase.EVAL, 1.0)
    assert limits.of(Phase.EVAL).seconds == 60.0


def test_pauses_that_come_again_widen_the_step_limit() -> None:
    limits = taught(0.05)
    limits.saw_pause(12.0)
    assert limits.of(Phase.STEP).seconds == 2.0
    limits.saw_pause(10.0)
    assert limits.of(Phase.STEP).seconds == 15.0
    assert "pauses" in limits.of(Phase.STEP).source


def test_the_table_says_where_each_limit_comes_from() -> None:
    table = effective_limits(Watchdog(save_s=None, phases_s={"tokenize": 3600.0}), Learned(step_s=0.5))
    assert [limit.name for limit in table] == [
        "setup",
        "first_step",
        "step",
        "eval",
        "save",
        "exit",
        "tokenize",
        "own phases",
    ]
    assert all(limit.source and limit.seconds > 0 for limit in table)
    assert [limit.name for limit in effective_limits(Watchdog())][-1] == "own phases"
