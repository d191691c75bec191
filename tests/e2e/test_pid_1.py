"""zrun as process 1 of a container, and below a shell that is: signals arrive, orphans are reaped, it leaves last."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
TOY = f"{SCRIPTS / 'toy.py'} --steps 600 --pause 0.05"
ZRUN = [sys.executable, "-m", "zrun.cli.main"]
MakeJob = Callable[..., Any]


class Container:
    """A pid namespace of its own; `pid` is its process 1 as seen from here."""

    def __init__(self, job: Any, *command: str, number: int = 1) -> None:
        self.job = job
        self.out: Path = job.folder / f"container-{number}.out"
        with self.out.open("w") as out:
            self.process = subprocess.Popen(
                ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command], cwd=job.folder, env=job.env,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    @property
    def text(self) -> str:
        return self.out.read_text(errors="replace")

    @property
    def pid(self) -> int:
        return int(self.job.until(f"process 1; {self.text}", lambda: children(self.process.pid))[0])

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait_for(self, text: str) -> None:
        self.job.until(f"{text!r} in {self.out}", lambda: text in self.text or self.process.poll() is not None)
        assert text in self.text

    def end(self, within_s: float = 60.0) -> int:
        return self.process.wait(within_s)


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def zombies(below: int) -> list[int]:
    found = []
    for child in children(below):
        state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        found += [child] if state == "Z" else []
    return found


@pytest.fixture
def container() -> Iterator[Callable[..., Container]]:
    made: list[Container] = []

    def begin(job: Any, *command: str) -> Container:
        made.append(Container(job, *command, number=len(made) + 1))
        return made[-1]

    yield begin
    for one in made:
        one.process.kill()
        one.process.wait()


def test_term_to_zrun_as_process_1_preempts_hangup_does_not_end_it_and_orphans_are_reaped(
    make_job: MakeJob, container: Callable[..., Container]
) -> None:
    job = make_job(TOY)
    inside = container(job, *ZRUN, "launch", "job.yaml")
    inside.wait_for("step 5 ")
    inside.signal(signal.SIGHUP)
    inside.wait_for("zrun is process 1 here")
    pid = inside.pid
    orphan = ["nsenter", "--target", str(pid), "--pid", "--mount", "sh", "-c", "(sleep 0.2 & exec true) & wait; true"]
    subprocess.run(orphan, check=True, timeout=20)
    job.until("no zombie below process 1", lambda: not zombies(pid))
    inside.signal(signal.SIGTERM)
    assert inside.end() == 105, inside.text
    assert "preempting: save, end, exit 105" in inside.text
    assert job.verdict["state"] == "PREEMPTED"
    saved = max(c["step"] for c in job.verdict["checkpoints"])
    assert saved == job.verdict["attempts"][0]["last_step"] >= 5
    assert not job.processes(), "the namespace's end killed nobody who had work to do"


@pytest.mark.long
def test_a_job_in_a_container_ends_with_its_own_code_and_leaves_a_whole_verdict(
    make_job: MakeJob, container: Callable[..., Container]
) -> None:
    job = make_job(TOY.replace("600", "12"))
    inside = container(job, str(ROOT / "zrun"), "launch", "job.yaml")
    assert inside.end() == 0, inside.text
    assert "SUCCEEDED" in inside.text
    assert job.verdict["state"] == "SUCCEEDED"
    facts = json.loads((job.run_dir / "supervisor.json").read_text())
    assert facts["agent"]["pid"] == facts["coordinator"]["pid"] == 0, "both ended before process 1 did"
    assert facts["agent"]["last_exit"] == 0
    job = make_job(TOY, fault="exit:1:4", restart="policy: never")
    inside = container(job, *ZRUN, "launch", "job.yaml")
    assert inside.end() == 100, inside.text


@pytest.mark.long
def test_ctrl_c_twice_to_process_1_stops_at_once(make_job: MakeJob, container: Callable[..., Container]) -> None:
    job = make_job(TOY, extra="env: {GREETING: x}\n")
    inside = container(job, *ZRUN, "launch", "job.yaml")
    inside.wait_for("step 5 ")
    inside.signal(signal.SIGINT)
    inside.wait_for("stopping after a save")
    inside.signal(signal.SIGINT)
    assert inside.end() == 130, inside.text
    assert job.verdict["state"] == "STOPPED"


@pytest.mark.long
def test_detached_in_a_container_it_follows_for_the_container_ends_with_process_1(
    make_job: MakeJob, container: Callable[..., Container]
) -> None:
    job = make_job(TOY.replace("600", "20"))
    inside = container(job, *ZRUN, "launch", "job.yaml", "-d")
    assert inside.end() == 0, inside.text
    assert "zrun is process 1 here" in inside.text
    assert job.verdict["state"] == "SUCCEEDED"


@pytest.mark.long
def test_a_viewer_killed_below_process_1_leaves_the_job_and_term_still_preempts_it(
    make_job: MakeJob, container: Callable[..., Container]
) -> None:
    job = make_job(TOY)
    inside = container(job, *ZRUN, "launch", "job.yaml")
    inside.wait_for("step 5 ")
    (viewer,) = children(inside.pid)
    os.kill(viewer, signal.SIGKILL)
    job.until("the supervisor to be a child of process 1", lambda: viewer not in children(inside.pid))
    step = job.wait_for_step(10)["step"]
    assert inside.process.poll() is None
    inside.signal(signal.SIGTERM)
    assert inside.end() == 128 + signal.SIGKILL, inside.text
    assert job.verdict["state"] == "PREEMPTED"
    assert job.verdict["attempts"][0]["last_step"] >= step


@pytest.mark.long
def test_a_shell_that_is_process_1_ends_as_zrun_below_it_does(
    make_job: MakeJob, container: Callable[..., Container]
) -> None:
    job = make_job(TOY)
    inside = container(job, "bash", "-c", f"{' '.join(ZRUN)} launch job.yaml; echo code $?; true")
    inside.wait_for("step 5 ")
    inside.signal(signal.SIGTERM)  # the shell has no handler and is process 1: nothing arrives, hence `exec`
    (zrun,) = children(inside.pid)
    job.wait_for_step(10)
    os.kill(zrun, signal.SIGTERM)
    assert inside.end() == 0, inside.text
    assert "code 105" in inside.text
    assert job.verdict["state"] == "PREEMPTED"


@pytest.mark.long
def test_coordinator_and_agent_as_process_1_end_by_term_and_the_agent_saves_before_it_leaves(
    make_job: MakeJob, container: Callable[..., Container]
) -> None:
    job = make_job(TOY)
    home = job.folder / "home"
    head = container(job, *ZRUN, "coordinator", "--dir", str(home))
    job.until("the coordinator", (home / "coordinator.json").exists, 30)
    address = json.loads((home / "coordinator.json").read_text())["address"]
    job.env["ZRUN_TOKEN_FILE"] = str(home / "token")
    node = container(job, *ZRUN, "agent", "--join", address)
    job.start("--coordinator", address)
    job.until("step 5", lambda: "step 5 " in job.output())
    node.signal(signal.SIGTERM)
    assert node.end() == 0, node.text
    assert job.finish() == 105, job.story()
    assert job.verdict["attempts"][0]["last_step"] == max(c["step"] for c in job.verdict["checkpoints"])
    head.signal(signal.SIGTERM)
    assert head.end() == 0, head.text


def test_a_proc_of_another_container_is_refused_with_the_way_out(
    make_job: MakeJob, container: Callable[..., Container]
) -> None:
    job = make_job(TOY)
    done = subprocess.run(
        ["unshare", "--pid", "--fork", *ZRUN, "launch", "job.yaml"], cwd=job.folder, env=job.env, text=True,
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "unshare -pf --mount-proc" in done.stderr
    assert not (job.folder / "runs").exists()
