"""A job that stands still for a while and goes on by itself is left alone."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent / "scripts"
TOY = f"{SCRIPTS / 'toy.py'} --steps 40 --pause 0.05"

MakeJob = Callable[..., Any]


def test_all_ranks_stopped_is_suspended_and_continued_without_an_incident(make_job: MakeJob) -> None:
    job = make_job(TOY.replace("40", "160"))
    job.start()
    job.wait_for_step(8)
    pids = [rank["pid"] for rank in job.ranks().values()]
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    job.wait_for_state("SUSPENDED")
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    job.wait_for_state("RUNNING")
    assert job.finish() == 0, job.story()
    assert job.verdict["state"] == "SUCCEEDED"
    assert len(job.verdict["attempts"]) == 1, job.story()
    assert job.verdict["incidents"] == [], job.story()


def test_with_notify_a_hang_is_told_and_never_ends_the_job(make_job: MakeJob) -> None:
    job = make_job(TOY, fault="nap:1:13", extra="watchdog: {on_hang: notify, patience: 1s}\n")
    assert job.run() == 0, job.story()
    verdict = job.verdict
    assert verdict["state"] == "SUCCEEDED"
    assert len(verdict["attempts"]) == 1, job.story()
    (incident,) = verdict["incidents"]
    assert incident["class"] == "hang"
    assert incident["rank"] == 1
    assert incident["open"] is False
    assert "moved again" in incident["resolution"]
