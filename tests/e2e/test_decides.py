"""Whether to go on: a bad batch is skipped, the same failure twice is the end, the user's own rule comes first."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent / "scripts"
TOY = f"{SCRIPTS / 'toy.py'} --steps 30 --pause 0.02"
BAD_SAMPLE = 100

MakeJob = Callable[..., Any]


def test_a_batch_that_ended_two_attempts_is_skipped_and_the_job_does_all_its_steps(make_job: MakeJob) -> None:
    job = make_job(f"{TOY} --samples 512 --bad-sample {BAD_SAMPLE}")
    assert job.run() == 0, job.story()
    verdict = job.verdict
    assert verdict["state"] == "SUCCEEDED"
    assert [a["outcome"] for a in verdict["attempts"]] == ["fault", "fault", "finished"], job.story()
    first, second = verdict["incidents"]
    bad = first["batch"]
    assert second["batch"] == bad, job.story()
    assert first["exception"] == "ValueError"
    assert f"sample {BAD_SAMPLE}" in first["message"]
    assert verdict["quarantined"] == [bad]
    assert job.status()["quarantined"] == [bad]
    assert bad in job.output()
    lines = [re.search(r"step (\d+) batch (\S+) ", line["msg"]) for line in job.log_lines(3, 0)]
    done = [(int(found[1]), found[2]) for found in lines if found]
    steps = [step for step, _ in done]
    assert steps == list(range(steps[0], 31)), "no gap, up to the last"
    assert steps[0] == ((verdict["attempts"][2]["resumed_from"] or {}).get("step") or 0) + 1
    batches = [int(batch.split("-")[1][1:]) for _, batch in done]
    skipped = int(bad.split("-")[1][1:])
    assert batches == [n for n in range(steps[0], 32) if n != skipped], "only the bad batch is missing"


@pytest.mark.long
def test_the_same_failure_twice_without_a_checkpoint_between_is_deterministic_and_ends_the_job(
    make_job: MakeJob,
) -> None:
    job = make_job(TOY, fault="raise:1:7:always", extra="data: {quarantine_after: 0}\n")
    assert job.run() == 100, job.story()
    verdict = job.verdict
    assert verdict["state"] == "FAILED"
    assert len(verdict["attempts"]) == 2, job.story()
    assert "deterministic" in verdict["reason"]
    assert [i["step"] for i in verdict["incidents"]] == [7, 7]
    assert "deterministic" in job.output()


def test_an_exit_code_that_a_rule_says_to_fail_on_ends_the_job_at_once(make_job: MakeJob) -> None:
    job = make_job(TOY, fault="sysexit:1:7", restart="rules: [{match: {exit_code: 75}, do: fail}]")
    assert job.run() == 100, job.story()
    verdict = job.verdict
    assert verdict["state"] == "FAILED"
    assert len(verdict["attempts"]) == 1, job.story()
    assert verdict["incidents"][0]["exit_code"] == 75
    assert verdict["incidents"][0]["rank"] == 1
    assert "exit code 75" in verdict["reason"]
