"""What one rank keeps in memory: the state of one step, whole, whatever the next step has begun to change. One process."""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from zrun.core.errors import CheckpointError
from zrun.state import memory_page, recalling
from zrun.state.keeping import Held, Keeping
from zrun.state.kept import Whose
from zrun.state.parts import Parts
from zrun.state.places import Places
from zrun.state.progress import Progress
from zrun.state.recalling import Key, Recalled
from zrun.state.remembering import MemorySource


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.norm(self.first(x)))
        return made


class Job:
    """One rank that trains by hand."""

    def __init__(self, places: Places, **extras: Any) -> None:
        torch.manual_seed(0)
        self.places = places
        self.net = Net()
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.parts = Parts(self.net, self.optimizer, self.scheduler, extras=extras)
        self.keeping = Keeping(self.parts, places, Whose("toy", 1, 0, 1), {"seed": 3}, 1)
        self.step = 0

    def top(self) -> dict[str, Any]:
        progress = Progress(self.step, {}, f"b{self.step}", {"seen": self.step}, [], "single")
        self.keeping.step_done(progress, partial(dict, data=self.step))
        return self.everything()

    def everything(self) -> dict[str, Any]:
        blocks, values = self.parts.flatten()
        return {block.name: block.local.clone() for block in blocks} | {"values": values}

    def backward(self) -> None:
        self.net(torch.randn(6, 4)).square().mean().backward()

    def rest(self) -> None:
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.step += 1

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.top()
            self.backward()
            self.rest()

    def recalled(self, step: int) -> Recalled:
        memory = recalling.look({0: self.places}, "toy", 1)
        found = memory.recall(Key(1, step), [0])
        assert isinstance(found, Recalled), found
        return found

    def same_as(self, before: dict[str, Any], step: int) -> None:
        """A job that begins anew and loads what lies in memory has the very same."""
        anew = Job(self.places)
        anew.keeping.close()
        anew.train(0)
        with MemorySource(self.recalled(step), 0) as source:
            anew.parts.load(source)
        after = anew.everything()
        assert after["values"] == before["values"]
        assert all(torch.equal(after[name], before[name]) for name in before if name != "values")
        assert after.keys() == before.keys()


@pytest.fixture
def places() -> Iterator[Places]:
    handles = [os.memfd_create(name) for name in ("page", "a", "b")]
    paths = [f"/proc/self/fd/{handle}" for handle in handles]
    yield Places(paths[0], tuple(paths[1:]))
    for handle in handles:
        os.close(handle)


def test_in_the_middle_of_a_backward_the_state_is_that_of_the_step_before(places: Places) -> None:
    job = Job(places)
    job.train(5)
    before = job.top()
    job.backward()
    mean = job.net.norm.running_mean
    assert mean is not None
    assert not torch.equal(mean, before["model/norm.running_mean"])
    held = job.keeping.hold()
    assert held is not None
    assert (held.step, held.problem) == (5, "")
    assert held.bytes > 4 * (32 + 8 + 16 + 8) * 3 - 100
    job.same_as(before, 5)


def test_between_the_optimizers_step_and_the_next_top_nothing_is_whole(places: Places) -> None:
    job = Job(places)
    job.train(4)
    job.top()
    job.backward()
    job.rest()
    assert job.keeping.hold() is None
    before = job.top()
    held = job.keeping.hold()
    assert held is not None
    assert held.step == 5
    job.same_as(before, 5)


def test_a_copy_on_cadence_counts_once_its_digests_are_taken_and_outlives_the_next_ones_failure(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(places)
    job.train(3)
    before = job.top()
    assert job.keeping.copy().problem == ""
    job.backward()
    job.rest()
    job.top()
    monkeypatch.setattr("zrun.state.memory_slot.free_memory", lambda: 0)
    assert "too little" in job.keeping.copy().problem
    monkeypatch.undo()
    job.same_as(before, 3)


def test_the_copy_that_is_overwritten_is_the_older_one_also_for_a_later_attempt(places: Places) -> None:
    job = Job(places)
    job.train(3)
    job.top()
    job.keeping.copy()
    job.backward()
    job.rest()
    before = job.top()
    assert job.keeping.hold() is not None
    job.keeping.close()
    later = Job(places)
    later.train(4)
    later.top()
    later.keeping.copy()
    job.same_as(before, 4)


def test_a_rank_that_fails_after_its_optimizer_stepped_leaves_tensors_that_another_ranks_values_complete(
    places: Places,
) -> None:
    job = Job(places)
    job.train(4)
    job.top()
    job.backward()
    job.optimizer.step()
    held = job.keeping.hold(ever=False)
    assert held is not None
    assert (held.step, held.problem) == (5, "")
    memory = recalling.look({0: places}, "toy", 1)
    assert memory.recall(Key(1, 5), [0]) == "no rank had ended that step"


def test_a_rank_that_fails_inside_its_optimizers_step_has_nothing_to_give(places: Places) -> None:
    job = Job(places)
    job.train(4)
    job.top()
    answers: list[Held | None] = []
    hook = job.optimizer.register_step_pre_hook(lambda *_: answers.append(job.keeping.hold(ever=False)))
    job.backward()
    job.rest()
    hook.remove()
    assert answers[0] is not None
    assert "had begun to change it" in answers[0].problem


def test_a_weight_that_was_changed_by_hand_before_the_optimizer_is_noticed(places: Places) -> None:
    job = Job(places)
    job.train(4)
    job.top()
    with torch.no_grad():
        job.net.last.weight.mul_(2)
    held = job.keeping.hold()
    assert held is not None
    assert "model/last.weight was changed" in held.problem


def test_a_generator_among_the_extras_is_taken_from_the_steps_top(places: Places) -> None:
    generator = torch.Generator().manual_seed(9)
    job = Job(places, dice=generator)
    job.train(4)
    job.top()
    drawn = torch.rand(3, generator=generator)
    assert job.keeping.hold() is not None
    anew = torch.Generator()
    loading = Parts(extras={"dice": anew})
    with MemorySource(job.recalled(4), 0) as source:
        loading.load(source)
    assert torch.equal(torch.rand(3, generator=anew), drawn)


def test_an_optimizer_that_makes_new_tensors_is_laid_out_anew(places: Places) -> None:
    job = Job(places)
    job.train(6)
    job.optimizer.state.clear()
    job.train(2)
    before = job.top()
    assert job.keeping.hold() is not None
    job.same_as(before, 8)


def test_a_weight_whose_memory_was_swapped_is_noticed(places: Places) -> None:
    job = Job(places)
    job.train(4)
    job.top()
    job.net.last.weight.data = job.net.last.weight.data.clone()
    held = job.keeping.hold()
    assert held is not None
    assert held.problem == "model/last.weight was replaced by another tensor"


def test_a_buffer_that_the_forward_replaces_is_never_taken_for_the_old_one(places: Places) -> None:
    job = Job(places)
    job.train(4)
    before = job.top()
    assert job.net.norm.running_mean is not None
    job.net.norm.running_mean = job.net.norm.running_mean + 1
    job.backward()
    page = memory_page.read(places.page)
    assert page is not None
    assert 5 not in page.after, "what is put down there must be what the model has"
    assert job.keeping.hold() is not None
    job.same_as(before, 4)
    job.rest()
    before = job.top()
    assert job.keeping.hold() is not None
    job.same_as(before, 5)


def test_copies_that_fail_one_after_another_never_cost_the_last_good_one(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(places)
    job.train(3)
    before = job.top()
    assert job.keeping.copy().problem == ""
    monkeypatch.setattr("zrun.state.memory_slot.free_memory", lambda: 0)
    for _ in range(3):
        job.backward()
        job.rest()
        job.top()
        held = job.keeping.hold()
        assert held is not None
        assert "too little" in held.problem
    monkeypatch.undo()
    job.same_as(before, 3)


def test_a_buffer_with_other_memory_under_it_is_never_taken_for_the_old_one(places: Places) -> None:
    job = Job(places)
    job.train(4)
    job.top()
    mean = job.net.norm.running_mean
    assert mean is not None
    mean.data = mean.data + 1
    job.backward()
    page = memory_page.read(places.page)
    assert page is not None
    assert 5 not in page.after
    job.rest()
    before = job.top()
    assert job.keeping.hold() is not None
    job.same_as(before, 5)


def test_what_goes_wrong_in_a_forward_ends_the_keeping_and_never_the_training(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(places)
    job.train(4)
    job.top()

    def fails(*_: Any) -> None:
        raise RuntimeError("no such shape")

    monkeypatch.setattr("zrun.state.memory_page.PageWriter.put_changed", fails)
    job.backward()
    job.rest()
    with pytest.raises(CheckpointError, match="no such shape"):
        job.top()


def test_a_model_inside_a_compiled_function_keeps_its_one_graph(places: Places) -> None:
    job = Job(places)
    job.train(4)
    job.top()
    whole = torch.compile(lambda x: job.net(x).sum(), backend="eager", fullgraph=True)
    assert whole(torch.randn(6, 4)).shape == ()
