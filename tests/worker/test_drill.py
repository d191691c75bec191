"""Faults by appointment inside a rank, on a real deck with a real optimizer; those that end a process are in tests/e2e."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

from zrun.core.appointments import Appointment, Drill
from zrun.core.batch import BatchId
from zrun.core.deck import create_deck, deck_path
from zrun.core.deck_writer import DeckWriter
from zrun.core.settings import RankSettings
from zrun.state import kill_points
from zrun.state.parts import Parts
from zrun.worker import drill as drilling
from zrun.worker.rank import ThisRank


class Rank:
    """One rank of a drill, and the optimizer of its script."""

    def __init__(self, folder: Path, *faults: tuple[str, int], attempt: int = 1) -> None:
        self.drill = Drill(str(folder), tuple(Appointment(n, kind, 0, step) for n, (kind, step) in enumerate(faults)))
        for place in (self.drill.traces, self.drill.came):
            place.mkdir(exist_ok=True)
        deck = deck_path(folder, attempt)
        create_deck(deck, 0, attempt, 0.0)
        self.rank = ThisRank(0, 1, attempt, RankSettings(), deck=DeckWriter(deck), session=True)
        drilling.arm(self.rank, self.drill.to_json())
        self.layer = nn.Linear(4, 1)
        self.optimizer: Any = torch.optim.SGD(self.layer.parameters(), lr=0.1)

    def step(self, number: int) -> None:
        self.rank.begin_step(number, BatchId(0, number, 7), 0.0)
        self.layer(torch.rand(2, 4)).sum().backward()
        self.optimizer.step()
        self.rank.complete_step(number, 0.01)

    def lines(self, attempt: int = 1) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.drill.trace(attempt, 0).read_text().splitlines()]


@pytest.fixture(autouse=True)
def _hooks_are_taken_away() -> Iterator[None]:
    before, listening = dict(optimizers._global_optimizer_pre_hooks), list(kill_points._listeners)
    yield
    optimizers._global_optimizer_pre_hooks.clear()
    optimizers._global_optimizer_pre_hooks.update(before)
    kill_points._listeners[:] = listening


def test_each_step_leaves_its_batch_and_what_was_reported_to_the_last_bit(tmp_path: Path) -> None:
    one = Rank(tmp_path)
    assert one.rank.trace is not None
    one.rank.trace.heard({"loss": 0.1 + 0.2})
    one.step(1)
    one.step(2)
    begun, first, second = one.lines()
    assert begun["world_size"] == 1
    assert (first["step"], first["batch"], first["metrics"]) == (
        1,
        "e0-s000001-00000007",
        {"loss": "0.30000000000000004"},
    )
    assert second["metrics"] == {}


def test_the_state_at_the_end_is_told_by_name_and_changes_with_one_bit(tmp_path: Path) -> None:
    one = Rank(tmp_path)
    parts = Parts(one.layer, one.optimizer)
    assert one.rank.trace is not None
    one.rank.trace.ended(1, *parts.flatten())
    with torch.no_grad():
        one.layer.bias.view(torch.int32)[0] ^= 1
    one.rank.trace.ended(1, *parts.flatten())
    before, after = (line["state"] for line in one.lines()[1:])
    assert {name for name in before if before[name] != after[name]} == {"model/bias@0:1"}


def test_a_fault_comes_before_the_update_of_its_step_and_only_once_whatever_the_attempt(tmp_path: Path) -> None:
    one = Rank(tmp_path, ("raise", 2))
    one.step(1)
    with pytest.raises(RuntimeError, match="fault by appointment: raise on rank 0 at step 2"):
        one.step(2)
    assert json.loads((one.drill.came / "0.json").read_text())["step"] == 2
    assert [line.get("step") for line in one.lines()] == [None, 1]
    again = Rank(tmp_path, ("raise", 2), attempt=2)
    again.step(2)
    assert [line.get("step") for line in again.lines(2)] == [None, 2]


def test_a_fault_of_a_step_that_was_skipped_comes_at_the_next_one(tmp_path: Path) -> None:
    one = Rank(tmp_path, ("raise", 2))
    with pytest.raises(RuntimeError):
        one.step(4)


def test_out_of_memory_is_what_the_allocator_itself_raises(tmp_path: Path) -> None:
    one = Rank(tmp_path, ("oom", 1))
    with pytest.raises(RuntimeError, match=r"(?i)allocate memory|out of memory"):
        one.step(1)


def test_a_poisoned_batch_cannot_be_read_in_any_attempt_and_the_others_can(tmp_path: Path) -> None:
    for attempt in (1, 2):
        faults = Rank(tmp_path, ("poison", 5), attempt=attempt).rank.faults
        assert faults is not None
        faults.reading(4, BatchId(0, 4, 7))
        with pytest.raises(ValueError, match="e0-s000005-00000007 cannot be read"):
            faults.reading(5, BatchId(0, 5, 7))
        faults.reading(5, BatchId(0, 6, 7))


def test_the_first_save_requested_at_or_after_the_step_fails_as_on_a_full_disk_and_no_other(tmp_path: Path) -> None:
    one = Rank(tmp_path, ("disk-full", 2))
    one.step(1)
    kill_points.reached("copy")
    one.step(2)
    kill_points.reached("write")  # of the save that was requested before
    kill_points.reached("copy")
    with pytest.raises(OSError, match="No space left") as full:
        kill_points.reached("write")
    assert full.value.errno == errno.ENOSPC
    kill_points.reached("copy")
    kill_points.reached("write")


def test_a_slow_rank_sleeps_once_in_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("zrun.worker.drill.time.sleep", slept.append)
    one = Rank(tmp_path, ("slow", 3))
    for step in range(1, 70):
        one.step(step)
        one.optimizer.step()
    assert len(slept) == drilling.SLOW_STEPS


def test_a_rank_that_nothing_befalls_is_only_traced(tmp_path: Path) -> None:
    one = Rank(tmp_path)
    assert one.rank.faults is None
    one.step(1)
    assert len(one.lines()) == 2
