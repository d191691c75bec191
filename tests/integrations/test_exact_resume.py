"""Trainer, Lightning and Accelerate, killed in the middle of an epoch: with ours they end bit for bit as undisturbed, by
themselves they do not. Their newest whole checkpoint is found, and a stop comes at one step of all ranks.

The data draws a random number for every sample, the models drop out.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long
SCRIPTS = Path(__file__).resolve().parent / "scripts"
RUNS = {
    "transformers": f"{SCRIPTS / 'exact_hf.py'} out max_steps=40",
    "lightning": f"{SCRIPTS / 'exact_pl.py'} out 40",
    "accelerate": f"{SCRIPTS / 'exact_accel.py'} out 40",
}
KILLED = "1:29"
"""Rank and step: in the second epoch, after the save of step 25."""


def environment(*, ours: bool, dies: str = "-1:0", pause_s: float = 0.02) -> dict[str, str]:
    return {"OURS": str(int(ours)), "HF_HUB_OFFLINE": "1", "DIES": dies, "PAUSE_S": str(pause_s)}


def stop_at(job: Any, step: int) -> int:
    """Ask for a stop after `step`; the step at which it came."""
    launch = job.start()
    job.wait_for_step(step)
    assert job.zrun("stop", "toy").returncode == 0
    assert launch.wait(100) == 103, job.story()
    came: int = job.verdict["attempts"][0]["last_step"]
    assert step <= came < 40, job.story()
    assert job.verdict["checkpoints"][-1]["step"] == came, job.story()
    return came


def losses(job: Any, ranks: int) -> list[dict[int, str]]:
    """Of each rank, the last one that was written for a step."""
    told: list[dict[int, str]] = []
    for rank in range(ranks):
        lines = (job.folder / "out" / f"losses-{rank}").read_text().splitlines()
        told.append({int(step): loss for step, loss in (line.split() for line in lines)})
    return told


def undisturbed_and_killed(make_job: Callable[..., Any], run: str, *, ours: bool, nproc: int = 2) -> list[Any]:
    jobs = []
    for dies, attempts in (("-1:0", 1), (KILLED, 2)):
        job = make_job(run, nproc=nproc, env=environment(ours=ours, dies=dies))
        assert job.run(timeout=250) == 0, job.story()
        assert len(job.verdict["attempts"]) == attempts, job.story()
        jobs.append(job)
    return jobs


@pytest.mark.parametrize("framework", RUNS)
def test_with_ours_a_killed_run_ends_bit_for_bit_as_the_undisturbed_one(
    make_job: Callable[..., Any], framework: str
) -> None:
    calm, killed = undisturbed_and_killed(make_job, RUNS[framework], ours=True)
    assert losses(killed, 2) == losses(calm, 2), killed.story()
    assert killed.weights() == calm.weights()
    assert killed.verdict["attempts"][1]["resumed_from"]["step"] == 25, killed.story()
    assert killed.verdict["incidents"][0]["steps_lost"] == 3, killed.story()


@pytest.mark.parametrize("framework", RUNS)
def test_without_ours_it_does_not(make_job: Callable[..., Any], framework: str) -> None:
    calm, killed = undisturbed_and_killed(make_job, RUNS[framework], ours=False)
    assert losses(killed, 2) != losses(calm, 2)
    assert killed.weights() != calm.weights()


@pytest.mark.parametrize(
    "run",
    [f"{RUNS['transformers']} ddp_find_unused_parameters=False", RUNS["lightning"], RUNS["accelerate"]],
    ids=list(RUNS),
)
def test_with_three_ranks_too_where_ddp_sorts_its_buckets_anew(make_job: Callable[..., Any], run: str) -> None:
    calm, killed = undisturbed_and_killed(make_job, run, ours=True, nproc=3)
    assert losses(killed, 3) == losses(calm, 3), killed.story()
    assert killed.weights() == calm.weights()


@pytest.mark.parametrize(
    "run",
    [f"{RUNS['transformers']} dataloader_num_workers=2 gradient_accumulation_steps=2", f"{RUNS['lightning']} 2"],
    ids=["transformers", "lightning"],
)
def test_loader_workers_draw_the_same_again(make_job: Callable[..., Any], run: str) -> None:
    calm, killed = undisturbed_and_killed(make_job, run, ours=True)
    assert killed.weights() == calm.weights()


@pytest.mark.parametrize("framework", RUNS)
def test_a_stop_comes_at_one_step_of_all_ranks_and_the_run_goes_on_from_there(
    make_job: Callable[..., Any], framework: str
) -> None:
    calm = make_job(RUNS[framework], env=environment(ours=True))
    assert calm.run(timeout=250) == 0, calm.story()
    job = make_job(RUNS[framework], env=environment(ours=True, pause_s=0.5))
    stopped = stop_at(job, 11)
    assert "weights sha256" not in "".join(line["msg"] for line in job.log_lines(1, 0)), job.story()
    assert job.zrun("resume", "toy", timeout=200).returncode == 0, job.story()
    assert job.verdict["attempts"][1]["resumed_from"]["step"] == stopped, job.story()
    assert losses(job, 2) == losses(calm, 2), job.story()
    assert job.weights() == calm.weights()


def test_a_damaged_checkpoint_is_passed_over_with_its_reason_and_nothing_is_deleted(
    make_job: Callable[..., Any],
) -> None:
    job = make_job(RUNS["transformers"], env=environment(ours=True, pause_s=0.5))
    stop_at(job, 11)
    out = job.folder / "out"
    newest = max(out.glob("checkpoint-*"), key=lambda folder: int(folder.name.rpartition("-")[2]))
    weights = newest / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    assert job.zrun("resume", "toy", timeout=200).returncode == 0, job.story()
    told = "".join(line["msg"] for line in job.log_lines(2, 0))
    assert f"{newest.name} passed over" in told, job.story()
    assert "digest mismatch" in told
    before = int(newest.name.rpartition("-")[2]) - 1
    assert job.verdict["attempts"][1]["resumed_from"]["step"] == before // 5 * 5, job.story()
    (skipped,) = job.verdict["attempts"][1]["skipped"]
    assert skipped["path"] == str(newest)
    assert list(out.glob(f"unusable-{newest.name}.*"))
