"""Closed and broken streams, long messages, and jobs that are over: each command still ends as it should."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zrun.cli import verdict
from zrun.cli.main import main
from zrun.cli.status import describe_status
from zrun.core.runfolder import RunFolder

MakeRun = Callable[..., RunFolder]
Captured = pytest.CaptureFixture[str]
ZRUN = f"{sys.executable} -m zrun.cli.main"


def shell(command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("command", ["status", "status --json", "ls", "logs", "--help", "schema"])
def test_a_closed_stream_is_no_error(make_run: MakeRun, command: str, closed: str) -> None:
    make_run("gpt2-0000aa", state="FAILED")
    done = shell(f"{ZRUN} {command} {closed}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "code"),
    [("status --json", 0), ("status", 0), ("--help", 0), ("ls --json", 0), ("logs", 0), ("schema", 0),
     ("status --watch", 0), ("logs -f", 0), ("events", 0), ("wait --json", 100), ("status nobody", 102),
     ("stop --nonsense", 2), ("--version", 0), ("describe", 0)],
)  # fmt: skip
def test_into_a_closed_pipe_a_command_ends_as_if_all_had_been_read(
    make_run: MakeRun, write_log: Callable[..., None], command: str, code: int
) -> None:
    write_log(make_run("gpt2-0000aa", state="FAILED"), 1, 0, ["x" * 200] * 100)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        for both in (False, True):
            done = subprocess.run(
                [*ZRUN.split(), *command.split()], stdout=writing, stderr=writing if both else subprocess.PIPE,
                text=True, timeout=30, check=False,
            )  # fmt: skip
            assert done.returncode == code, done.stderr
            assert both or ("Traceback" not in done.stderr and "Broken" not in done.stderr)
    finally:
        os.close(writing)


def test_half_a_character_in_a_message_can_be_shown(make_run: MakeRun) -> None:
    make_run("gpt2-0000aa", state="FAILED", attempts=[], reason2="\ud800")
    done = shell(f"PYTHONIOENCODING= {ZRUN} status --json")
    assert done.returncode == 0, done.stderr
    assert "\\ud800" in done.stdout


def long_status() -> dict[str, Any]:
    message = "bad sample\n\x1b[2J" + "y" * 5000
    incident = {"id": 1, "class": "crash", "rank": 1, "node": "n" * 400, "attempt": 1, "exception": "E" * 400,
                "message": message, "where": message, "because": [message] * 40, "last_lines": [message] * 40,
                "step": 3, "batch": "b" * 900, "followed": list(range(999))}  # fmt: skip
    attempts = [{"attempt": n, "outcome": "fault", "cause": message, "last_step": 3, "first_step": 1}
                for n in range(30)]  # fmt: skip
    return {"job": "gpt2-0000aa", "state": "FAILED", "reason": message * 3, "attempts": attempts,
            "incidents": [incident] * 9}  # fmt: skip


def test_a_status_with_long_messages_keeps_to_short_single_lines() -> None:
    lines = describe_status(long_status())
    assert max(map(len, lines)) <= 280
    assert not any("\n" in line or "\x1b" in line for line in lines)
    assert lines[0].startswith("gpt2-0000aa  FAILED  bad sample \\x1b[2Jyyy")


def test_a_verdict_keeps_to_thirty_short_lines_whatever_the_message() -> None:
    lines = verdict.block(long_status(), "/runs/gpt2-0000aa")
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 280
    assert not any("\n" in line or "\x1b" in line for line in lines)


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED"])
def test_stacks_and_the_page_of_a_job_that_is_over_say_so(make_run: MakeRun, capsys: Captured, state: str) -> None:
    folder = make_run("gpt2-0000aa", state=state)
    assert main(["stacks"]) == 3
    said = capsys.readouterr().err
    assert f"gpt2-0000aa is over ({state})" in said
    assert f"its incidents' stacks are in {folder.root / 'incidents'}" in said
    assert main(["dashboard"]) == 3
    page = capsys.readouterr().err
    assert f"gpt2-0000aa is over ({state})" in page
    assert "the page ends with the job; see `zrun describe gpt2-0000aa`" in page
    assert "resume" not in said + page


def test_a_job_that_succeeded_is_never_advised_to_be_resumed(make_run: MakeRun, capsys: Captured) -> None:
    make_run("gpt2-0000aa", state="SUCCEEDED")
    for command in ("restart", "stop"):
        main([command])
        assert "resume" not in capsys.readouterr().err


def test_check_says_an_endless_run_line_in_short(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "train.py").touch()
    file = tmp_path / "job.yaml"
    file.write_text("name: a\nrun: " + "x" * 100_000 + "\n")
    assert main(["check", str(file)]) == 2
    assert len(capsys.readouterr().err) < 2000
    file.write_text("name: a\nrun: train.py " + "x" * 100_000 + "\n")
    assert main(["check", str(file)]) == 0
    assert len(capsys.readouterr().out) < 2000


def test_the_help_says_which_json_comes_one_object_a_line(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    flat = " ".join(capsys.readouterr().out.split())
    assert "`logs --json`, `events --json` and `status --watch --json` one JSON object a line" in flat
