"""Batch ids, rows, marks, notes, settings, durable files: small words that several processes must agree on."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.core.batch import BatchId, batch_digest
from zrun.core.deck import OPS, Phase
from zrun.core.durable import create_exclusive, write_json
from zrun.core.env import joined, parted, without_launchers
from zrun.core.failure import Failure, FailureKind
from zrun.core.marks import LONGEST, encode_mark, strip_marks
from zrun.core.notes import NoteKind, NoteReader, NoteWriter
from zrun.core.rows import RankRow, RowFlag, pack_rows, unpack_rows
from zrun.core.settings import RankSettings
from zrun.core.words import shortened

u32 = st.integers(0, 2**32 - 1)
batches = st.builds(BatchId, u32, u32.filter(bool), u32)


@given(batches)
def test_a_batch_id_reads_back(batch: BatchId) -> None:
    assert BatchId.parse(str(batch)) == batch


def test_a_batch_id_looks_as_promised_and_nonsense_is_refused() -> None:
    assert str(BatchId(2, 1840, 0x7F3A9C21)) == "e2-s001840-7f3a9c21"
    with pytest.raises(ValueError, match="not a batch id"):
        BatchId.parse("e2-s1840")


def test_the_digest_depends_on_data_seed_and_order() -> None:
    base = batch_digest("set", 0, [1, 2, 3])
    assert base == batch_digest("set", 0, iter([1, 2, 3]))
    assert (
        len(
            {
                base,
                batch_digest("set", 0, [1, 3, 2]),
                batch_digest("set", 1, [1, 2, 3]),
                batch_digest("t", 0, [1, 2, 3]),
            }
        )
        == 4
    )


rows = st.builds(
    RankRow, rank=u32, pid=u32, step=st.integers(0, 2**63), phase=st.sampled_from(Phase),
    batch=st.none() | batches, age_s=st.floats(0, 1e6, width=32), phase_age_s=st.floats(0, 1e6, width=32),
    step_s=st.floats(0, 1e6, width=32), coll_seq=st.integers(0, 2**63), coll_age_s=st.floats(0, 1e6, width=32),
    coll_op=st.sampled_from(OPS), cpu=st.floats(0, 64, width=32), state=st.sampled_from("RSDZ?"),
    flags=st.integers(0, 2047).map(RowFlag),
)  # fmt: skip


@given(st.lists(rows, max_size=5))
def test_rows_are_64_bytes_each_and_read_back(some: list[RankRow]) -> None:
    block = pack_rows(some)
    assert len(block) == 64 * len(some)
    assert unpack_rows(block) == some


def test_a_stopped_row_carries_how_long() -> None:
    row = RankRow(1, 2, 3, Phase.STEP, None, 1.0, 1.0, 0.5, 4, 1.0, "barrier", 0.0, "T", RowFlag.ALIVE, stopped_s=2.5)
    assert unpack_rows(row.pack())[0] == row


@given(st.binary(max_size=300))
def test_rubbish_is_no_block_of_rows(block: bytes) -> None:
    try:
        assert len(unpack_rows(block)) * 64 == len(block)
    except ValueError:
        pass


@given(
    st.lists(st.tuples(st.binary(max_size=20).filter(lambda b: b"\x1e" not in b), st.integers(0, 10**9)), max_size=6)
)
def test_marks_come_out_and_leave_the_scripts_bytes_alone(parts: list[tuple[bytes, int]]) -> None:
    stream = b"".join(text + encode_mark(step, "e0-s000001-00000001", 12.5) for text, step in parts)
    text, marks = strip_marks(stream)
    assert text == b"".join(t for t, _ in parts)
    assert [m.step for m in marks] == [s for _, s in parts]


def test_no_mark_is_longer_than_it_says() -> None:
    assert len(encode_mark(2**63, "x" * 64, 2e9)) <= LONGEST


def test_notes_are_read_once_and_half_lines_wait(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.notes"
    reader = NoteReader(path)
    assert reader.read() == []
    writer = NoteWriter(path)
    writer.write(NoteKind.WARNING, message="a\nb")
    writer.close()
    with path.open("ab") as file:
        file.write(b'{"kind": "half')
    assert [n["message"] for n in reader.read()] == ["a\nb"]
    with path.open("ab") as file:
        file.write(b'"}\nnot json\n[1]\n')
    assert [n["kind"] for n in reader.read()] == ["half"]


@given(
    st.builds(
        RankSettings, seed=st.integers(), quarantined=st.lists(st.text()), save_every_s=st.none() | st.floats(0, 9)
    )
)
def test_settings_read_back(settings: RankSettings) -> None:
    assert RankSettings.from_json(settings.to_json()) == settings


def test_settings_of_a_newer_agent_still_start_a_rank() -> None:
    assert RankSettings.from_json('{"seed": 3, "later": 1}') == RankSettings(seed=3)


def test_a_failure_reads_back_and_says_itself_in_one_line() -> None:
    failure = Failure(1, "a", FailureKind.RAISED, 1.0, exception="ValueError", message="bad", where="d.py:10", step=61)
    assert Failure.from_dict(json.loads(json.dumps(failure.to_dict()))) == failure
    assert failure.headline() == "rank 1: ValueError: bad (d.py:10, step 61)"


def test_launcher_owned_names_are_dropped_and_listed_and_user_names_pass_byte_for_byte() -> None:
    kept, dropped = without_launchers(
        {"RANK": "7", "SLURM_CPU_BIND": "x", "A": "0,1", "B": "a=b c\n", "ZRUN_JOB": "old"}
    )
    assert kept == {"A": "0,1", "B": "a=b c\n"}
    assert dropped == ["RANK", "SLURM_CPU_BIND", "ZRUN_JOB"]


def test_a_durable_file_is_whole_private_and_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(TypeError):
        write_json(tmp_path / "bad.json", {("tuple",): 1})
    assert [p.name for p in tmp_path.iterdir()] == ["verdict.json"]


def test_an_exclusive_file_is_made_once(tmp_path: Path) -> None:
    create_exclusive(tmp_path / "token", b"x")
    with pytest.raises(FileExistsError):
        create_exclusive(tmp_path / "token", b"y")
    assert (tmp_path / "token").read_bytes() == b"x"


def test_a_lone_surrogate_is_escaped_on_its_way_into_notes_and_failures(tmp_path: Path) -> None:
    writer = NoteWriter(tmp_path / "notes")
    writer.write(NoteKind.WARNING, message="a\ud800b")
    writer.close()
    with (tmp_path / "notes").open("a") as file:  # of an older rank
        file.write('{"message": "\\ud800"}\n')
    assert [note["message"] for note in NoteReader(tmp_path / "notes").read()] == ["a\\ud800b", "\\ud800"]
    failure = Failure(1, "a", FailureKind.RAISED, 1.0, message="\ud800", last_lines=["\udfff", "ü"])
    assert (failure.to_dict()["message"], failure.to_dict()["last_lines"]) == ("\\ud800", ["\\udfff", "ü"])


def test_a_long_text_keeps_head_and_tail_and_says_how_much_was_cut() -> None:
    text = "begin " + "x" * 10_000 + " end"
    cut = shortened(text, 4_000)
    assert cut.startswith("begin xxx")
    assert cut.endswith("xxx end")
    assert "\n[… 6010 characters cut …]\n" in cut
    assert shortened("short", 4_000) == "short"


def test_a_cut_tears_no_word_near_its_borders() -> None:
    cut = shortened("word " * 2_000, 1_000)
    assert not {"w", "wo", "wor", "ord", "rd", "d"} & set(cut.split())


def test_tuning_of_other_launchers_passes_where_the_job_names_it_and_their_ranks_never_do() -> None:
    given = {"OMPI_MCA_btl": "tcp", "OMPI_COMM_WORLD_RANK": "3", "SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "8"}
    assert without_launchers(given)[0] == {"SLURM_JOB_ID": "7"}
    assert without_launchers(given, asked=True)[0] == {"OMPI_MCA_btl": "tcp", "SLURM_JOB_ID": "7"}


def test_variables_that_are_no_utf_8_are_parted_and_joined_byte_for_byte() -> None:
    given = {
        os.fsdecode(name): os.fsdecode(value)
        for name, value in {b"A": b"\xff", b"N\xfe": b"x", b"T": b"\xc3\xa9"}.items()
    }
    text, others = parted(given)
    assert text == {"T": "é"}
    assert others == {b"A": b"\xff", b"N\xfe": b"x"}
    assert joined(text, others) == given
