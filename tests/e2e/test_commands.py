"""Stop, resume, preempt, refuse: what a person at the terminal does to a job, and what bad input gets."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent / "scripts"
TOY = f"{SCRIPTS / 'toy.py'} --steps 60 --pause 0.05"
MakeJob = Callable[..., Any]


def test_ctrl_c_stops_after_a_save_and_resume_ends_like_an_undisturbed_run(
    make_job: MakeJob, weights_of: Callable[..., str]
) -> None:
    expected = weights_of(TOY)
    job = make_job(TOY)
    viewer = job.start()
    job.wait_for_step(23)
    os.killpg(viewer.pid, signal.SIGINT)
    assert job.finish() == 130, job.story()
    assert job.verdict["state"] == "STOPPED"
    saved = max(c["step"] for c in job.status()["checkpoints"])
    assert saved >= 23
    done = job.zrun("resume", timeout=120)
    assert done.returncode == 0, done.stderr + job.story()
    assert job.verdict["attempts"][1]["resumed_from"]["step"] == saved
    assert job.weights() == expected


def test_term_preempts_with_105_and_the_same_launch_goes_on_with_what_the_file_says_now(make_job: MakeJob) -> None:
    job = make_job(f"{TOY} --say before", extra="env: {GREETING: morning}\n")
    viewer = job.start()
    job.wait_for_step(13)
    viewer.terminate()
    assert job.finish() == 105, job.story()
    assert job.verdict["state"] == "PREEMPTED"
    job.change("--say before", "--say after")
    job.change("morning", "evening")
    assert job.run() == 0, job.story()
    assert job.verdict["state"] == "SUCCEEDED"
    assert len(list((job.folder / "runs").iterdir())) == 1, "one run, two launches"
    for rank in (0, 1):
        assert job.log_lines(1, rank)[0]["msg"] == "said before, greeted morning"
        assert job.log_lines(2, rank)[0]["msg"] == "said after, greeted evening", job.story()
    assert job.verdict["attempts"][1]["resumed_from"]["step"] >= 13


def test_restart_begins_the_next_attempt_where_all_ranks_saved_and_costs_nothing(
    make_job: MakeJob, weights_of: Callable[..., str]
) -> None:
    expected = weights_of(TOY)
    job = make_job(TOY, restart="max_restarts: 0")
    job.start()
    job.wait_for_step(13)
    assert job.zrun("restart").returncode == 0
    assert job.finish() == 0, job.story()
    verdict = job.verdict
    assert len(verdict["attempts"]) == 2, job.story()
    first, second = verdict["attempts"]
    assert second["resumed_from"]["step"] == first["last_step"] >= 13, job.story()
    assert verdict["incidents"] == []
    assert second["cause"] is None
    assert "asked for" in second["began_because"]
    assert job.weights() == expected


@pytest.mark.long
def test_a_job_that_is_out_of_time_is_saved_and_ends_with_104(make_job: MakeJob) -> None:
    job = make_job(TOY.replace("60", "6000"), extra="max_duration: 15s\n")
    assert job.run() == 104, job.story()
    assert job.verdict["state"] == "STOPPED"
    assert "max_duration" in job.verdict["reason"]
    assert len(job.verdict["attempts"]) == 1, job.story()
    saved = max(c["step"] for c in job.verdict["checkpoints"])
    assert saved == job.verdict["attempts"][0]["last_step"] > 0, job.story()


def test_a_live_job_is_not_launched_twice_and_the_commands_see_it(make_job: MakeJob) -> None:
    job = make_job(TOY.replace("60", "600"))
    job.start()
    job.wait_for_step(5)
    second = job.zrun("launch", "job.yaml")
    assert second.returncode == 2
    assert "live" in second.stderr
    listed = json.loads(job.zrun("ls", "--json").stdout)
    assert listed[0]["state"] == "RUNNING"
    described = json.loads(job.zrun("describe", "--json").stdout)
    assert described["spec"]["name"] == "toy"
    stacks = job.zrun("stacks")
    assert "toy.py" in stacks.stdout, stacks.stderr
    logs = job.zrun("logs", "--rank", "1", "--tail", "5")
    assert logs.stdout.count("[rank 1] step") == 5, logs.stdout
    assert job.zrun("stop").returncode == 0
    assert job.finish() == 103, job.story()
    assert job.verdict["state"] == "STOPPED"


def test_a_script_that_fails_at_import_is_not_retried(make_job: MakeJob) -> None:
    job = make_job("broken.py")
    (job.folder / "broken.py").write_text("import no_such_module_anywhere\n")
    assert job.run() == 100
    verdict = job.verdict
    assert len(verdict["attempts"]) == 1, job.story()
    assert verdict["incidents"][0]["exception"].startswith("ModuleNotFoundError")
    assert "broken.py:1" in verdict["incidents"][0]["where"]
    assert "no_such_module_anywhere" in job.output()


def test_a_missing_script_and_an_unknown_field_never_start_anything(make_job: MakeJob) -> None:
    job = make_job("not_there.py")
    assert job.run() == 2
    assert "not_there.py" in job.output()
    (job.folder / "job.yaml").write_text("name: toy\nrun: x.py\nnum_nodes: 2\n")
    assert job.run() == 2
    assert "job.yaml:3:1" in job.output()
    assert "nodes" in job.output()
    assert not (job.folder / "runs").exists()


@pytest.mark.long
def test_an_exit_code_reaches_the_verdict_and_not_zruns_own(make_job: MakeJob) -> None:
    job = make_job(TOY, fault="exit:1:4", restart="policy: never")
    assert job.run() == 100
    assert job.verdict["incidents"][0]["exit_code"] == 7
    assert job.verdict["incidents"][0]["rank"] == 1
    assert "exited with code 7" in job.output()


@pytest.mark.long
def test_a_job_runs_under_a_coordinator_and_agent_started_by_hand(make_job: MakeJob) -> None:
    import subprocess
    import sys

    job = make_job(TOY.replace("60", "20"))
    home = job.folder / "home"
    run = [sys.executable, "-m", "zrun.cli.main"]
    with (job.folder / "service.out").open("w") as out:
        coordinator = subprocess.Popen([*run, "coordinator", "--dir", str(home)], env=job.env, stdout=out, stderr=out)
        agent = None
        try:
            job.until("the coordinator", (home / "coordinator.json").exists, 30)
            address = json.loads((home / "coordinator.json").read_text())["address"]
            token = str(home / "token")
            agent = subprocess.Popen([*run, "agent", "--join", address, "--token-file", token], env=job.env,
                                     stdout=out, stderr=out)  # fmt: skip
            job.env["ZRUN_TOKEN_FILE"] = token
            assert job.run("--coordinator", address) == 0, job.output() + (job.folder / "service.out").read_text()
            listed = json.loads(job.zrun("ls", "--json", "--coordinator", address).stdout)
            assert listed[0]["state"] == "SUCCEEDED"
        finally:
            for process in (agent, coordinator):
                if process is not None:
                    process.terminate()
                    process.wait(30)


def test_a_coordinator_that_is_not_there_is_exit_3(make_job: MakeJob) -> None:
    job = make_job(TOY)
    done = job.zrun("status", "--coordinator", "http://127.0.0.1:9")
    assert done.returncode == 3
    assert "127.0.0.1:9" in done.stderr
