"""Ends that nobody announces: exceptions caught into silence, ranks that leave too early or not at all."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent / "scripts" / "ends.py"
ONCE = "policy: never"
SHARP = "watchdog: {patience: 2s, step: 2s, first_step: 2s, exit: 3s}\n"

MakeJob = Callable[..., Any]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "said"),
    [("swallowed", "rank 1 was still handling ValueError: invalid literal for int()"),
     ("caught", "rank 1 had caught ValueError: bad sample 7")],
)  # fmt: skip
def test_an_exception_caught_into_silence_is_a_hang_that_names_the_rank_its_line_and_the_exception(
    make_job: MakeJob, kind: str, said: str
) -> None:
    job = make_job(f"{SCRIPT} {kind}", restart=ONCE, extra=SHARP)
    assert job.run() == 100, job.story()
    incident = job.verdict["incidents"][0]
    assert (incident["class"], incident["rank"], incident["followed"]) == ("hang", 1, [0]), job.story()
    asleep = [n for n, line in enumerate(SCRIPT.read_text().splitlines(), 1) if "time.sleep(LONG_S)" in line]
    assert int(incident["where"].rpartition(":")[2]) in asleep, incident
    assert any(reason.startswith(said) for reason in incident["because"]), incident


@pytest.mark.long
def test_who_leaves_with_code_0_too_early_is_named_and_not_those_it_left_waiting(make_job: MakeJob) -> None:
    job = make_job(f"{SCRIPT} exit_0 sleep", restart=ONCE)
    assert job.run() == 100, job.story()
    incident = job.verdict["incidents"][0]
    assert (incident["rank"], incident["exit_code"], incident["followed"]) == (1, 0, [0]), job.story()
    assert "code 0 before the other" in job.log_lines(1, 1)[-1]["msg"]


@pytest.mark.long
def test_a_thread_that_keeps_a_finished_rank_alive_costs_a_warning(make_job: MakeJob) -> None:
    job = make_job(f"{SCRIPT} lingers", restart=ONCE, extra=SHARP)
    assert job.run() == 0, job.story()
    assert job.verdict["state"] == "SUCCEEDED"
    assert "did not exit within 3 s" in job.verdict["reason"], job.story()
    assert job.log_lines(1, 1)[-1]["msg"] == "[zrun: ended by zrun: its script was over, its process was not]"
    (stack,) = job.run_dir.glob("node-*/attempt-1/lingering/stacks/rank-1.txt")
    assert "threading.py" in stack.read_text(), "where it still is"


@pytest.mark.long
def test_a_stop_needs_no_agreement_between_ranks(make_job: MakeJob) -> None:
    job = make_job(f"{SCRIPT} waits_at_term", restart=ONCE, extra="watchdog: {enabled: false}\n")
    job.change("stop_grace: 20s", "stop_grace: 2s")
    job.start()
    job.until("the trap", (job.folder / "ready").exists)
    os.kill(int((job.folder / "pid-0").read_text()), signal.SIGSTOP)
    assert job.zrun("stop").returncode == 0
    job.finish(timeout=30)
    assert job.verdict["state"] == "STOPPED", job.story()
