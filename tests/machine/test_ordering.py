"""Limits in an order in which they cannot work: said in words, with both numbers and what to change."""

from typing import Any

import pytest

from zrun.machine.limits import Learned, Limits
from zrun.machine.ordering import against_collectives, in_job_file
from zrun.spec.job import JobSpec, Preempt, Watchdog


def said(watchdog: Watchdog, timeout_s: float, *, stepped: float = 0.0, patience_s: float = 30.0) -> str:
    limits = Limits(watchdog, Learned())
    if stepped:
        limits.saw_step(stepped, 9)
    given = patience_s if watchdog.patience_s is None else watchdog.patience_s
    return against_collectives(watchdog, limits.table(), given, timeout_s)


def test_a_step_limit_past_the_collective_timeout_is_told_with_both_numbers_and_the_way_out() -> None:
    text = said(Watchdog(step_s=90.0), 60.0)
    assert "give a collective up after 60 s" in text
    assert "step 90 s (watchdog.step), and then 30 s of patience (watchdog.patience: auto)" in text
    assert "limit + patience < collective timeout" in text
    assert "lower watchdog.step or watchdog.patience" in text
    assert "timeout=timedelta(seconds=150)" in text


def test_patience_counts_too() -> None:
    assert said(Watchdog(step_s=20.0), 45.0)
    assert not said(Watchdog(step_s=20.0, patience_s=5.0), 45.0)


def test_a_learned_step_limit_counts_once_there_is_one() -> None:
    assert not said(Watchdog(), 20.0)
    assert "step 2 s (watchdog.min_step" in said(Watchdog(), 20.0, stepped=0.05)


def test_usual_limits_and_usual_timeouts_are_in_order() -> None:
    assert said(Watchdog(), 1800.0, stepped=0.05) == ""
    assert said(Watchdog(), 600.0, stepped=20.0) == ""


def test_defaults_of_other_phases_are_not_complained_of_and_stated_ones_are() -> None:
    assert said(Watchdog(), 60.0) == ""
    assert "eval 600 s (watchdog.eval)" in said(Watchdog(eval_s=600.0), 300.0)
    assert "tokenize 900 s" in said(Watchdog(phases_s={"tokenize": 900.0}), 300.0)


def test_nothing_is_said_without_a_timeout_or_a_watchdog() -> None:
    assert said(Watchdog(step_s=90.0), 0.0) == ""
    assert said(Watchdog(step_s=90.0, enabled=False), 60.0) == ""


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"watchdog": Watchdog(step_s=900.0, first_step_s=60.0)}, "in order is step <= first_step"),
        ({"watchdog": Watchdog(step_s=5.0, min_step_s=10.0)}, "watchdog.min_step (10 s) does nothing"),
        ({"watchdog": Watchdog(save_s=7200.0), "max_duration_s": 3600.0}, "watchdog.save (7200 s) is never reached"),
        ({"stop_grace_s": 900.0, "preempt": Preempt(grace_s=60.0)}, "in order is stop_grace <= preempt.grace"),
    ],
)
def test_what_the_job_file_alone_shows_is_told_at_launch(more: dict[str, Any], words: str) -> None:
    [text] = in_job_file(JobSpec("toy", ["train.py"], **more))
    assert words in text


def test_an_ordinary_job_file_is_in_order() -> None:
    assert in_job_file(JobSpec("toy", ["train.py"], max_duration_s=60.0, preempt=Preempt(grace_s=30.0))) == []
