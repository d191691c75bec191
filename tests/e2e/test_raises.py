"""A rank raises: its words come before its cleanup, everybody is ended at once, and each log says whose fault it was."""

import json
import os
import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent / "scripts" / "ends.py"
ONCE = "policy: never"
SOON_S = 10.0
"""Far more than it takes, far less than any cleanup in the script."""

MakeJob = Callable[..., Any]


def line_of(text: str, after: str) -> int:
    """Number of the first line with `text` in the function `after` of the script."""
    lines = SCRIPT.read_text().splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith(f"def {after}("))
    return 1 + next(n for n, line in enumerate(lines) if n > begin and text in line)


def last_word(job: Any, rank: int) -> tuple[str, float]:
    """(what zrun said last in that rank's log, Unix time of it)."""
    line = job.log_lines(1, rank)[-1]
    assert line["stream"] == "zrun", line
    assert line["level"] == "warning"
    return line["msg"], datetime.fromisoformat(line["ts"]).timestamp()


def ended_by(make_job: MakeJob, kind: str, peer: str = "all_reduce", **more: Any) -> tuple[Any, dict[str, Any]]:
    job = make_job(f"{SCRIPT} {kind} {peer}", restart=ONCE, **more)
    assert job.run() == 100, job.story()
    incident: dict[str, Any] = job.verdict["incidents"][0]
    assert incident["rank"] == 1, job.story()
    return job, incident


def told_at_once(make_job: MakeJob, kind: str, peer: str) -> None:
    job, incident = ended_by(make_job, kind, peer)
    assert (incident["class"], incident["exception"], incident["step"]) == ("crash", "ValueError", 3), job.story()
    assert incident["where"] == f"{SCRIPT}:{line_of('raise ValueError', kind)}"
    raised = float((job.folder / "raised").read_text())
    for rank in (0, 1):
        text, at = last_word(job, rank)
        assert "ended by zrun" in text
        assert "rank 1: ValueError: bad sample 7" in text, "whose fault it was"
        assert at - raised < SOON_S, "whatever the cleanup and the other rank are doing"


def test_nobody_waits_for_the_cleanup_of_a_rank_whose_exception_leaves_the_script(make_job: MakeJob) -> None:
    told_at_once(make_job, "slow_finally", "sleep")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["slow_exit", "slow_atexit", "lingering_thread"])
@pytest.mark.parametrize("peer", ["sleep", "all_reduce"])
def test_nobody_waits_for_any_kind_of_cleanup(make_job: MakeJob, kind: str, peer: str) -> None:
    told_at_once(make_job, kind, peer)


@pytest.mark.long
def test_who_fails_first_on_a_group_torn_down_in_a_finally_is_not_the_cause(make_job: MakeJob) -> None:
    job, incident = ended_by(make_job, "slow_teardown")
    assert (incident["exception"], incident["message"]) == ("ValueError", "bad sample 7"), job.story()
    assert incident["followed"] == [0]


@pytest.mark.long
def test_a_retry_loop_ends_nobody(make_job: MakeJob) -> None:
    job = make_job(f"{SCRIPT} retry", restart=ONCE)
    assert job.run() == 0, job.story()
    assert job.verdict["incidents"] == []


ENDS: dict[str, dict[str, Any]] = {
    "exit_code": {"exception": None, "exit_code": 7},
    "exit_text": {"exception": None, "exit_code": 1, "message": "no data under /data/v3"},
    "os_exit": {"exception": None, "exit_code": 7},
    "exit_in_finally": {"exception": "ValueError", "message": "bad sample 7"},
    "replaced_in_finally": {"exception": "ValueError", "message": "bad sample 7"},
    "chained": {"exception": "ValueError", "message": "invalid literal for int() with base 10: 'seven'"},
    "group": {"exception": "ValueError", "message": "bad sample 7"},
    "speechless": {"exception": "speechless.<locals>.SpeechlessError"},
    "recursion": {"exception": "RecursionError"},
    "memory": {"exception": "MemoryError", "class": "oom"},
    "interrupt": {"exception": "KeyboardInterrupt"},
    "thread_gives_up": {"exception": "ValueError", "message": "bad sample 7", "exit_code": 9},
    "abort": {"exception": None, "signal": "SIGABRT"},
    "segfault": {"exception": None, "signal": "SIGSEGV"},
    "killed": {"exception": None, "signal": "SIGKILL"},
    "loader_worker_killed": {"exception": "RuntimeError"},
}
QUICK = {"exit_text", "chained"}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in QUICK else pytest.mark.long) for k in ENDS])
def test_each_end_is_named_as_what_it_is(make_job: MakeJob, kind: str) -> None:
    job, incident = ended_by(make_job, kind)
    found = {key: incident[key] for key in ENDS[kind]}
    assert found == ENDS[kind], job.story()
    assert incident["step"] == 3, job.story()
    text, _ = last_word(job, 0)
    assert incident["headline"] in text or "because of" in text, "the other rank's log says whose fault it was"
    detail = json.loads((job.run_dir / "incidents" / "0001" / "incident.json").read_text())
    if kind == "chained":
        trace = detail["traceback"]
        assert trace.index("seven") < trace.index("not in the index") < trace.index("the loader gave up")
    if kind in {"abort", "segfault"}:
        assert "the last line before the end" in detail["last_lines"]
        assert f"in {kind}" in (job.run_dir / "incidents" / "0001" / "stacks" / "rank-1.txt").read_text()
    if kind == "killed":
        assert last_word(job, 1)[0] == "[zrun: killed by SIGKILL, not by zrun]"
    if kind == "loader_worker_killed":
        assert "is killed by signal: Killed" in incident["message"]
        assert any("one of its DataLoader workers died" in reason for reason in incident["because"])


@pytest.mark.long
def test_a_raise_before_any_group_exists_ends_the_others_too(make_job: MakeJob) -> None:
    job, incident = ended_by(make_job, "setup")
    assert (incident["exception"], incident["step"]) == ("FileNotFoundError", None), job.story()
    assert "rank 1: FileNotFoundError" in last_word(job, 0)[0]


@pytest.mark.long
def test_a_coordinator_killed_at_the_moment_of_the_raise_does_not_hide_it(make_job: MakeJob) -> None:
    job = make_job(f"{SCRIPT} slow_finally sleep", restart=ONCE)
    job.start()
    job.until("the raise", (job.folder / "raised").exists)
    os.kill(job.pid_of("coordinator"), signal.SIGKILL)
    assert job.finish() == 100, job.story()
    incident = job.verdict["incidents"][0]
    assert (incident["rank"], incident["exception"]) == (1, "ValueError"), job.story()
    assert incident["exit_code"] == 1
