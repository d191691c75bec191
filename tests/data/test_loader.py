"""Loader gives the same global batches at any world size, resumes by one number, and makes randomness a function of
the sample."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset

from zrun.core.batches import Batches
from zrun.core.errors import UsageError
from zrun.data.loader import Loader, Share


class Numbers(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


class Noisy(Dataset[torch.Tensor]):
    """Draws from all three generators, as augmentation does."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = np.random.random()  # noqa: NPY002 - what scripts do
        return torch.tensor([index, random.random(), drawn, torch.rand(()).item()], dtype=torch.float64)


def attached(dataset: Any, rank: int = 0, world_size: int = 1, done: int = 0, skip: tuple[str, ...] = (),
             **options: Any) -> Loader:  # fmt: skip
    loader = Loader(dataset, **options)
    loader.attach(rank, world_size, 3)
    loader.seek(done, skip)
    return loader


def take(loader: Loader, count: int) -> list[Share]:
    shares = iter(loader)
    found = list(islice(shares, count))
    shares.close()  # type: ignore[attr-defined]
    return found


def samples(share: Share) -> list[int]:
    """The real samples of a share, pads left out."""
    parts = share.data if isinstance(share.data, list) else [share.data]
    return [int(i) for part, w in zip(parts, share.part_weights, strict=True) if w for i in part]


@given(st.integers(1, 60), st.integers(1, 12), st.booleans(), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_batches_are_the_same_at_any_world_size(
    size: int, batch: int, drop_last: bool, before: int, after: int
) -> None:
    """One run at one world size to the middle, then on at another: each sample once an epoch, equal names."""
    if drop_last and batch > size:
        return
    options: dict[str, Any] = {"global_batch": batch, "drop_last": drop_last}
    alone = take(attached(Numbers(size), **options), 8)
    first = [take(attached(Numbers(size), rank, before, **options), 4) for rank in range(before)]
    second = [take(attached(Numbers(size), rank, after, done=4, **options), 4) for rank in range(after)]
    for ranks, expected in ((first, alone[:4]), (second, alone[4:])):
        for number, whole in enumerate(expected):
            assert {str(shares[number].batch_id) for shares in ranks} == {str(whole.batch_id)}
            assert [i for shares in ranks for i in samples(shares[number])] == samples(whole)
    per_epoch = len(attached(Numbers(size), **options))
    epoch = [i for share in alone[:per_epoch] for i in samples(share)]
    assert len(set(epoch)) == len(epoch)
    if not drop_last and per_epoch <= 8:
        assert sorted(epoch) == list(range(size))


def test_batch_ids_name_epoch_and_ordinal() -> None:
    names = [str(share.batch_id) for share in take(attached(Numbers(8), global_batch=4), 4)]
    assert [name[:11] for name in names] == ["e0-s000001-", "e0-s000002-", "e1-s000003-", "e1-s000004-"]
    loader = attached(Numbers(8), global_batch=4)
    assert [str(loader.batch_id(n)) for n in (1, 2, 3, 4)] == names


def test_the_name_changes_with_seed_and_data() -> None:
    names = {str(attached(Numbers(size), global_batch=4, seed=seed).batch_id(1)) for size in (8, 9) for seed in (1, 2)}
    assert len(names) == 4


def test_a_seed_of_its_own_beats_the_jobs() -> None:
    assert attached(Numbers(8), global_batch=4).seed == 3
    assert attached(Numbers(8), global_batch=4, seed=9).seed == 9


def test_a_seek_reads_nothing() -> None:
    data = Numbers(1000)
    loader = attached(data, done=157, global_batch=4)
    (share,) = take(loader, 1)
    assert share.batch_id.ordinal == 158
    assert sorted(data.read) == sorted(loader.indices(158))


def test_seeking_after_reading_began_is_refused() -> None:
    loader = attached(Numbers(8), global_batch=4)
    shares = iter(loader)
    next(shares)
    with pytest.raises(UsageError, match="being read"):
        loader.seek(3)


def test_a_quarantined_batch_leaves_a_gap_in_numbers() -> None:
    names = [str(share.batch_id) for share in take(attached(Numbers(40), global_batch=4), 5)]
    loader = attached(Numbers(40), skip=(names[1], names[2]), global_batch=4)
    shares = take(loader, 3)
    assert [str(share.batch_id) for share in shares] == [names[0], names[3], names[4]]
    assert [str(name) for name in shares[1].skipped] == names[1:3]
    assert shares[0].skipped == shares[2].skipped == []


def test_the_upcoming_name_is_known_before_the_batch_is_read() -> None:
    data = Numbers(40)
    loader = attached(data, global_batch=4)
    assert str(loader.upcoming()) == str(loader.batch_id(1))
    shares = iter(loader)
    for number in range(1, 13):
        name, read = loader.upcoming(), len(data.read)
        assert next(shares).batch_id == name
        assert name.ordinal == number
        assert len(data.read) == read + 4


@pytest.mark.parametrize("workers", [0, 2])
def test_randomness_is_a_function_of_the_sample(workers: int) -> None:
    """Equal at another world size, with other workers, in another order of reading; different in another epoch."""

    def rows(rank: int, world_size: int, done: int, count: int, workers: int) -> Iterator[tuple[float, ...]]:
        loader = attached(Noisy(), rank, world_size, done, global_batch=8, num_workers=workers)
        for share in take(loader, count):
            yield from map(tuple, share.data.tolist())

    alone = list(rows(0, 1, 0, 10, 0))
    assert len({row[1:] for row in alone}) == 80
    assert set(rows(1, 2, 3, 3, workers)) <= set(alone)
    assert len(set(rows(0, 2, 1, 4, workers)) & set(alone)) == 16


def test_parts_are_collated_one_by_one_and_short_ones_padded() -> None:
    def collate(rows: list[int]) -> tuple[int, ...]:
        return tuple(rows)

    ranks = [
        take(attached(Numbers(9), r, 4, global_batch=9, micro_batch=1, shuffle=False, collate_fn=collate), 1)[0]
        for r in range(4)
    ]
    assert [share.data for share in ranks] == [
        [(0,), (1,), (2,)], [(3,), (4,), (0,)], [(5,), (6,), (0,)], [(7,), (8,), (0,)],
    ]  # fmt: skip
    assert [share.part_weights[2] > 0 for share in ranks] == [True, False, False, False]
    total = sum(
        sum(part) * weight / 4 for share in ranks for part, weight in zip(share.data, share.part_weights, strict=True)
    )
    assert total == pytest.approx(sum(range(9)) / 9)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_persistent_workers_give_full_epochs(start: str) -> None:
    loader = attached(
        Numbers(12), global_batch=4, num_workers=1, persistent_workers=True, multiprocessing_context=start,
        done=2,
    )  # fmt: skip
    shares = take(loader, 4)
    assert sorted(i for share in shares[1:] for i in samples(share)) == list(range(12))


def test_torchs_generator_is_left_alone_by_making_the_iterator() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    loader = attached(Numbers(12), global_batch=4, num_workers=1)
    take(loader, 1)
    assert torch.equal(torch.get_rng_state(), before)


class OnlyForwards(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1


class WithoutLength:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "why"), [(OnlyForwards(), "only be read from its beginning"), (WithoutLength(), "has no __len__")]
)
def test_data_whose_place_could_not_be_found_again_is_refused_at_once_with_the_way_out(dataset: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        Loader(dataset, global_batch=1)
    assert "stream(epoch, start)" in caught.value.hint


def test_a_place_far_into_much_data_is_found_without_counting_up_to_it() -> None:
    """10**9 samples, step 10**6 and beyond: neither a list of them nor a walk to the place would ever end in time."""
    loader = attached(Billion(), done=10**6 - 1, global_batch=64)
    (share,) = take(loader, 1)
    assert share.batch_id.ordinal == 10**6
    assert loader.plan(10**14) is not None
    known = Batches(loader.facts())
    assert known.indices(10**6) == loader.indices(10**6)
    assert known.name(10**6) == share.batch_id


def test_whatever_changes_the_order_changes_its_words() -> None:
    options: list[dict[str, Any]] = [
        {},
        {"shuffle": False},
        {"drop_last": False},
        {"seed": 5},
        {"seed": 6},
        {"sampler": range(8)},
    ]
    assert len({attached(Numbers(8), global_batch=2, **more).order for more in options}) == len(options)
    assert attached(Numbers(8), global_batch=2).order == attached(Numbers(9), 1, 2, global_batch=3).order


class Billion(Dataset[int]):
    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(("drop_last", "batches"), [(True, 4), (False, 6)])
def test_the_data_is_over_after_so_many_epochs_on_every_rank_alike(drop_last: bool, batches: int) -> None:
    for rank in range(2):
        loader = attached(Numbers(10), rank, 2, global_batch=4, drop_last=drop_last, epochs=2)
        assert [share.batch_id.ordinal for share in take(loader, 99)] == list(range(1, batches + 1))
        assert loader.upcoming() is None


@pytest.mark.parametrize("option", ["batch_size", "batch_sampler"])
def test_options_that_choose_samples_are_refused(option: str) -> None:
    options: dict[str, Any] = {option: None}
    with pytest.raises(UsageError, match=option):
        Loader(Numbers(3), global_batch=1, **options)


def test_a_loader_without_a_rank_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="belongs to no rank"):
        next(iter(Loader(Numbers(3), global_batch=1)))


def test_a_dataset_may_name_itself() -> None:
    class Named(Numbers):
        def fingerprint(self) -> str:
            return "wiki-2024"

    assert Loader(Named(3), global_batch=1).fingerprint() == "wiki-2024"
    assert Loader(Numbers(3), global_batch=1).fingerprint().endswith("Numbers:3")
