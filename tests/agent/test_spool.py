"""Output becomes lines exactly once, without markers, whatever the pieces it is read in."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zrun.agent.log_file import LogFile
from zrun.agent.log_lines import Place, to_line
from zrun.agent.spool import LONGEST_LINE, Spool, begun_mark
from zrun.core.marks import encode_mark
from zrun.core.redact import MASK, Redactor

PLACE = Place("toy-abcdef", 1, "a", 0, 0, "stdout")


class Reader:
    def __init__(self, folder: Path, hidden: tuple[str, ...] = ()) -> None:
        self.hidden = Redactor(hidden)
        self.folder = folder
        self.source = folder / "rank-0.out"
        self.sink = LogFile(folder / "rank-0.jsonl", 1 << 30)
        self.tail: deque[str] = deque(maxlen=50)
        self.spool = self.open()

    def open(self) -> Spool:
        return Spool(self.source, PLACE, self.sink, self.tail, lambda _: None, lambda: self.hidden)

    def write(self, data: bytes) -> None:
        with self.source.open("ab") as file:
            file.write(data)

    def lines(self) -> list[dict[str, Any]]:
        path = self.folder / "rank-0.jsonl"
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def close(self) -> None:
        self.spool.close()
        self.sink.close()


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
                reader.spool.close()
                reader.spool = reader.open()
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
    line = to_line(PLACE, b'{"level": "WARNING", "message": "low", "loss": NaN}', 0.0, 1, None)
    assert (line["level"], line["msg"]) == ("warning", "low")
    assert line["fields"]["loss"] == "NaN"
    assert to_line(PLACE, b"\xff\x00ok", 0.0, None, None)["msg"] == "\\xff\x00ok"
    assert to_line(PLACE, b"Traceback (most recent call last):", 0.0, None, None)["level"] == "error"
    assert line["ts"] == "1970-01-01T00:00:00.000Z"


def test_space_behind_the_offset_is_given_back(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.write((b"x" * 1023 + b"\n") * 8192)
    before = reader.source.stat().st_blocks
    reader.spool.drain()
    assert reader.source.stat().st_blocks <= before // 2 or reader.source.stat().st_blocks == before
    assert len(reader.lines()) == 8192
    reader.close()


def test_a_log_over_its_cap_keeps_head_and_tail(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "rank-0.jsonl", 1 << 16)
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
    log = LogFile(path, 1 << 20)
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
    reader.spool.remove()
    assert reader.source.exists()
    reader.spool.drain()
    reader.spool.remove()
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
    assert to_line(PLACE, text.encode(), 0.0, None, None)["level"] == level


def test_the_note_on_what_was_left_out_says_whose_it_was_and_when(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "rank-0.jsonl", 1 << 16)
    for number in range(3000):
        line = to_line(PLACE, b"line %d" % number, float(number), number, "e0-s000001-7f3a9c21")
        log.append(json.dumps(line).encode() + b"\n")
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    (note,) = [line for line in lines if "left out" in line["msg"]]
    assert set(note) == set(lines[0])
    assert (note["rank"], note["attempt"], note["job"], note["level"]) == (0, 1, "toy-abcdef", "warning")
    assert [line["ts"] for line in lines] == sorted(line["ts"] for line in lines)
    assert (lines[0]["msg"], lines[-1]["msg"]) == ("line 0", "line 2999")
