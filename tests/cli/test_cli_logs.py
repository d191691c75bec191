"""Log files read from their end and as they grow, and `zrun logs` with its filters."""

import io
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zrun.cli import logs as logs_command
from zrun.cli import lookup, options, screen
from zrun.cli.main import main
from zrun.coordinator import logs as coordinator_logs
from zrun.core import log_files, log_follow, log_merge
from zrun.core.errors import UsageError
from zrun.core.log_follow import Growing
from zrun.core.runfolder import RunFolder

MakeRun = Callable[..., RunFolder]


WriteLog = Callable[..., None]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=90)), st.integers(0, 12), st.sampled_from([7, 64, 65536]), st.text(max_size=5))
def test_reading_the_tail_equals_reading_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], count: int, block: int, unfinished: str
) -> None:
    path = tmp_path_factory.mktemp("tail") / "rank-0.jsonl"
    path.write_bytes(
        b"".join(json.dumps({"msg": t}).encode() + b"\n" for t in texts) + unfinished.encode().replace(b"\n", b"")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_files, "_BLOCK", block)
        patch.setattr(log_follow, "_BLOCK", block)
        seen = [line["msg"] for line in log_files.tail(path, count, lambda line: "a" not in line["msg"])]
        every = [line["msg"] for line in log_files.tail(path, None, lambda _: True)]
        rest = Growing(path, at_end=True).end
    wanted = [t for t in texts if "a" not in t]
    assert every == texts
    assert seen == (wanted[-count:] if count else [])
    assert rest == path.read_bytes().rfind(b"\n") + 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=12))
def test_a_growing_file_gives_each_whole_line_once_however_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("grow") / "rank-0.jsonl"
    growing = Growing(path)
    seen = growing.read()
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        seen += growing.read(most=8)
    while more := growing.read(most=8):
        seen += more
    whole = b"".join(pieces).split(b"\n")[:-1]
    assert seen == [log_files.parse(raw) for raw in whole]


@pytest.fixture
def run(make_run: MakeRun, write_log: WriteLog) -> RunFolder:
    folder = make_run("gpt2-0000aa", state="FAILED", incidents=[{"id": 1, "class": "crash", "rank": 1, "attempt": 2}])
    write_log(folder, 1, 0, ["old"])
    for texts in ("a0", "b0", "c0"):
        write_log(folder, 2, 0, [texts])
        write_log(folder, 2, 1, [texts[0] + "1"])
    write_log(folder, 2, 1, ["boom", "at line 3"], level="error", stream="stderr")
    write_log(folder, 2, 0, ["echo"], level="error")
    return folder


def messages(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["logs", "gpt2", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rank", "1", "--stream", "stdout"], ["[rank 1] a1", "[rank 1] b1", "[rank 1] c1"]),
        (["--node", "n0", "--level", "info", "--grep", "^[bc]"], ["[rank 0] b0", "[rank 0] c0"]),
        (["--attempt", "1"], ["[rank 0] old"]),
        (["--attempt", "all", "--rank", "0", "--grep", "old|a0"], ["[rank 0] old", "[rank 0] a0"]),
        (["--first-error"], ["[rank 1] boom", "[rank 1] at line 3"]),
        (["--level", "error", "--rank", "1"], ["[rank 1] boom", "[rank 1] at line 3"]),
        (
            ["--since", "2026-01-01T00:00:04.500Z", "--level", "info", "--stream", "stdout", "--rank", "0"],
            ["[rank 0] c0", "[rank 0] echo"],
        ),
        (["--since", "1m"], []),
    ],
)
def test_logs_shows_what_the_filters_ask_for(
    run: RunFolder, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: list[str]
) -> None:
    assert messages(capsys, *arguments) == expected


def test_ranks_are_merged_by_time_and_json_lines_are_whole(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert messages(capsys, "--stream", "stdout", "--level", "info", "--grep", "^[abc]") == [
        "[rank 0] a0", "[rank 1] a1", "[rank 0] b0", "[rank 1] b1", "[rank 0] c0", "[rank 1] c1",
    ]  # fmt: skip
    lines = messages(capsys, "--json", "--tail", "1")
    assert json.loads(lines[0])["msg"] == "echo"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--rank", "x"], 2), (["--grep", "("], 2), (["--attempt", "9"], 102), (["--since", "soon"], 2),
     (["--attempt", "-1"], 2)],
)  # fmt: skip
def test_nonsense_is_refused_with_a_reason(
    run: RunFolder, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    assert main(["logs", "gpt2", *arguments]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_control_characters_of_a_job_do_not_reach_the_terminal(
    make_run: MakeRun, write_log: WriteLog, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(make_run("gpt2-0000aa", state="FAILED"), 1, 0, ["\x1b[31mred\x1b[0m \x1b]0;title\x07\x9b \rback\ttab"])
    assert messages(capsys) == ["[rank 0] red \\x1b]0;title\\x07\\x9b \\rback\ttab"]


def test_a_terminal_gets_the_jobs_colours_and_no_other_control_character(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout", Terminal())
    assert screen.clean("\x1b[31mred\x1b[2J\u202e") == "\x1b[31mred\\x1b[2J\\u202e\x1b[0m"
    assert screen.clean("\x1b[2J\ttab") == "\\x1b[2J\ttab"


def test_a_rank_that_is_not_there_is_refused_with_those_that_are(
    make_run: MakeRun, write_log: WriteLog, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run("gpt2-0000aa", state="FAILED")
    for rank in (0, 1):
        write_log(folder, 1, rank, ["hello"])
    assert main(["logs", "--rank", "77"]) == 102
    assert capsys.readouterr().err == "zrun: there are no logs of rank 77\n  ranks with logs: 0, 1\n"
    assert main(["logs", "--rank", "1,77"]) == 0


def test_following_ends_with_the_job_and_misses_and_doubles_no_line(
    make_run: MakeRun, coordinator: Callable[..., Any], write_log: WriteLog, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run("gpt2-0000aa", state="RUNNING")
    write_log(folder, 1, 0, [f"old {n}" for n in range(50)])
    fake = coordinator(folder)

    def train() -> None:
        assert fake.asked.wait(60)  # else the second attempt is there before anybody follows the first
        for n in range(100):
            write_log(folder, 1, 0, [f"new {n}"])
        write_log(folder, 2, 0, ["second attempt"])
        fake.finish("SUCCEEDED")

    thread = threading.Thread(target=train)
    thread.start()
    seen = messages(capsys, "-f", "--tail", "0")
    thread.join()
    wanted = [*(f"old {n}" for n in range(50)), *(f"new {n}" for n in range(100)), "second attempt"]
    assert seen == [f"[rank 0] {text}" for text in wanted]


def test_times_that_people_type_are_understood() -> None:
    now = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
    assert options.since("90m", now) == "2026-01-02T10:30:00.000Z"
    assert options.since("2026-01-02T11:00:00+02:00", now) == "2026-01-02T09:00:00.000Z"
    assert options.seconds("1h30m") == 5400.0
    assert options.numbers("0,4-6", "rank") == [0, 4, 5, 6]
    for nonsense in ("10", "1x", "", "m"):
        with pytest.raises(UsageError):
            options.seconds(nonsense)


def test_no_log_file_is_no_error(make_run: MakeRun, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make_run("gpt2-0000aa", state="STOPPED")
    assert messages(capsys) == []
    assert log_files.tail(tmp_path / "none", 5, lambda _: True) == []


def test_the_level_critical_is_the_highest_and_an_unknown_one_is_refused(
    make_run: MakeRun, write_log: WriteLog, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run("gpt2-0000aa", state="FAILED")
    write_log(folder, 1, 0, ["bad"], level="error")
    write_log(folder, 1, 0, ["worse"], level="critical")
    for level in ("critical", "CRITICAL"):
        assert main(["logs", "--level", level]) == 0
        assert capsys.readouterr().out == "[rank 0] worse\n"
    assert main(["logs", "--level", "error"]) == 0
    assert capsys.readouterr().out == "[rank 0] bad\n[rank 0] worse\n"
    assert main(["logs", "--level", "loud"]) == 2
    assert "'critical'" in capsys.readouterr().err


def test_a_run_on_another_machine_is_followed_until_its_job_is_over(
    make_run: MakeRun, write_log: WriteLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's own answers, without a network between."""
    folder = make_run("gpt2-0000aa", state="RUNNING")
    write_log(folder, 1, 0, ["old"])
    turns: Iterator[Callable[[], object]] = iter(
        [
            lambda: write_log(folder, 1, 0, ["new"]), lambda: None, lambda: write_log(folder, 2, 0, ["second attempt"]),
            lambda: monkeypatch.setattr(logs_command, "is_over", lambda _: True), *[lambda: None] * 9,
        ]
    )  # fmt: skip

    class There:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def read(
            self, job: str, what: str, *, after: str = "", follow: str | None = None, tail: int = 9, **_: Any
        ) -> Any:
            if after:
                next(turns)()
            return coordinator_logs.answer(
                folder, coordinator_logs.Asked(tail, follow=follow == "true", after=after), log_merge.Filter(), set()
            )

    monkeypatch.setattr(logs_command, "_TURN_THERE_S", 0.0)
    monkeypatch.setattr(logs_command, "is_over", lambda _: False)
    monkeypatch.setattr(lookup.Target, "client", lambda _self, **_: There())
    monkeypatch.setattr(logs_command, "find", lambda *_: lookup.Target("gpt2-0000aa", "gpt2", None))
    monkeypatch.setattr(time, "monotonic", itertools.count().__next__)
    assert messages(capsys, "-f") == ["[rank 0] old", "[rank 0] new", "[rank 0] second attempt"]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=30), st.integers(0, 30), st.sampled_from([", ", ","]), st.booleans())
def test_the_first_error_is_found_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], at: int, comma: str, decoy: bool
) -> None:
    path = tmp_path_factory.mktemp("first") / "rank-0.jsonl"
    lines = [{"ts": "t", "level": "info", "msg": text} for text in texts]
    lines[at:at] = [{"ts": "t", "level": "error", "msg": "boom"}, {"ts": "t", "level": "critical", "msg": "worse"}]
    if decoy:
        lines.insert(0, {"ts": "t", "level": "info", "msg": '"level":"error","msg":'})
    form = (comma, ": " if comma == ", " else ":")
    path.write_bytes(b"".join(json.dumps(line, separators=form).encode() + b"\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_files, "_SEARCHED", 64)
        found = log_files.from_first_error(path, 3)
    begin = next(n for n, line in enumerate(lines) if line["level"] == "error")
    assert found == lines[begin : begin + 3]


def test_a_line_of_a_million_odd_characters_is_shown_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    logs_command.show_line({"rank": 0, "level": "info", "msg": "\x01" * 1_000_000})
    assert len(capsys.readouterr().out) > 4_000_000
    assert time.monotonic() - begun < 10
