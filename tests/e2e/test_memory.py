"""State that is kept in memory when something fails: no completed step is lost, and the end is bit for bit the same."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.conftest import SCRIPTS, Job

MakeJob = Callable[..., Job]
WeightsOf = Callable[..., str]
STEPS = 30
WATCHED = "watchdog: {patience: 2s}\n"


def script(strategy: str) -> str:
    return f"{SCRIPTS / 'keeps.py'} {strategy} {STEPS}"


def done(job: Job) -> dict[int, list[int]]:
    """attempt -> the steps that rank 0 or 1 ended, as they printed it."""
    found: dict[int, list[int]] = {}
    for attempt in range(1, len(job.verdict["attempts"]) + 1):
        lines = [line["msg"] for rank in (0, 1) for line in job.log_lines(attempt, rank)]
        found[attempt] = sorted({int(text.split()[1]) for text in lines if text.startswith("done ")})
    return found


def comes_back_from_memory(job: Job, weights: str) -> dict[str, Any]:
    assert job.run() == 0, job.story()
    first, second = job.verdict["attempts"]
    assert second["resumed_from"]["tier"] == "memory", job.story()
    ended = done(job)
    assert ended[2][0] == second["resumed_from"]["step"] + 1
    assert ended[1][-1] <= ended[2][0], "a step that every rank had ended is done again"
    assert job.weights() == weights
    assert first["outcome"] == "fault"
    found: dict[str, Any] = second["resumed_from"]
    return found


QUICK = [("ddp", 2, "kill:0:13:reduced"), ("fsdp", 2, "raise:1:13:stepped")]
LONG = [
    ("ddp", 2, "kill:1:13:forward"), ("ddp", 2, "kill:1:13:backward"), ("ddp", 2, "kill:0:13:inside"),
    ("ddp", 2, "kill:0:13:stepped"), ("ddp", 2, "raise:1:13:forward"), ("ddp", 2, "raise:0:13:inside"),
    ("ddp", 2, "raise:0:13:stepped"), ("ddp", 2, "sleep:1:13:forward"), ("ddp", 2, "stop:1:13:forward"),
    ("ddp", 3, "kill:0:13:reduced"), ("ddp", 3, "kill:2:13:inside"), ("ddp", 4, "kill:3:13:backward"),
    ("zero1", 2, "raise:0:13:forward"), ("zero1", 3, "raise:2:13:stepped"), ("fsdp", 2, "raise:1:13:forward"),
    ("fsdp", 3, "raise:0:13:backward"), ("hsdp", 4, "kill:1:13:forward"), ("hsdp", 4, "kill:0:13:stepped"),
    ("hsdp", 4, "raise:3:13:backward"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "nproc", "fault"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.long) for one in LONG)]
)
def test_no_completed_step_is_lost(
    make_job: MakeJob, weights_of: WeightsOf, strategy: str, nproc: int, fault: str
) -> None:
    undisturbed = weights_of(script(strategy), nproc)
    job = make_job(f"{script(strategy)} {fault}", nproc=nproc, every=1000, extra=WATCHED)
    found = comes_back_from_memory(job, undisturbed)
    assert found["step"] in (12, 13)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
def test_where_a_shard_is_gone_the_last_copy_of_the_cadence_has_it(
    make_job: MakeJob, weights_of: WeightsOf, strategy: str
) -> None:
    undisturbed = weights_of(script(strategy))
    job = make_job(f"{script(strategy)} kill:1:20:forward", every=1000, memory="5 steps")
    assert job.run() == 0, job.story()
    assert job.verdict["attempts"][1]["resumed_from"] == {"tier": "memory", "step": 17}
    assert job.weights() == undisturbed


@pytest.mark.long
def test_without_a_copy_in_memory_the_disk_is_the_last_resort(make_job: MakeJob, weights_of: WeightsOf) -> None:
    undisturbed = weights_of(script("ddp"))
    job = make_job(f"{script('ddp')} kill:1:13:forward", every=10, memory="off")
    assert job.run() == 0, job.story()
    assert job.verdict["attempts"][1]["resumed_from"]["tier"] == "disk"
    assert job.weights() == undisturbed


@pytest.mark.long
def test_a_kill_in_a_step_that_ends_with_a_save_loses_nothing_either(make_job: MakeJob, weights_of: WeightsOf) -> None:
    undisturbed = weights_of(script("ddp"))
    job = make_job(f"{script('ddp')} kill:1:20:reduced", every=20)
    assert comes_back_from_memory(job, undisturbed)["step"] in (19, 20)
