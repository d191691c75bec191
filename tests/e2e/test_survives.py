"""A rank dies, raises, stops or sleeps: the job names it, comes back, and ends with the same weights, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
TOY = f"{SCRIPTS / 'toy.py'} --steps 30 --pause 0.05"
HYBRID = (
    f"{ROOT / 'examples/hybrid/train.py'} --layers 4 --hidden 32 --heads 2 --batch 8 --seq 64 --steps 24 --strategy"
)
CONVNET = f"{ROOT / 'examples/convnet/convnet.py'} --steps 24 --strategy"
PATIENT = "watchdog: {patience: 2s}\n"

MakeJob = Callable[..., Any]
undisturbed: dict[str, str] = {}


def weights_of(make_job: MakeJob, run: str) -> str:
    """The digest of a run that was never disturbed; computed once for each script."""
    if run not in undisturbed:
        job = make_job(run)
        assert job.run() == 0, job.story()
        undisturbed[run] = job.weights()
    return undisturbed[run]


def survive(make_job: MakeJob, run: str, kind: str, rank: int, step: int) -> dict[str, Any]:
    expected = weights_of(make_job, run)
    job = make_job(run, fault=f"{kind}:{rank}:{step}", extra=PATIENT)
    assert job.run() == 0, job.story()
    verdict: dict[str, Any] = job.verdict
    assert verdict["state"] == "SUCCEEDED"
    assert len(verdict["attempts"]) == 2, job.story()
    incident: dict[str, Any] = verdict["incidents"][0]
    assert incident["rank"] == rank, job.story()
    assert incident["step"] == step, job.story()
    assert incident["batch"].startswith("e"), job.story()
    assert incident["because"], job.story()
    assert verdict["attempts"][1]["resumed_from"]["step"] == (step - 1) // 10 * 10
    assert job.weights() == expected, job.story()
    return incident


def test_a_killed_rank_is_named_and_the_toy_ends_with_the_same_weights(make_job: MakeJob) -> None:
    incident = survive(make_job, TOY, "kill", 1, 17)
    assert incident["class"] == "crash"
    assert incident["signal"] == "SIGKILL"


def test_a_raise_is_told_with_its_type_place_and_batch(make_job: MakeJob) -> None:
    incident = survive(make_job, TOY, "raise", 1, 13)
    assert incident["exception"].startswith("ValueError")
    assert "with_fault.py" in incident["where"]


def test_a_stopped_rank_is_acted_on_at_once(make_job: MakeJob) -> None:
    incident = survive(make_job, TOY, "stop", 0, 14)
    assert incident["class"] == "hang"


def test_a_rank_asleep_before_its_all_reduce_is_named_and_ended_after_patience(make_job: MakeJob) -> None:
    incident = survive(make_job, TOY, "sleep", 1, 19)
    assert incident["class"] == "hang"
    assert "all_reduce" in incident["headline"], incident
    assert (incident["detected_s"] or 0) < 10


@pytest.mark.parametrize(
    ("script", "strategy", "kind", "rank", "step"),
    [
        (HYBRID, "ddp", "kill", 0, 13),
        (HYBRID, "zero3", "raise", 1, 17),
        (CONVNET, "ddp", "sleep", 1, 15),
    ],
)
def test_the_examples_end_with_the_same_weights(
    make_job: MakeJob, script: str, strategy: str, kind: str, rank: int, step: int
) -> None:
    survive(make_job, f"{script} {strategy}", kind, rank, step)


CROSS = [
    (HYBRID, "ddp", "kill", 1, 7), (HYBRID, "ddp", "stop", 0, 19), (HYBRID, "ddp", "sleep", 1, 11),
    (HYBRID, "ddp", "raise", 0, 23), (HYBRID, "zero1", "kill", 0, 14), (HYBRID, "zero1", "raise", 1, 8),
    (HYBRID, "zero1", "stop", 1, 21), (HYBRID, "zero1", "sleep", 0, 17), (HYBRID, "zero2", "kill", 1, 16),
    (HYBRID, "zero2", "raise", 0, 9), (HYBRID, "zero2", "sleep", 1, 22), (HYBRID, "zero3", "kill", 0, 12),
    (HYBRID, "zero3", "stop", 1, 18), (HYBRID, "zero3", "sleep", 0, 6), (CONVNET, "ddp", "kill", 0, 13),
    (CONVNET, "ddp", "raise", 1, 19), (CONVNET, "ddp", "stop", 1, 8), (CONVNET, "zero3", "kill", 1, 15),
    (CONVNET, "zero3", "sleep", 0, 22), (CONVNET, "zero3", "raise", 0, 6),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("script", "strategy", "kind", "rank", "step"), CROSS)
def test_every_strategy_and_fault_ends_with_the_same_weights(
    make_job: MakeJob, script: str, strategy: str, kind: str, rank: int, step: int
) -> None:
    survive(make_job, f"{script} {strategy}", kind, rank, step)
