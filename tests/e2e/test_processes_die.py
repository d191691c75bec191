"""Coordinator, agent, supervisor and viewer are killed under a running job."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent / "scripts"
TOY = f"{SCRIPTS / 'toy.py'} --steps 120 --pause 0.05"


def test_training_goes_on_while_the_coordinator_is_dead_and_the_job_ends_right(make_job: Callable[..., Any]) -> None:
    job = make_job(TOY)
    job.start()
    before = job.wait_for_step(15)
    address = (job.run_dir / "coordinator.json").read_text()
    os.kill(job.pid_of("coordinator"), signal.SIGKILL)
    after = job.until(
        "the coordinator to be back", lambda: (s := job.status()).get("step", 0) > before["step"] + 5 and s
    )
    assert after["attempt"] == 1
    assert job.finish() == 0, job.story()
    assert len(job.verdict["attempts"]) == 1, job.story()
    assert job.verdict["incidents"] == []
    assert address.split("pid")[0] == (job.run_dir / "coordinator.json").read_text().split("pid")[0], "same port"


def test_a_killed_agent_takes_its_workers_along_and_the_next_one_starts_attempt_2(make_job: Callable[..., Any]) -> None:
    job = make_job(TOY)
    job.start()
    job.wait_for_step(25)
    first = set(job.marked())
    assert first
    os.kill(job.pid_of("agent"), signal.SIGKILL)
    job.until("every worker of attempt 1 to be gone", lambda: not first & set(job.marked()), 2.5)
    assert job.finish() == 0, job.story()
    verdict = job.verdict
    assert len(verdict["attempts"]) == 2, job.story()
    assert verdict["incidents"][0]["class"] == "node"
    assert verdict["attempts"][1]["resumed_from"]["step"] >= 10, "at most one cadence is lost"


def test_a_killed_viewer_leaves_the_job_running_to_its_end(make_job: Callable[..., Any]) -> None:
    job = make_job(TOY)
    viewer = job.start()
    job.wait_for_step(5)
    viewer.kill()
    assert job.zrun("wait", timeout=120).returncode == 0, job.story()
    assert job.verdict["state"] == "SUCCEEDED"
    job.until("the supervisor to be gone", lambda: not job.processes(), 20)


@pytest.mark.long
def test_a_killed_supervisor_is_continued_by_the_next_launch(make_job: Callable[..., Any]) -> None:
    job = make_job(TOY)
    viewer = job.start()
    job.wait_for_step(25)
    for what in ("supervisor", "coordinator", "agent"):
        os.kill(job.pid_of(what), signal.SIGKILL)
    job.until("the workers to be gone", lambda: not job.marked(), 5)
    viewer.wait(60)
    assert job.run() == 0, job.story()
    assert job.verdict["state"] == "SUCCEEDED"
    assert len(job.verdict["attempts"]) == 2, job.story()
    assert len(list((job.folder / "runs").iterdir())) == 1
