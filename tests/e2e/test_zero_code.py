"""A script that knows nothing of zrun still has steps, a verdict and a restart."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent / "scripts"


def test_a_plain_torchrun_script_has_steps_in_its_status_and_is_restarted_after_a_kill(
    make_job: Callable[..., Any],
) -> None:
    job = make_job(f"{SCRIPTS / 'plain_ddp.py'} 80 0.1")
    job.start()
    job.wait_for_step(10)
    pid = job.ranks()[1]["pid"]
    os.kill(pid, signal.SIGKILL)
    assert job.finish() == 0, job.story()
    verdict = job.verdict
    assert verdict["state"] == "SUCCEEDED"
    assert len(verdict["attempts"]) == 2, job.story()
    (incident,) = verdict["incidents"]
    assert (incident["class"], incident["rank"], incident["signal"]) == ("crash", 1, "SIGKILL")
    assert incident["step"] >= 10, job.story()
    assert verdict["attempts"][1]["resumed_from"] is None, "its checkpoints are its own affair"
    assert [line["msg"].split()[1] for line in job.log_lines(2, 0) if line["msg"].startswith("step")][-1] == "80"


def test_a_loop_that_no_hook_sees_has_the_steps_it_prints_and_is_restarted_when_it_hangs(
    make_job: Callable[..., Any],
) -> None:
    pattern = r"watchdog: {log_pattern: 'step (?P<step>\d+)', patience: 2s}" + "\n"
    job = make_job(f"{SCRIPTS / 'prints.py'} 60 1 30", extra=pattern)
    job.start()
    job.wait_for_step(20)
    assert job.finish() == 0, job.story()
    (incident,) = job.verdict["incidents"]
    assert (incident["class"], incident["rank"], incident["step"]) == ("hang", 1, 29), job.story()
    assert job.verdict["attempts"][1]["last_step"] == 60
