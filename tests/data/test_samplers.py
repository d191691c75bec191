"""Samplers of the script's own and of torch's: exact over restarts and world sizes, or refused with the way out."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.data.test_loader import Numbers, attached, samples, take
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from zrun.core.batches import Batches
from zrun.core.errors import UsageError
from zrun.data import samplers
from zrun.data.loader import Loader

SIZE = 22
WEIGHTS = [1.0 + index % 5 for index in range(SIZE)]


class Backwards:
    """The protocol at its smallest; counts what it was asked for."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: list[tuple[int, int, int, int]] = []

    def __len__(self) -> int:
        return self.size

    def indices(self, epoch: int, start: int, count: int, seed: int) -> list[int]:
        self.asked.append((epoch, start, count, seed))
        return [(self.size - 1 - place + epoch) % self.size for place in range(start, start + count)]


class Global(Sampler[int]):
    """Shuffles with python's own generator, as many home-made samplers do; knows set_epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(range(SIZE))
        random.shuffle(order)
        return iter(order[self.epoch % 2 :] + order[: self.epoch % 2])


def made() -> dict[str, Any]:
    return {
        "backwards": Backwards(SIZE), "global": Global(), "in order": SequentialSampler(range(SIZE)),
        "weighted": WeightedRandomSampler(WEIGHTS, SIZE), "random": RandomSampler(range(SIZE)),
        "weighted with a generator": WeightedRandomSampler(WEIGHTS, SIZE, generator=torch.Generator()),
        "subset": SubsetRandomSampler(range(0, SIZE, 2)), "more than there are": RandomSampler(range(SIZE), True, 50),
    }  # fmt: skip


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("name", list(made()))
def test_a_resume_at_another_world_size_goes_on_in_the_same_order(name: str, drop_last: bool) -> None:
    options: dict[str, Any] = {"global_batch": 4, "drop_last": drop_last, "micro_batch": 1}
    alone = take(attached(Numbers(SIZE), sampler=made()[name], **options), 16)
    assert alone[-1].batch_id.epoch >= 1
    again = [take(attached(Numbers(SIZE), rank, 3, 7, sampler=made()[name], **options), 9) for rank in range(3)]
    for number, whole in enumerate(alone[7:]):
        assert {share[number].batch_id for share in again} == {whole.batch_id}
        assert [index for share in again for index in samples(share[number])] == samples(whole)
        assert sum(sum(share[number].part_weights) for share in again) == pytest.approx(3)


def test_a_weighted_sampler_keeps_its_weights() -> None:
    loader = attached(Numbers(2), global_batch=100, sampler=WeightedRandomSampler([1.0, 9.0], 1000))
    seen = Counter(index for share in take(loader, 10) for index in samples(share))
    assert 820 < seen[1] < 980


def test_epochs_of_a_sampler_differ() -> None:
    loader = attached(Numbers(SIZE), global_batch=22, sampler=RandomSampler(range(SIZE)))
    assert loader.indices(1) != loader.indices(2)
    assert sorted(loader.indices(1)) == sorted(loader.indices(2))


def test_a_sampler_that_can_be_asked_is_asked_for_what_is_read_and_no_more() -> None:
    sampler = Backwards(10**12)
    loader = attached(Trillion(), global_batch=8, sampler=sampler, done=10**9)
    take(loader, 1)
    assert sampler.asked == [(0, 8 * 10**9, 8, 3)]


class Trillion(Dataset[int]):
    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, index: int) -> int:
        return index


def test_a_sample_that_comes_twice_an_epoch_is_not_augmented_alike() -> None:
    class Draws(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.rand(())

    def drawn(rank: int, world_size: int) -> list[float]:
        loader = attached(Draws(1), rank, world_size, global_batch=6, sampler=RandomSampler(range(1), True, 6))
        return [float(value) for value in take(loader, 1)[0].data]

    assert len(set(drawn(0, 1))) == 6
    assert drawn(0, 2) + drawn(1, 2) == drawn(0, 1)


def test_drawing_an_order_leaves_the_scripts_generators_alone() -> None:
    random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), torch.get_rng_state()
    attached(Numbers(SIZE), global_batch=4, sampler=Global()).indices(9)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


class Remembers(Sampler[int]):
    def __init__(self) -> None:
        self.times = 0

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        return iter([(place + self.times) % 4 for place in range(4)])


class Grows(Sampler[int]):
    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(2 + self.epoch))


class Short(Backwards):
    def indices(self, epoch: int, start: int, count: int, seed: int) -> list[int]:
        return super().indices(epoch, start, count - 1, seed)


@pytest.mark.parametrize(
    ("sampler", "why"),
    [
        (DistributedSampler(Numbers(4), 2, 0), "deals samples out to ranks"),
        (BatchSampler(SequentialSampler(range(4)), 2, drop_last=False), "a sampler of batches"),
        (7, "gives no samples"), (["a"], "no whole numbers"), (range(5), "samples 0 to 4 of a dataset with 4"),
        (Remembers(), "another order when it is asked again"), (Grows(), "gave 3 samples for epoch 1, but 2"),
        (Short(4), "gave 1 samples"), (Backwards(6), "samples 4 to 5 of a dataset with 4"), ([], "empty"),
    ],
)  # fmt: skip
def test_what_would_not_be_exact_is_refused(sampler: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        [attached(Numbers(4), global_batch=2, sampler=sampler).indices(ordinal) for ordinal in (1, 2)]


def test_a_sampler_excludes_shuffle_and_wants_numbered_samples() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        Loader(Numbers(4), global_batch=2, sampler=Backwards(4), shuffle=True)
    with pytest.raises(UsageError, match="needs a dataset with __len__"):
        Loader(iter([1]), global_batch=2, sampler=Backwards(4))


def test_an_order_that_takes_much_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "LARGE", SIZE)
    (told,) = attached(Numbers(SIZE), global_batch=4, sampler=Global()).remarks()
    assert "Global is drawn to its end" in told
    assert attached(Numbers(SIZE), global_batch=4, sampler=Backwards(SIZE)).remarks() == []
    assert attached(Numbers(SIZE), global_batch=4).remarks() == []


def test_the_facts_alone_do_not_tell_the_order_of_a_sampler() -> None:
    with pytest.raises(UsageError, match="sampler in the script") as caught:
        Batches(attached(Numbers(SIZE), global_batch=4, sampler=Global()).facts())
    assert "--replay" in caught.value.hint
