"""Every signal to every program of a running job, and stops that nobody but the agent has to agree to."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent / "scripts"
TOY = f"{SCRIPTS / 'toy.py'} --steps 600 --pause 0.05"
SHORT = TOY.replace("600", "120")
STUBBORN = str(SCRIPTS / "stubborn.py")
WARNED = "preempt: {signals: [TERM, USR1], grace: 60s}\n"
NOT_WARNED = "preempt: {signals: [TERM], grace: 60s}\n"
ZRUN = [sys.executable, "-m", "zrun.cli.main"]
MakeJob = Callable[..., Any]


def saved_all(job: Any) -> bool:
    """The last attempt's last step is in a checkpoint."""
    verdict = job.verdict
    return bool(max(c["step"] for c in verdict["checkpoints"]) == verdict["attempts"][-1]["last_step"])


def unharmed(job: Any) -> None:
    """It ended well in its first attempt."""
    assert job.verdict["state"] == "SUCCEEDED", job.story()
    assert len(job.verdict["attempts"]) == 1, job.story()
    assert job.verdict["incidents"] == []


# --- zrun launch


@pytest.mark.long
def test_ctrl_c_twice_stops_at_once_with_130(make_job: MakeJob) -> None:
    job = make_job(TOY)
    viewer = job.start()
    job.wait_for_step(5)
    viewer.send_signal(signal.SIGINT)
    job.until("the first to be heard", lambda: "stopping after a save" in job.output())
    viewer.send_signal(signal.SIGINT)
    assert job.finish(60) == 130, job.story()
    assert job.verdict["state"] == "STOPPED"
    job.until("everybody to be gone", lambda: not job.processes(), 20)


@pytest.mark.long
def test_usr1_to_the_viewer_preempts_where_the_job_says_so(make_job: MakeJob) -> None:
    job = make_job(TOY, extra=WARNED)
    viewer = job.start()
    job.wait_for_step(5)
    viewer.send_signal(signal.SIGUSR1)
    assert job.finish(60) == 105, job.story()
    assert "SIGUSR1: preempting" in job.output()
    assert saved_all(job)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_viewer_that_hangs_up_or_is_killed_leaves_the_job_to_its_end(make_job: MakeJob, number: int) -> None:
    job = make_job(SHORT)
    viewer = job.start()
    job.wait_for_step(5)
    viewer.send_signal(number)
    assert job.finish(30) == (101 if number == signal.SIGHUP else -signal.SIGKILL)
    assert job.zrun("wait", timeout=120).returncode == 0, job.story()
    unharmed(job)
    job.until("the supervisor to be gone", lambda: not job.processes(), 20)


@pytest.mark.long
def test_a_stopped_viewer_stops_nothing_and_goes_on_where_the_job_is(make_job: MakeJob) -> None:
    job = make_job(SHORT)
    viewer = job.start()
    before = job.wait_for_step(5)["step"]
    viewer.send_signal(signal.SIGTSTP)
    viewer.send_signal(signal.SIGSTOP)  # of an orphaned process group the first one is not heard
    job.wait_for_step(before + 10)
    viewer.send_signal(signal.SIGCONT)
    assert job.finish() == 0, job.story()
    unharmed(job)


# --- supervisor, keeper


@pytest.mark.long
def test_stray_signals_to_supervisor_and_keeper_harm_nobody(make_job: MakeJob) -> None:
    job = make_job(SHORT)
    job.start()
    job.wait_for_step(5)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(job.pid_of("supervisor"), number)
        os.kill(job.pid_of("keeper"), number)
    os.kill(job.pid_of("keeper"), signal.SIGTERM)
    assert job.finish() == 0, job.story()
    unharmed(job)


@pytest.mark.long
def test_term_to_the_supervisor_preempts_as_a_schedulers_would(make_job: MakeJob) -> None:
    job = make_job(TOY)
    job.start()
    job.wait_for_step(5)
    os.kill(job.pid_of("supervisor"), signal.SIGTERM)
    assert job.finish(60) == 105, job.story()
    assert saved_all(job)


# --- coordinator


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_coordinator_told_to_end_stops_serving_and_jobs_go_on(make_job: MakeJob, number: int) -> None:
    job = make_job(SHORT)
    job.start()
    job.wait_for_step(5)
    pid = job.pid_of("coordinator")
    os.kill(pid, number)
    job.until("another coordinator", lambda: (found := job.find("coordinator")) and found[0] != pid)
    assert job.finish() == 0, job.story()
    unharmed(job)
    assert "stops serving, jobs go on" in (job.run_dir / "coordinator.log").read_text()


@pytest.fixture
def service(make_job: MakeJob) -> Iterator[Callable[..., Any]]:
    """`service(run)`: a job, its coordinator and its agent, each started by hand."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(run: str, **more: Any) -> Any:
        job = make_job(run, **more)
        job.home = job.folder / "home"
        out = (job.folder / "service.out").open("w")
        with out:
            job.head = subprocess.Popen(
                [*ZRUN, "coordinator", "--dir", str(job.home)], env=job.env, stdout=out, stderr=out
            )
            started.append(job.head)
            job.until("the coordinator", (job.home / "coordinator.json").exists, 60)
            job.address = json.loads((job.home / "coordinator.json").read_text())["address"]
            job.env["ZRUN_TOKEN_FILE"] = str(job.home / "token")
            job.node = subprocess.Popen([*ZRUN, "agent", "--join", job.address], env=job.env, stdout=out, stderr=out)
            started.append(job.node)
        job.start("--coordinator", job.address)
        job.until("step 5", lambda: "step 5 " in job.output())
        return job

    yield begin
    for process in reversed(started):
        if process.poll() is None:
            process.terminate()
        process.wait(60)


@pytest.mark.long
def test_hangup_makes_a_coordinator_read_its_token_again_and_agents_come_back_with_the_new_one(
    service: Callable[..., Any],
) -> None:
    job = service(TOY)
    old = (job.home / "token").read_text()
    (job.home / "new").write_text("f" * 64 + "\n")
    (job.home / "new").chmod(0o600)
    (job.home / "new").replace(job.home / "token")
    assert job.zrun("status", "--coordinator", job.address).returncode == 4, "the new one is not valid yet"
    job.head.send_signal(signal.SIGHUP)
    job.until("the new token to be valid", lambda: job.zrun("status", "--coordinator", job.address).returncode == 0)
    (job.folder / "old").write_text(old)
    job.env["ZRUN_TOKEN_FILE"] = str(job.folder / "old")
    assert job.zrun("status", "--coordinator", job.address).returncode == 4
    job.env["ZRUN_TOKEN_FILE"] = str(job.home / "token")
    job.node.send_signal(signal.SIGHUP)  # harmless
    assert job.node.poll() is None
    assert job.zrun("stop", "--coordinator", job.address).returncode == 0
    job.until(
        "the agent to hear of it", lambda: json.loads(
            job.zrun("status", "--json", "--coordinator", job.address).stdout)["state"] == "STOPPED", 60,
    )  # fmt: skip


# --- agent


@pytest.mark.long
def test_hangup_and_signals_that_are_no_warning_leave_the_agent_alone(make_job: MakeJob) -> None:
    job = make_job(SHORT, extra=NOT_WARNED)
    job.start()
    job.wait_for_step(5)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(job.pid_of("agent"), number)
    assert job.finish() == 0, job.story()
    unharmed(job)


@pytest.mark.parametrize("number", [
    signal.SIGUSR1, pytest.param(signal.SIGTERM, marks=pytest.mark.long), pytest.param(signal.SIGINT, marks=pytest.mark.long),
])  # fmt: skip
def test_an_agent_that_is_warned_or_told_to_leave_saves_the_job_first(make_job: MakeJob, number: int) -> None:
    job = make_job(TOY, extra=WARNED)
    job.start()
    job.wait_for_step(5)
    os.kill(job.pid_of("agent"), number)
    assert job.finish(60) == 105, job.story()
    assert job.verdict["state"] == "PREEMPTED"
    assert saved_all(job)
    assert job.verdict["incidents"] == []


# --- rank


def pid_of_rank(job: Any, rank: int) -> int:
    pid: int = job.until(f"rank {rank}", lambda: job.ranks().get(rank))["pid"]
    return pid


def test_term_to_one_rank_preempts_the_whole_job_and_kills_nobody(make_job: MakeJob) -> None:
    job = make_job(TOY)
    job.start()
    job.wait_for_step(5)
    os.kill(pid_of_rank(job, 1), signal.SIGTERM)
    assert job.finish(60) == 105, job.story()
    assert job.verdict["incidents"] == []
    assert saved_all(job)


@pytest.mark.long
def test_term_to_one_rank_of_a_script_that_saves_in_its_own_handler_reaches_all_its_ranks(make_job: MakeJob) -> None:
    job = make_job(f"{STUBBORN} handler")
    job.start()
    job.until("both to step", lambda: len(list(job.folder.glob("stepping.*"))) == 2)
    os.kill(pid_of_rank(job, 1), signal.SIGTERM)
    assert job.finish(60) == 105, job.story()
    assert len(list(job.folder.glob("asked.*"))) == 2, "the script's own handler ran on both"
    assert len(list(job.folder.glob("saved.*"))) == 2, job.story()


@pytest.mark.long
def test_int_hup_and_usr1_are_left_to_the_script(make_job: MakeJob) -> None:
    job = make_job(f"{STUBBORN} own")
    job.start()
    job.until("both to step", lambda: len(list(job.folder.glob("stepping.*"))) == 2)
    pid = pid_of_rank(job, 1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(pid, number)
        job.until(f"{number} in the script", (job.folder / f"{signal.Signals(number).name}.1").exists)
    assert job.status()["state"] in {"STARTING", "RUNNING"}
    os.kill(pid, signal.SIGUSR2)  # no handler: as anywhere, it ends the process
    job.until("the next attempt", lambda: job.status().get("attempt") == 2)
    assert job.status()["incidents"][0]["signal"] == "SIGUSR2"
    assert job.status()["incidents"][0]["rank"] == 1
    assert job.zrun("stop", "--now").returncode == 0
    assert job.finish(60) == 103, job.story()


# --- stops that need nobody's consent


NOTIFY = "watchdog: {on_hang: notify}\n"


def stop_it(job: Any, waits_for: str, *, twice: bool = False) -> None:
    """Ctrl-C once `waits_for` is there: it ends, as STOPPED with 130, with nobody left."""
    viewer = job.start()
    job.until(waits_for, lambda: list(job.folder.glob(f"{waits_for}*")) or waits_for in job.output())
    viewer.send_signal(signal.SIGINT)
    if twice:
        job.until("the first to be heard", lambda: "stopping after a save" in job.output())
        viewer.send_signal(signal.SIGINT)
    assert job.finish(60) == 130, job.story()
    assert job.verdict["state"] == "STOPPED", job.story()
    assert job.verdict["exit_code"] == 103
    job.until("everybody to be gone", lambda: not job.processes(), 20)


def short(job: Any) -> Any:
    job.change("stop_grace: 20s", "stop_grace: 3s")
    return job


@pytest.mark.long
def test_a_handler_that_waits_for_a_stopped_peer_does_not_hold_up_the_stop(make_job: MakeJob) -> None:
    stop_it(short(make_job(f"{STUBBORN} barrier", extra=NOTIFY)), "stepping.1")


@pytest.mark.long
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(("mode", "waits_for"), [
    ("barrier", "stepping.1"), ("ignore", "stepping.1"), ("block", "stepping.1"), ("import", "importing.1"),
    ("save", "saving.0"),
])  # fmt: skip
def test_a_script_that_does_not_want_to_end_is_ended(make_job: MakeJob, mode: str, waits_for: str, twice: bool) -> None:
    stop_it(short(make_job(f"{STUBBORN} {mode}", extra=NOTIFY)), waits_for, twice=twice)


@pytest.mark.long
@pytest.mark.parametrize("twice", [False, True])
def test_set_up_commands_that_ignore_signals_are_ended_by_a_stop(make_job: MakeJob, twice: bool) -> None:
    setup = "setup: touch $E2E_FOLDER/settingup; trap '' TERM INT HUP; sleep 500; sleep 500\n"
    stop_it(short(make_job(TOY, extra=setup)), "settingup", twice=twice)


@pytest.mark.long
@pytest.mark.parametrize("twice", [False, True])
def test_a_stop_while_the_next_attempt_is_waited_for_comes_at_once(make_job: MakeJob, twice: bool) -> None:
    job = make_job(TOY, fault="raise:1:4")
    job.change("backoff: {crash: 0s..1s}", "backoff: {crash: 300s..300s}")
    stop_it(job, "RECOVERING", twice=twice)


@pytest.mark.long
@pytest.mark.parametrize("twice", [False, True])
def test_ctrl_c_while_the_coordinator_is_dead_is_kept_until_it_is_back(make_job: MakeJob, twice: bool) -> None:
    job = make_job(TOY)
    viewer = job.start()
    job.wait_for_step(5)
    os.kill(job.pid_of("coordinator"), signal.SIGKILL)
    for _ in range(1 + twice):
        viewer.send_signal(signal.SIGINT)
    assert job.finish(90) == 130, job.story()
    assert job.verdict["state"] == "STOPPED"


@pytest.mark.long
def test_ctrl_c_while_nodes_are_waited_for_ends_at_once(make_job: MakeJob) -> None:
    job = make_job(TOY, extra="nodes: 2\n")
    stop_it(job, "PENDING")
