"""Intervals and effective training time: the published formulas, their figures, and a simulation as the judge."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.plan.checkpoint import Storage, load_s, saving
from zrun.plan.ettr import DAY_S, Weather, best_interval_s, closed_form, daly_s, ettr, sensitivity, young_s
from zrun.plan.model import built
from zrun.plan.recipe import RECIPES
from zrun.plan.strategies import STRATEGIES, Choice

GB = 10**9
CALM = Weather(nodes=8, failures=6.5, detection_s=10.0, restart_s=120.0, stall_s=5.0)


@pytest.mark.parametrize(("gpus", "hours"), [(16_384, 1.8), (131_072, 0.23)])
def test_the_mean_time_to_failure_is_what_was_published_for_large_jobs(gpus: int, hours: float) -> None:
    assert replace(CALM, nodes=gpus // 8).mttf_s / 3600 == pytest.approx(hours, rel=0.03)


def test_419_interruptions_in_54_days_come_back_from_the_rate_of_that_run() -> None:
    weather = replace(CALM, nodes=2048, failures=3.789)
    assert 54 * DAY_S / weather.mttf_s == pytest.approx(419, rel=0.001)


@given(st.floats(0.1, 1e3), st.floats(1e4, 1e8))
def test_daly_is_young_less_the_stall_where_stalls_are_small(stall: float, mttf: float) -> None:
    young = young_s(stall, mttf)
    assert young == pytest.approx(math.sqrt(2 * stall * mttf))
    assert daly_s(stall, mttf) == pytest.approx(young, rel=0.6 * math.sqrt(stall / mttf) + stall / young + 1e-9)


def test_where_a_save_takes_longer_than_machines_live_the_interval_is_their_life() -> None:
    assert daly_s(500.0, 200.0) == 200.0


@given(st.floats(0.5, 300), st.integers(1, 4000), st.floats(0.5, 20), st.floats(0, 600), st.floats(0, 1800))
def test_no_other_interval_is_noticeably_better_than_dalys(
    stall: float, nodes: int, failures: float, detection: float, restart: float
) -> None:
    weather = Weather(nodes, failures, detection, restart, stall)
    best = best_interval_s(weather)
    found = ettr(best, weather)
    others = [ettr(best * factor, weather) for factor in (0.25, 0.5, 0.8, 0.9, 1.1, 1.25, 2.0, 4.0)]
    assert max(others) <= found * 1.005 + 1e-12


@given(st.floats(1, 60), st.integers(1, 200), st.floats(0.5, 10))
def test_the_published_closed_form_agrees_where_losses_are_small(stall: float, nodes: int, failures: float) -> None:
    weather = Weather(nodes, failures, 10.0, 60.0, stall)
    best = best_interval_s(weather)
    loss = 1 - ettr(best, weather)
    assert closed_form(best, weather) == pytest.approx(ettr(best, weather), abs=loss * loss + 1e-6)


def simulated(interval: float, weather: Weather, failures: int, seed: int) -> float:
    """Work kept per second of a job that fails at exponential times, also while it restarts."""
    rng = random.Random(seed)
    clock = kept = 0.0
    for _ in range(failures):
        life = rng.expovariate(1 / weather.mttf_s)
        clock += life
        worked = life - weather.down_s  # it begins with the restart after the last failure
        if worked > 0:
            kept += interval * (worked // (interval + weather.stall_s))
    return kept / clock


@pytest.mark.parametrize(
    "weather",
    [CALM, replace(CALM, nodes=1024, stall_s=60.0), replace(CALM, nodes=4096, detection_s=600.0, restart_s=600.0)],
)
def test_expected_ettr_is_what_a_simulated_job_reaches(weather: Weather) -> None:
    best = best_interval_s(weather)
    assert simulated(best, weather, 20_000, 7) == pytest.approx(ettr(best, weather), abs=0.01)


@given(st.floats(1, 1e5), st.floats(0.1, 100))
def test_slower_detection_slower_restart_and_more_failures_only_cost(interval: float, failures: float) -> None:
    weather = replace(CALM, failures=failures)
    found = ettr(interval, weather)
    assert 0 <= found <= 1
    assert ettr(interval, replace(weather, detection_s=1000.0)) <= found
    assert ettr(interval, replace(weather, restart_s=1000.0)) <= found
    assert ettr(interval, replace(weather, failures=failures * 2)) <= found


def test_without_failures_only_the_stalls_are_lost() -> None:
    still = replace(CALM, failures=0.0)
    assert math.isinf(still.mttf_s)
    assert ettr(95.0, still) == 0.95
    assert best_interval_s(still) == math.inf


def test_a_job_that_never_gets_through_an_interval_reaches_nothing() -> None:
    assert ettr(1e9, replace(CALM, nodes=10_000)) == 0.0


def test_sensitivity_holds_every_pair_and_falls_along_both() -> None:
    rows = sensitivity(1000.0, CALM)
    assert len({(row["detection_s"], row["restart_s"]) for row in rows}) == 25
    assert rows[0]["ettr"] > rows[-1]["ettr"]


def test_the_bf16_weights_of_27_billion_are_54_gigabytes_and_the_whole_checkpoint_378() -> None:
    found = saving(built(27 * GB, 0, [], "x"), RECIPES["mixed"], 64, Storage(54e9, 10e9))
    assert (found.weights_bytes, found.bytes) == (54 * GB, 378 * GB)
    assert found.bytes_per_rank == 378 * GB / 64
    assert (found.save_s, found.load_s) == (7.0, 7.0)
    assert found.staging_s == pytest.approx(0.590625)
    assert found.to_json()["gather_host_bytes"] == {"weights": 54 * GB, "all": 378 * GB}


def test_replicas_read_the_same_bytes_again() -> None:
    model, storage = built(27 * GB, 0, [], "x"), Storage(378e9)
    sharded = load_s(Choice(STRATEGIES["zero3"], 64), model, RECIPES["mixed"], 64, storage)
    copied = load_s(Choice(STRATEGIES["ddp"], 1), model, RECIPES["mixed"], 64, storage)
    assert (sharded, copied) == (1.0, 64.0)
    assert load_s(Choice(STRATEGIES["ddp"], 1), model, RECIPES["mixed"], 64, Storage()) is None
