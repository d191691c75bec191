"""The progress line, the verdict and the list of checkpoints, as people see them."""

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zrun.cli import screen, verdict
from zrun.cli.main import main
from zrun.cli.progress import Progress, line
from zrun.core.manifest import Manifest, ShardFile
from zrun.core.runfolder import RunFolder

RUNNING: dict[str, Any] = {
    "state": "RUNNING",
    "attempt": 1,
    "total_steps": 100,
    "metrics": {"loss": 2.5, "tokens_s": 1234},
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_line_says_step_loss_speed_and_time_left() -> None:
    assert line(RUNNING | {"step": 20, "step_s": 0.5}, None) == (
        "step 20/100  loss 2.5  1,234 tokens/s  2 steps/s  ETA 40s"
    )
    assert line({"step": 3}, None) == "step 3"


def test_on_a_terminal_it_is_rewritten_in_place_and_cleared_before_other_output() -> None:
    terminal = Terminal()
    progress = Progress(terminal, now=0.0)
    for second in range(3):
        progress.update(RUNNING | {"step": 10 + 5 * second}, float(second))
    assert terminal.getvalue().count("\r\x1b[K") == 3
    assert terminal.getvalue().endswith("5 steps/s  ETA 16s")
    progress.clear()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_elsewhere_it_is_printed_every_five_seconds_and_only_when_something_moved() -> None:
    pipe = io.StringIO()
    progress = Progress(pipe, now=0.0)
    for tenth in range(200):
        progress.update(RUNNING | {"step": 1 + min(tenth, 90)}, tenth / 10)
    assert len(pipe.getvalue().splitlines()) == 2
    assert "\x1b" not in pipe.getvalue()


def test_a_new_attempt_begins_a_new_measurement() -> None:
    terminal = Terminal()
    progress = Progress(terminal, now=0.0)
    progress.update(RUNNING | {"step": 50}, 0.0)
    progress.update(RUNNING | {"state": "STARTING", "step": 40, "attempt": 2}, 5.0)
    progress.update(RUNNING | {"step": 40, "attempt": 2}, 10.0)
    progress.update(RUNNING | {"step": 50, "attempt": 2}, 12.0)
    assert terminal.getvalue().endswith("5 steps/s  ETA 10s")


INCIDENT: dict[str, Any] = {
    "id": 1, "class": "crash", "rank": 1, "node": "a", "attempt": 2, "exception": "ValueError", "message": "bad\nsample",
    "where": "data.py:10", "step": 61, "batch": "e0-s000061-00000000", "because": [f"reason {n}" for n in range(40)],
    "followed": list(range(2, 99)), "last_lines": ["a", "b", "c", "d" * 5000], "ranks": [1], "nodes": ["a"],
    "frames": [f"train.py:{n} in main: {'x' * 999}" for n in range(99)],
}  # fmt: skip


def test_the_verdict_names_the_first_cause_and_fits_on_a_screen() -> None:
    attempts = [{"attempt": n, "outcome": "fault", "first_step": 1, "last_step": 9} for n in range(1, 40)]
    lines = verdict.block(
        {
            "job": "gpt2-0000aa",
            "state": "FAILED",
            "reason": "budget spent",
            "attempts": attempts,
            "incidents": [INCIDENT],
        },
        "/runs/gpt2-0000aa",
    )
    assert len(lines) <= verdict.LONGEST
    assert max(len(text) for text in lines) < 400
    text = "\n".join(lines)
    for wanted in ("FAILED: budget spent", "crash of rank 1 on node a: ValueError: bad sample", "data.py:10", "39",
                   "/runs/gpt2-0000aa/logs/attempt-2/rank-1.jsonl", "zrun resume gpt2-0000aa"):  # fmt: skip
        assert wanted in text


def test_ranks_that_failed_alike_are_told_once_and_the_line_that_raised_is_shown() -> None:
    alike = INCIDENT | {"ranks": [0, 1, 2, 3], "rank": 0, "nodes": ["a", "b"], "followed": [],
                        "frames": ["train.py:9 in main: raise ValueError(bad)"]}  # fmt: skip
    lines = verdict.block({"job": "j", "state": "FAILED", "attempts": [], "incidents": [alike]}, "/runs/j")
    text = "\n".join(lines)
    assert "crash of ranks 0-3 on nodes a, b: ValueError: bad sample" in text
    assert "stack     train.py:9 in main: raise ValueError(bad)" in text
    assert "last line" not in text, "they would say the traceback again"
    assert "/runs/j/incidents/0001" in text


def test_without_an_exception_the_last_lines_are_shown() -> None:
    killed = INCIDENT | {"exception": None, "message": None, "signal": "SIGSEGV", "frames": ["train.py:9 in main"]}
    text = "\n".join(verdict.block({"job": "j", "state": "FAILED", "incidents": [killed]}, "/runs/j"))
    assert "killed by SIGSEGV" in text
    assert "train.py:9 in main" in text
    assert "last line a" in text


def test_a_job_that_was_stopped_or_got_through_does_not_blame_an_old_incident() -> None:
    for state in ("STOPPED", "SUCCEEDED"):
        text = "\n".join(verdict.block({"job": "j", "state": state, "attempts": [], "incidents": [INCIDENT]}, "/r"))
        assert "because" not in text
        assert "survived  crash of rank 1" in text


@pytest.mark.parametrize(
    ("incident", "text"),
    [
        ({"class": "crash", "rank": 0, "signal": "SIGKILL"}, "crash of rank 0: killed by SIGKILL"),
        ({"class": "crash", "rank": 0, "exit_code": 7}, "crash of rank 0: exit code 7"),
        ({"class": "node", "node": "b", "headline": "silent for 3 s"}, "node b: silent for 3 s"),
        (
            {
                "class": "hang",
                "rank": 1,
                "node": "a",
                "signal": "SIGKILL",
                "headline": "1 of 2 ranks in all_reduce #17",
            },
            "hang of rank 1 on node a: 1 of 2 ranks in all_reduce #17",
        ),
        (
            {
                "class": "hang",
                "rank": 0,
                "exception": "DistBackendError",
                "message": "timed out",
                "headline": "rank 1 not there",
            },
            "hang of rank 0: rank 1 not there",
        ),
        (
            {"class": "crash", "rank": 1, "exit_code": 0, "headline": "rank 1: exited with code 0 before the others"},
            "crash of rank 1: exited with code 0 before the others",
        ),
        ({"class": "crash", "rank": 1, "exception": "E", "message": "a\nb" + "c" * 999}, None),
    ],
)
def test_an_incident_has_a_headline_of_one_line(incident: dict[str, Any], text: str | None) -> None:
    said = verdict.headline(incident)
    assert said == text or (text is None and said.startswith("crash of rank 1: E: a bccc"))
    assert "\n" not in said
    assert len(said) < 400


def test_spans_and_sizes_are_short() -> None:
    assert [screen.span(s) for s in (None, 0.42, 12.3, 200.0, 7500.0, 273600.0)] == [
        "-", "0.4s", "12s", "3m 20s", "2h 05m", "3d 04h",
    ]  # fmt: skip
    assert [screen.size(n) for n in (None, 12, 1536, 3 << 40)] == ["-", "12 B", "1.5 KiB", "3.0 TiB"]


def write_checkpoint(directory: Path, step: int, content: bytes, digest_of: bytes) -> None:
    folder = directory / f"step-{step:06d}"
    folder.mkdir(parents=True)
    (folder / "rank-0.safetensors").write_bytes(content)
    shard = ShardFile("rank-0.safetensors", len(content), f"sha256:{hashlib.sha256(digest_of).hexdigest()}", 0)
    made = Manifest("gpt2-0000aa", "gpt2", 1, step, None, 1, "ddp", "2026-01-01T00:00:00Z", [shard], {}, {})
    (folder / "manifest.json").write_text(made.to_json())


def test_checkpoints_are_listed_and_verified_by_job_and_by_folder(
    make_run: Callable[..., RunFolder], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run("gpt2-0000aa", state="FAILED")
    write_checkpoint(folder.checkpoints, 10, b"whole", b"whole")
    write_checkpoint(folder.checkpoints, 20, b"flipp", b"flip!")
    (folder.checkpoints / "step-000030").mkdir()
    for where in ([], ["gpt2"], [str(folder.checkpoints)], [str(folder.root)]):
        assert main(["ckpt", "ls", *where, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [(r["step"], r["state"]) for r in rows] == [(30, "partial"), (20, "complete"), (10, "complete")]
    assert main(["ckpt", "verify", "--step", "10"]) == 0
    assert main(["ckpt", "verify", "--step", "20"]) == 1
    assert "digest mismatch" in capsys.readouterr().out
    assert main(["ckpt", "verify", "--step", "99"]) == 102
    assert main(["ckpt", "ls", "/no/such"]) == 102
