"""Output becomes lines exactly once, without markers, whatever the pieces it is read in."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zrun.agent.json_lines import JsonLines, stamp
from zrun.agent.line_maker import LineMaker
from zrun.agent.log_file import LogFile
from zrun.agent.log_ledger import Ledger
from zrun.agent.log_lines import Place, Read, read_line
from zrun.agent.spool import LONGEST_LINE, Spool, begun_mark
from zrun.core.marks import encode_mark, strip_marks
from zrun.core.redact import MASK, Redactor

PLACE = Place("toy-abcdef", 1, "a", 0, 0, "stdout")


class Reader:
    def __init__(self, folder: Path, hidden: tuple[str, ...] = (), cap: int = 1 << 30) -> None:
        self.hidden = Redactor(hidden)
        self.folder = folder
        self.source = folder / "rank-0.out"
        self.tail: deque[str] = deque(maxlen=50)
        self.loud: list[Read] = []
        self.cap = cap
        self.open()

    def open(self) -> None:
        self.ledger = Ledger(self.folder / "rank-0.offset")
        self.sink = LogFile(self.folder / "rank-0.jsonl", self.cap, self.ledger)
        self.spool = Spool(
            self.source,
            PLACE,
            self.sink,
            self.ledger,
            self.tail,
            lambda _, read: self.loud.append(read),
            lambda: self.hidden,
        )

    def new_agent(self) -> None:
        self.close()
        self.open()

    def write(self, data: bytes) -> None:
        with self.source.open("ab") as file:
            file.write(data)

    def lines(self) -> list[dict[str, Any]]:
        path = self.folder / "rank-0.jsonl"
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def close(self) -> None:
        self.spool.close()
        self.sink.close()
        self.ledger.close()


TEXT = st.text(st.characters(exclude_characters="\n\r\x1e{", exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TEXT, min_size=1, max_size=12), st.lists(st.integers(1, 30), min_size=1, max_size=40), st.booleans())
def test_marks_are_gone_whatever_the_pieces(
    tmp_path_factory: Any, texts: list[str], sizes: list[int], new_agent: bool
) -> None:
    reader = Reader(tmp_path_factory.mktemp("spool"))
    try:
        whole = b"".join(
            encode_mark(n, "e0-s000001-00000000", 1.0) + text.encode() + b"\n" for n, text in enumerate(texts, 1)
        )
        at = 0
        for number in range(len(whole)):
            size = sizes[number % len(sizes)]
            reader.write(whole[at : at + size])
            reader.spool.poll()
            if new_agent and number % 3 == 0:
                reader.new_agent()
            at += size
            if at >= len(whole):
                break
        reader.spool.drain()
        kept = [(line["step"], line["msg"]) for line in reader.lines()]
        assert kept == [(n, text) for n, text in enumerate(texts, 1) if text]
    finally:
        reader.close()


def test_a_line_that_is_too_long_is_cut_once_and_its_marker_survives_the_cut(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    mark = encode_mark(2, "", 1.0)
    reader.write(b"x" * (LONGEST_LINE - 5) + mark + b"y" * 1000)
    reader.spool.poll()
    reader.write(b"z" * (2 * LONGEST_LINE) + b"\nnext\n")
    reader.spool.drain()
    first, second = reader.lines()
    assert "\x1e" not in first["msg"]
    assert first["msg"].endswith("bytes]")
    assert (second["msg"], second["step"]) == ("next", 2)
    reader.close()


def test_every_beginning_of_a_marker_is_held_back() -> None:
    mark = encode_mark(12, "e0-s000012-7f3a9c21", 1.5)
    for size in range(1, len(mark)):
        assert begun_mark(b"text" + mark[:size]) == size
    assert begun_mark(b"text" + mark) == 0
    assert begun_mark(b"text") == 0


def test_a_last_line_without_a_newline_is_kept_when_its_writer_is_dead(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write(b"whole\npart")
    reader.spool.poll()
    assert [line["msg"] for line in reader.lines()] == ["whole"]
    reader.spool.drain()
    assert list(reader.tail) == ["whole", "part"]
    reader.close()


def test_json_of_the_script_keeps_its_fields_and_rubbish_stays_readable() -> None:
    read = read_line(b'{"level": "WARNING", "message": "low", "loss": NaN}')
    assert (read.level, read.msg) == ("warning", "low")
    assert json.loads(read.fields or b"")["loss"] == "NaN"
    assert read_line(b"\xff\x00ok").msg == "\\xff\x00ok"
    assert read_line(b"Traceback (most recent call last):").level == "error"


def test_space_behind_the_offset_is_given_back(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write((b"x" * 1023 + b"\n") * 8192)
    before = reader.source.stat().st_blocks
    reader.spool.drain()
    assert reader.source.stat().st_blocks <= before // 2 or reader.source.stat().st_blocks == before
    assert len(reader.lines()) == 8192
    reader.close()


def test_a_log_over_its_cap_keeps_head_and_tail(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "rank-0.jsonl", 1 << 16, Ledger(tmp_path / "ledger"))
    for number in range(5000):
        log.append(json.dumps({"msg": f"line {number}", "level": "info"}).encode() + b"\n")
    log.close()
    kept = [json.loads(line)["msg"] for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    assert (kept[0], kept[-1]) == ("line 0", "line 4999")
    assert any("left out" in text for text in kept)
    assert (tmp_path / "rank-0.jsonl").stat().st_size <= 1 << 16


def test_a_line_half_written_by_a_dead_agent_is_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text('{"msg": "one"}\n{"ms')
    log = LogFile(path, 1 << 20, Ledger(tmp_path / "ledger"))
    log.append(b'{"msg": "two"}\n')
    log.close()
    assert path.read_text() == '{"msg": "one"}\n{"msg": "two"}\n'


@pytest.mark.parametrize("size", [1, 3, 7, 4096])
def test_a_secret_is_hidden_whatever_the_pieces_it_came_in(tmp_path: Path, size: int) -> None:
    reader = Reader(tmp_path, ("hunter22secret",))
    whole = b'a hunter22secret b\n{"msg": "hunter22secret", "k": ["hunter22secret"]}\nend hunter22s'
    for at in range(0, len(whole), size):
        reader.write(whole[at : at + size])
        reader.spool.poll()
    reader.spool.drain()
    one, two, three = reader.lines()
    assert (one["msg"], two["msg"], two["fields"]["k"], three["msg"]) == (f"a {MASK} b", MASK, [MASK], f"end {MASK}")
    assert list(reader.tail) == [f"a {MASK} b", MASK, f"end {MASK}"]
    reader.close()


def test_a_line_cut_in_the_middle_of_a_secret_shows_nothing_of_it(tmp_path: Path) -> None:
    reader = Reader(tmp_path, ("hunter22secret",))
    reader.write(b"x" * (LONGEST_LINE - 8) + b"hunter22secret and more\nnext\n")
    reader.spool.drain()
    first, second = reader.lines()
    assert "hunter" not in first["msg"]
    assert first["msg"].endswith("bytes]")
    assert second["msg"] == "next"
    reader.close()


def test_what_the_rank_wrote_goes_once_it_is_in_lines(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write(b"one\n")
    assert not reader.spool.remove()
    assert reader.source.exists()
    reader.spool.drain()
    assert reader.spool.remove()
    reader.ledger.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.jsonl"]
    reader.close()


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ('{"level": "CRITICAL", "msg": "x"}', "critical"), ('{"severity": "fatal"}', "critical"),
        ("2026-01-01 CRITICAL no room", "critical"), ("FATAL: no room", "critical"),
        ("Fatal Python error: Segmentation fault", "critical"), ("ERROR no room", "error"),
        ("ValueError: x", "error"), ("UserWarning: x", "warning"), ("fine", "info"),
    ],
)  # fmt: skip
def test_a_lines_level_is_one_that_can_be_asked_for(text: str, level: str) -> None:
    assert read_line(text.encode()).level == level


def test_the_note_on_what_was_left_out_says_whose_it_was_and_when(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "rank-0.jsonl", 1 << 16, Ledger(tmp_path / "ledger"))
    for number in range(3000):
        read = read_line(b"line %d" % number)
        log.append(JsonLines(PLACE).one(read, float(number), number, "e0-s000001-7f3a9c21"))
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    (note,) = [line for line in lines if "left out" in line["msg"]]
    assert set(note) == {*lines[0], "left_out"}
    assert (note["rank"], note["attempt"], note["job"], note["level"]) == (0, 1, "toy-abcdef", "warning")
    assert [line["ts"] for line in lines] == sorted(line["ts"] for line in lines)
    assert (lines[0]["msg"], lines[-1]["msg"]) == ("line 0", "line 2999")


ODD = st.sampled_from(
    [
        b"", b"\n", b"\r", b"\r\n", b"\x00", b"\x1e", b"\x1ez;", b"\x7f", b"\xff", b"\xe2\x82", b"\x1b[31m", b"\\", b'"', b"\t",
        b"ERROR ", b"ValueError: x", b"Warning: ", b"WARN", b"Traceback (most recent call last):", b"FATAL", b"CRITICAL",
        b"[rank0]: Fatal Python error", b'{"level": "error", "msg": "own", "k": 1e999}', b'{"a": "\\ud800"}', b"{", b"}",
        b"hunter22secret", "\u2028\x85\x0bgr\u00fc\u00df".encode(), b"plain text", b"loss=1.25 step=3", b"{'loss': 1}", b"x" * 5000,
        encode_mark(3, "e0-s000003-7f3a9c21", 3.0), encode_mark(4, "", 4.0),
    ]
)  # fmt: skip
BYTES = st.lists(st.one_of(ODD, st.binary(max_size=12)), max_size=40).map(b"".join)


def expected(whole: bytes) -> list[tuple[int | None, str]]:
    """(step, text) of each line, by the plainest of means."""
    step: int | None = None
    lines: list[tuple[int | None, str]] = []
    for piece in whole.split(b"\n") if not whole.endswith(b"\n") else whole[:-1].split(b"\n"):
        text, marks = strip_marks(piece)
        if marks and piece.startswith(b"\x1e"):
            step = marks[-1].step
        if text or not marks:
            lines.append((step, text.rstrip(b"\r").decode("utf-8", "backslashreplace")))
        step = marks[-1].step if marks else step
    return lines


def said(line: dict[str, Any]) -> str:
    """What the script wrote, from a line that may have become fields."""
    return str(line["msg"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    BYTES,
    st.lists(st.integers(1, 400), min_size=1, max_size=20),
    st.lists(st.sampled_from("-.al"), min_size=1, max_size=20),
)
def test_whatever_is_written_in_whatever_pieces_is_there_once_though_agents_die(
    tmp_path_factory: Any, whole: bytes, sizes: list[int], fates: list[str]
) -> None:
    """`a`: a new agent; `l`: one that died after it wrote lines and before it noted so."""
    reader = Reader(tmp_path_factory.mktemp("spool"))
    try:
        at = number = 0
        while at < len(whole):
            reader.write(whole[at : at + sizes[number % len(sizes)]])
            at += sizes[number % len(sizes)]
            fate = fates[number % len(fates)]
            if fate == "l":
                reader.ledger.advance = lambda *_: True  # type: ignore[method-assign]
                reader.spool.poll()
            elif fate != "-":
                reader.spool.poll()
            if fate in "al":
                reader.new_agent()
            number += 1
        reader.spool.drain()
        kept = reader.lines()
        wanted = expected(whole) if whole else []
        own = [n for n, line in enumerate(kept) if "fields" in line]
        assert [line["step"] for line in kept] == [step for step, _ in wanted]
        assert [said(line) for n, line in enumerate(kept) if n not in own] == [
            text for n, (_, text) in enumerate(wanted) if n not in own
        ]
    finally:
        reader.close()


class OneByOne(LineMaker):
    def _take_plain(self, *_: Any) -> bool:
        return False


@settings(max_examples=300, deadline=None)
@given(BYTES, st.booleans())
def test_plain_pieces_taken_at_once_are_what_their_lines_are_one_by_one(data: bytes, secret: bool) -> None:
    hidden = Redactor(("hunter22secret",) if secret else ())
    data += b"\n"
    fast, slow = LineMaker(PLACE, None, None), OneByOne(PLACE, None, None)
    one, other = fast.make(data, 9.0, hidden, whole=True), slow.make(data, 9.0, hidden, whole=True)
    assert [json.loads(line) for line in one.lines.split(b"\n")[:-1]] == [
        json.loads(line) for line in other.lines.split(b"\n")[:-1]
    ]
    assert (one.loud, one.last_texts(), one.newest) == (other.loud, other.last_texts(), other.newest)
    assert fast.state == slow.state


def test_a_line_is_no_younger_than_the_marker_behind_it_and_no_older_than_the_line_before_it(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write(b"setup\n" + encode_mark(1, "", 100.0) + b"one\nmore\n" + encode_mark(2, "", 90.0) + b"two\n")
    reader.spool.poll()
    reader.write(encode_mark(3, "", 50.0) + b"three\n")
    reader.spool.poll()
    lines = reader.lines()
    assert [(line["step"], line["msg"]) for line in lines] == [
        (None, "setup"), (1, "one"), (1, "more"), (2, "two"), (3, "three")
    ]  # fmt: skip
    assert [line["ts"] for line in lines] == sorted(line["ts"] for line in lines)
    assert [line["ts"] for line in lines[:3]] == [stamp(100.0)] * 3
    reader.close()


def test_a_full_disk_costs_no_line_and_no_lines_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(tmp_path)
    reader.write(b"before\n" + encode_mark(7, "", 1.0) + b"after\n")
    with monkeypatch.context() as patch:
        patch.setattr(LogFile, "append", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            reader.spool.poll()
    reader.spool.poll()
    assert [(line["step"], line["msg"]) for line in reader.lines()] == [(None, "before"), (7, "after")]
    reader.close()


def test_a_rank_that_writes_faster_than_it_is_read_keeps_head_and_tail_and_a_bounded_disk(tmp_path: Path) -> None:
    reader = Reader(tmp_path, cap=1 << 20)
    reader.write(b"first\n")
    reader.spool.poll()
    for number in range(40):
        reader.write(encode_mark(number, "", 1.0) + b"%d " % number + b"x" * 200_000 + b"\n")
    reader.write(b"last\n")
    reader.spool.drain()
    lines = reader.lines()
    assert (lines[0]["msg"], lines[-1]["msg"], lines[-1]["step"]) == ("first", "last", 39)
    assert any("written faster than read" in line["msg"] and line["level"] == "warning" for line in lines)
    assert (tmp_path / "rank-0.jsonl").stat().st_size <= 1 << 20
    assert reader.source.stat().st_blocks * 512 <= 4 << 20
    reader.close()


def test_a_script_that_empties_its_own_output_loses_nothing_it_writes_after(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write(b"one\n" * 100)
    reader.spool.poll()
    reader.source.write_bytes(b"")
    reader.spool.poll()
    reader.write(b"two\n")
    reader.spool.poll()
    assert [line["msg"] for line in reader.lines()] == ["one"] * 100 + ["two"]
    reader.close()


def test_a_line_of_zruns_own_is_in_the_log_and_not_among_the_last_words(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write(encode_mark(5, "", 1.0) + b"the last print\n")
    reader.spool.drain()
    reader.spool.say("[zrun: rank 0 was ended for rank 1's fault]", "error")
    reader.new_agent()
    reader.spool.drain()
    assert [(line["level"], line["step"]) for line in reader.lines()] == [("info", 5), ("error", 5)]
    assert list(reader.tail) == ["the last print"]
    reader.close()


@pytest.mark.parametrize(
    ("text", "level", "message"),
    [
        ('{"level": 40, "msg": "pino counts in tens"}', "error", "pino counts in tens"),
        ('{"levelno": 30, "message": "logging"}', "warning", "logging"),
        ('{"event": "structlog", "log_level": "error"}', "error", "structlog"),
        ('{"text": "x", "record": {"level": {"name": "WARNING"}, "message": "loguru"}}', "warning", "loguru"),
        ('{"loss": 1.5}', "info", '{"loss": 1.5}'),
        ('{"msg": "ERROR without a level"}', "error", "ERROR without a level"),
    ],
)  # fmt: skip
def test_json_of_the_usual_libraries_keeps_level_and_message(text: str, level: str, message: str) -> None:
    read = read_line(text.encode())
    assert (read.level, read.msg, json.loads(read.fields or b"")) == (level, message, json.loads(text))
