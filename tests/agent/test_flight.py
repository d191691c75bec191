"""torch's flight recorder: a real one of a real rank, and how it is read."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zrun.agent import flight
from zrun.agent.decks import Decks
from zrun.agent.log_steps import LogSteps
from zrun.core.deck import create_deck, deck_path

RANK = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from zrun.worker.flight import FlightDump
from zrun.worker.rank import arm
rank, folder = arm()
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(5))
dump = FlightDump(rank, folder / "rank-0.flight")
print("ready", flush=True)
while True:
    dump.sweep(False)
    time.sleep(0.01)
"""


def entry(sequence: int, *, retired: bool, group: str = "0", state: str = "scheduled") -> dict[str, object]:
    return {
        "collective_seq_id": sequence, "process_group": [group, "default_pg"], "profiling_name": "nccl:all_reduce",
        "retired": retired, "state": state, "input_sizes": [[5]], "is_p2p": False,
    }  # fmt: skip


def trace(*entries: dict[str, object]) -> str:
    return json.dumps({"entries": entries})


def test_a_living_ranks_recorder_is_put_into_the_incidents_folder(tmp_path: Path) -> None:
    shm, own, into = tmp_path / "shm", tmp_path / "attempt", tmp_path / "incident"
    for folder in (shm, own, into):
        folder.mkdir()
    create_deck(deck_path(shm, 0), 0, 1, 0.0)
    env = {"ZRUN_SHM_DIR": str(shm), "ZRUN_ATTEMPT_DIR": str(own), "RANK": "0", "WORLD_SIZE": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", RANK, str(tmp_path / "store")], env=env, stdout=subprocess.PIPE, text=True
    ) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
            decks = Decks(shm, [0], 0.0, LogSteps(None))
            asyncio.run(flight.collect(decks, {0: rank.pid}, own, into, "a"))
            decks.close()
        finally:
            rank.kill()
    [group] = flight.read((into / "flight" / "rank-0.json").read_text())
    assert (group.enqueued, group.finished, group.waits_for) == (3, 3, "")
    assert "rank 0: 3 enqueued, 3 finished" in (into / "flight" / "a.txt").read_text()
    assert not list(own.glob("*.flight"))


def test_a_rank_that_does_not_answer_leaves_nothing_and_costs_a_moment(tmp_path: Path) -> None:
    create_deck(deck_path(tmp_path, 0), 0, 1, 0.0)
    decks = Decks(tmp_path, [0], 0.0, LogSteps(None))
    asyncio.run(flight.collect(decks, {0: os.getpid()}, tmp_path / "attempt", tmp_path / "incident", "a"))
    decks.close()
    assert not (tmp_path / "incident").exists()


def test_a_rank_on_its_way_out_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "ANSWER_S", 3600.0)
    create_deck(deck_path(tmp_path, 0), 0, 1, 0.0)
    decks = Decks(tmp_path, [0], 0.0, LogSteps(None))
    asked = flight.collect(decks, {0: os.getpid()}, tmp_path / "a", tmp_path / "incident", "a", lambda rank: rank == 0)
    asyncio.run(asyncio.wait_for(asked, 60.0))
    decks.close()


def test_what_torch_dumped_by_itself_is_kept_unopened(tmp_path: Path) -> None:
    (tmp_path / "attempt" / "flight").mkdir(parents=True)
    (tmp_path / "attempt" / "flight" / "rank_3").write_bytes(b"\x80\x04not opened")
    decks = Decks(tmp_path, [], 0.0, LogSteps(None))
    asyncio.run(flight.collect(decks, {}, tmp_path / "attempt", tmp_path / "incident", "a"))
    assert (tmp_path / "incident" / "flight" / "rank_3.pickle").read_bytes() == b"\x80\x04not opened"


def test_the_oldest_unfinished_collective_is_what_a_rank_waits_for() -> None:
    [group] = flight.read(
        trace(entry(1, retired=True), entry(2, retired=False, state="started"), entry(3, retired=False))
    )
    assert (group.enqueued, group.finished) == (3, 1)
    assert group.waits_for == "all_reduce #2 [[5]] started"


def test_who_has_enqueued_less_on_a_group_is_told() -> None:
    seen = {0: flight.read(trace(entry(5, retired=False))), 1: flight.read(trace(entry(3, retired=True)))}
    assert "rank 1: 3 enqueued, 2 behind, 3 finished" in flight.table(seen)


def test_what_is_no_recording_says_nothing() -> None:
    for text in ("", "null", "[]", '{"entries": 1}', '{"entries": [1, null]}', '{"entries": [{}]}', "{"):
        for group in flight.read(text):
            assert group.enqueued == 0
