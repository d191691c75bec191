"""Whatever a job starts, makes or holds is gone when the attempt is, however that ended; and nothing grows."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zrun.agent import proc_table
from zrun.agent.proc_table import Proc

SCRIPTS = Path(__file__).resolve().parent / "scripts"
ZRUN = [sys.executable, "-m", "zrun.cli.main"]
SCRIPT = SCRIPTS / "leaves_behind.py"
CHILDREN = "bytes,tensors,wrapper,setsid,daemon,deaf"


def family(job: Any) -> set[Proc]:
    """All below the keeper, whatever they did to be overlooked."""
    pids = proc_table.descendants(job.pid_of("keeper"))
    return {found.proc for pid in pids if (found := proc_table.stat(pid)) is not None and found.alive}


def living(procs: set[Proc]) -> list[str]:
    return [proc_table.describe(proc) for proc in procs if proc_table.is_alive(proc)]


def events(job: Any, what: str) -> list[dict[str, Any]]:
    lines = (job.run_dir / "events.jsonl").read_text().splitlines()
    return [event for line in lines if (event := json.loads(line)).get("decision") == what]


@pytest.mark.parametrize(
    "who",
    [
        "agent",
        pytest.param("keeper", marks=pytest.mark.long),
        pytest.param("keeper and agent", marks=pytest.mark.long),
        pytest.param("stopped agent", marks=pytest.mark.long),
        pytest.param("stopped keeper", marks=pytest.mark.long),
        pytest.param("stopped keeper and agent", marks=pytest.mark.long),
    ],
)
def test_no_child_of_any_kind_outlives_its_agent_or_keeper(make_job: Callable[..., Any], who: str) -> None:
    job = make_job(f"{SCRIPT} --steps 100000 --make {CHILDREN}", every=100000)
    job.start()
    job.wait_for_step(3)
    procs = family(job)
    assert len(procs) >= 2 * 10 + 1, [proc_table.describe(proc) for proc in procs]
    number = signal.SIGSTOP if "stopped" in who else signal.SIGKILL
    victims = [(job.pid_of(name), number if "stopped " + name in who or number == signal.SIGKILL else signal.SIGKILL)
               for name in ("keeper", "agent") if name in who]  # fmt: skip
    for pid, how in victims:
        os.kill(pid, how)
    job.until("every process of attempt 1 to be gone", lambda: not living(procs), 30)
    for pid, how in victims:
        if how == signal.SIGSTOP:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass  # it stood still for too long
    job.until("attempt 2", lambda: job.status().get("attempt") == 2, 60)
    job.zrun("stop", "--now")
    job.finish()


def test_a_segment_left_by_a_killed_job_is_gone_when_it_starts_again_and_is_told_of(
    make_job: Callable[..., Any],
) -> None:
    job = make_job(f"{SCRIPT} --steps 8 --make segment,lock", fault="kill:1:4", every=2)
    assert job.run() == 0, job.story()
    assert len(job.verdict["attempts"]) == 2, job.story()
    (swept,) = events(job, "swept")
    assert (swept["attempt"], swept["count"]) == (1, 2)
    assert all(words.startswith("shared memory /dev/shm/job0-") for words in swept["what"]), swept
    assert "swept" in (job.run_dir / "agent.log").read_text()


@pytest.mark.long
def test_a_process_that_keeps_the_output_open_keeps_nobody_waiting(make_job: Callable[..., Any]) -> None:
    job = make_job(f"{SCRIPT} --steps 5 --make stdout,setsid", every=2)
    done = subprocess.run(
        f"{shlex.join(ZRUN)} launch job.yaml | cat", shell=True, cwd=job.folder, env=job.env, timeout=90,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "SUCCEEDED" in done.stderr, done.stderr
    job.until("everything to be gone", lambda: not job.processes(), 20)
