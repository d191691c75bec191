"""The deck: what a rank writes, the agent reads; the order page goes the other way."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.core import deck as d
from zrun.core.batch import BatchId
from zrun.core.deck_reader import DeckReader
from zrun.core.deck_writer import DeckWriter


@pytest.fixture
def both(tmp_path: Path) -> tuple[DeckWriter, DeckReader]:
    path = d.deck_path(tmp_path, 3)
    d.create_deck(path, rank=3, attempt=2, made_at=1.0)
    reader = DeckReader(path)
    return DeckWriter(path), reader


def test_the_agent_reads_what_the_rank_wrote(both: tuple[DeckWriter, DeckReader]) -> None:
    writer, reader = both
    writer.enter_phase(d.Phase.OWN, "tokenize")
    writer.begin_step(7, BatchId(1, 7, 0x7F3A9C21))
    writer.complete_step(7, 0.05)
    writer.raise_flag(d.Flag.SESSION | d.Flag.DUMP_READY)
    writer.set_total(100)
    state = reader.read()
    assert (state.rank, state.attempt, state.pid) == (3, 2, os.getpid())
    assert (state.phase, state.phase_name) == (d.Phase.OWN, "tokenize")
    assert (state.step, state.completed, state.total_steps, state.step_s) == (7, 7, 100, 0.05)
    assert str(state.batch) == "e1-s000007-7f3a9c21"
    assert state.flags == d.Flag.SESSION | d.Flag.DUMP_READY
    assert state.progress == 3


def test_a_rank_inside_a_collective_is_seen_there_and_the_ring_keeps_the_last_64(
    both: tuple[DeckWriter, DeckReader],
) -> None:
    writer, reader = both
    for _ in range(100):
        writer.leave_collective(writer.enter_collective(d.OP_CODE["all_reduce"], 5, 1024))
    writer.enter_collective(d.OP_CODE["broadcast"], 6, 16)
    state = reader.read()
    assert state.in_collective
    assert (state.coll_seq, state.coll_done, state.coll_op, state.coll_group) == (101, 100, "broadcast", 6)
    assert writer.collective() == "broadcast #101"
    ring = reader.ring()
    assert [r.sequence for r in ring] == list(range(38, 102))
    assert ring[-1].left_at == 0.0
    assert ring[-2].left_at > 0.0


def test_a_stop_request_is_read_acknowledged_and_confirmed(both: tuple[DeckWriter, DeckReader]) -> None:
    writer, reader = both
    assert writer.stop_request() is None
    reader.write_order(d.StopKind.STOP, sequence=4, step=41, confirmed=0, deadline=99.0)
    asked = writer.stop_request()
    assert asked is not None
    assert (asked.kind, asked.sequence, asked.step, asked.confirmed) == (d.StopKind.STOP, 4, 41, False)
    writer.acknowledge(4)
    assert reader.read().ack_seq == 4
    reader.write_order(d.StopKind.STOP, sequence=4, step=41, confirmed=4, deadline=99.0)
    again = writer.stop_request()
    assert again is not None
    assert again.confirmed


@given(st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False) | st.integers(), max_size=40))
def test_metrics_come_out_whole_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, metrics: dict[str, float]
) -> None:
    path = tmp_path_factory.mktemp("deck") / "deck.0"
    d.create_deck(path, rank=0, attempt=1, made_at=0.0)
    writer, reader = DeckWriter(path), DeckReader(path)
    writer.put_metrics({"loss": 1.5})
    writer.put_metrics(metrics)
    assert reader.read().metrics in ({"loss": 1.5}, metrics)


def test_a_file_that_is_no_deck_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\0" * d.SIZE)
    with pytest.raises(ValueError, match="not a deck"):
        DeckWriter(tmp_path / "x")
    with pytest.raises(ValueError, match="not a deck"):
        DeckReader(tmp_path / "x")


def test_a_forked_child_does_not_own_the_deck(both: tuple[DeckWriter, DeckReader]) -> None:
    writer, _ = both
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"owned" if writer.owned() else b"not")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 5) == b"not"
    os.close(read)
    os.close(write)
    assert writer.owned()


def test_time_in_overlapping_collectives_is_counted_once_and_that_of_blind_ones_not_at_all(
    both: tuple[DeckWriter, DeckReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = both
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first = writer.enter_collective(1, 7, 8)
    now = 101.0
    second = writer.enter_collective(1, 7, 8, blocking=True)
    now = 103.0
    writer.leave_collective(first)
    now = 104.0
    writer.leave_collective(second)
    assert reader.read().wait_s == 4.0
    third = writer.enter_collective(1, 7, 8)
    now = 110.0
    writer.leave_collective(third, blind=True)
    assert reader.read().wait_s == 4.0
    assert [record.blocking for record in reader.ring()] == [False, True, False]


def test_a_beat_of_the_watcher_is_seen(both: tuple[DeckWriter, DeckReader]) -> None:
    writer, reader = both
    assert reader.read().beat_at == 0.0
    before = time.monotonic()
    writer.beat()
    assert before <= reader.read().beat_at <= time.monotonic()
