"""Streams and shards: dealt out by position, each sample once an epoch at any world size, sought and not replayed."""

import random
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.test_loader import attached, samples, take
from torch.utils.data import Dataset

from zrun.core.batches import Batches, DataFacts
from zrun.core.errors import UsageError
from zrun.data.loader import Loader, Share


class Stream:
    """Epoch e has lengths[e % …] samples; sample = 1000 * epoch + position. `bad` raises when it is read."""

    def __init__(self, *lengths: int, bad: int = -1) -> None:
        self.lengths = lengths
        self.bad = bad
        self.opened: list[tuple[int, int]] = []

    def stream(self, epoch: int, start: int) -> Iterator[int]:
        self.opened.append((epoch, start))
        for position in range(start, self.lengths[epoch % len(self.lengths)]):
            if 1000 * epoch + position == self.bad:
                raise ValueError(f"sample {position} cannot be read")
            yield 1000 * epoch + position


class Shards(Dataset[int]):
    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths
        self.reads: list[tuple[int, int, int]] = []

    def shards(self) -> tuple[int, ...]:
        return self.lengths

    def read(self, shard: int, start: int, count: int) -> Iterator[int]:
        self.reads.append((shard, start, count))
        first = sum(self.lengths[:shard])
        return iter(range(first + start, first + self.lengths[shard]))


def resumed(dataset: Any, cursor: dict[str, Any], rank: int, world_size: int, **options: Any) -> Loader:
    loader = Loader(dataset, **options)
    loader.attach(rank, world_size, 3)
    loader.seek(cursor["ordinal"], cursor["data"]["skip"], cursor["data"]["ended"])
    return loader


@given(
    st.lists(st.integers(4, 30), min_size=1, max_size=3), st.integers(1, 4), st.booleans(), st.integers(1, 4),
    st.integers(1, 4), st.integers(1, 9), st.sampled_from([None, 1, 2]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_a_stream_gives_the_same_batches_at_any_world_size_wherever_it_is_cut(
    lengths: list[int], batch: int, drop_last: bool, before: int, after: int, cut_at: int, micro: int | None
) -> None:
    options: dict[str, Any] = {"global_batch": batch, "drop_last": drop_last, "micro_batch": micro, "epochs": 3}
    alone = take(attached(Stream(*lengths), **options), 999)
    epochs = [[s for share in alone if share.batch_id.epoch == e for s in samples(share)] for e in range(3)]
    for epoch, found in enumerate(epochs):
        length = lengths[epoch % len(lengths)]
        assert found == [1000 * epoch + n for n in range(length - length % batch if drop_last else length)]
    loaders = [attached(Stream(*lengths), rank, before, **options) for rank in range(before)]
    first = [take(loader, cut_at) for loader in loaders]
    cursor = loaders[0].cursor()
    second = [take(resumed(Stream(*lengths), cursor, rank, after, **options), 999) for rank in range(after)]
    for ranks, expected in ((first, alone[:cut_at]), (second, alone[cut_at:])):
        assert {len(shares) for shares in ranks} == {len(expected)}, "all ranks end at the same step"
        for number, whole in enumerate(expected):
            assert {shares[number].batch_id for shares in ranks} == {whole.batch_id}
            assert [s for shares in ranks for s in samples(shares[number])] == samples(whole)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing_but_who_reads(workers: int) -> None:
    def shares(**options: Any) -> list[Share]:
        return take(attached(Stream(11, 8), 1, 2, global_batch=4, epochs=2, drop_last=False, **options), 99)

    alone, by_workers = shares(), shares(num_workers=workers)
    assert [share.batch_id for share in by_workers] == [share.batch_id for share in alone]
    assert [samples(share) for share in by_workers] == [samples(share) for share in alone]


def test_a_resume_opens_the_stream_at_its_place() -> None:
    loader = attached(Stream(10**9), global_batch=4)
    take(loader, 3)
    data = Stream(10**9)
    assert samples(take(resumed(data, loader.cursor(), 0, 1, global_batch=4), 1)[0]) == [12, 13, 14, 15]
    assert data.opened == [(0, 12)]


def test_the_next_batch_has_its_name_before_it_is_read() -> None:
    loader = attached(Stream(8), global_batch=4)
    shares = iter(loader)
    for _ in range(5):
        assert loader.upcoming() == next(shares).batch_id


def test_a_bad_sample_is_the_misfortune_of_its_own_batch_and_is_not_read_once_that_is_skipped() -> None:
    options: dict[str, Any] = {"global_batch": 4, "epochs": 2}
    whole = take(attached(Stream(16), **options), 99)
    loader = attached(Stream(16, bad=8), **options)
    shares = iter(loader)
    assert [samples(next(shares)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    bad = loader.upcoming()
    with pytest.raises(ValueError, match="sample 8 cannot be read"):
        next(shares)
    assert bad == whole[2].batch_id
    on = resumed(Stream(16, bad=8), loader.cursor() | {"data": {"skip": [str(bad)], "ended": []}}, 0, 1, **options)
    rest = take(on, 99)
    assert [share.batch_id for share in rest] == [share.batch_id for share in whole[3:]]
    assert [samples(share) for share in rest] == [samples(share) for share in whole[3:]]
    assert rest[0].skipped == [bad]


def test_skipping_the_last_batch_of_an_epoch_ends_it() -> None:
    whole = take(attached(Stream(8), global_batch=4), 4)
    loader = attached(Stream(8), skip=(str(whole[1].batch_id),), global_batch=4)
    shares = take(loader, 3)
    assert [share.batch_id for share in shares] == [whole[0].batch_id, whole[2].batch_id, whole[3].batch_id]
    assert [(s.epoch, s.start) for s in map(Batches(loader.facts()).span, (1, 2, 3, 4))] == [
        (0, 0),
        (0, 4),
        (1, 0),
        (1, 4),
    ]


def test_randomness_in_a_stream_is_a_function_of_the_position() -> None:
    class Draws:
        def stream(self, epoch: int, start: int) -> Iterator[Any]:
            for position in range(start, 24):
                yield torch.tensor([position, random.random(), torch.rand(()).item()], dtype=torch.float64)

    def rows(rank: int, world_size: int, done: int, **options: Any) -> list[tuple[float, ...]]:
        loader = attached(Draws(), rank, world_size, done, global_batch=4, epochs=1, **options)
        return [tuple(row) for share in take(loader, 99) for row in share.data.tolist()]

    alone = rows(0, 1, 0)
    assert len({row[1] for row in alone}) == 24
    assert rows(0, 1, 3) == alone[12:]
    assert set(rows(1, 2, 2, num_workers=1)) < set(alone)


def test_an_empty_epoch_ends_the_data() -> None:
    class Once:
        def stream(self, epoch: int, start: int) -> Iterator[int]:
            return iter(range(start, 6 if epoch == 0 else 0))

    loader = attached(Once(), global_batch=4, drop_last=False)
    assert [share.samples for share in take(loader, 99)] == [4, 2]
    assert loader.cursor()["epoch"] == 1


def test_a_stream_without_end_is_read_as_far_as_it_is_asked_for() -> None:
    class Endless:
        def stream(self, epoch: int, start: int) -> Iterator[int]:
            return count(start)

    assert samples(take(attached(Endless(), global_batch=4, done=100), 1)[0]) == [400, 401, 402, 403]


def test_what_makes_no_batch_at_all_is_refused() -> None:
    for data, why in ((Stream(3), "3 samples, fewer than global_batch 4"), (Stream(0), "the stream is empty")):
        with pytest.raises(UsageError, match=why):
            take(attached(data, global_batch=4), 1)
    with pytest.raises(UsageError, match="comes in its own order"):
        Loader(Stream(8), global_batch=4, shuffle=True)
    with pytest.raises(TypeError, match="turns out"):
        len(Loader(Stream(8), global_batch=4))


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(lambda lengths: sum(lengths) >= 4), st.integers(1, 4),
    st.booleans(), st.integers(1, 4), st.integers(1, 4),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_shards_are_dealt_out_by_position_too(
    lengths: list[int], batch: int, shuffle: bool, before: int, after: int
) -> None:
    options: dict[str, Any] = {"global_batch": batch, "shuffle": shuffle, "drop_last": False}
    alone = attached(Shards(*lengths), **options)
    whole = take(alone, len(alone))
    assert sorted(s for share in whole for s in samples(share)) == list(range(sum(lengths)))
    known = Batches(DataFacts.from_dict(alone.facts().to_dict()))
    for ordinal, share in enumerate(whole, start=1):
        assert known.indices(ordinal) == samples(share)
        assert known.name(ordinal) == share.batch_id
    first = [take(attached(Shards(*lengths), rank, before, **options), 1) for rank in range(before)]
    second = [take(attached(Shards(*lengths), rank, after, 1, **options), 1) for rank in range(after)]
    assert [s for shares in first for s in samples(shares[0])] == samples(whole[0])
    if len(whole) > 1:
        assert [s for shares in second for s in samples(shares[0])] == samples(whole[1])


def test_neighbours_in_a_shard_are_read_at_once() -> None:
    data = Shards(6, 6)
    (share,) = islice(take(attached(data, 0, 2, done=1, global_batch=8, shuffle=False, drop_last=False), 1), 1)
    assert samples(share) == [8, 9]
    assert set(data.reads) == {(1, 2, 2)}
    (share,) = take(attached(data, 0, 1, global_batch=8, shuffle=False), 1)
    assert set(data.reads) == {(1, 2, 2), (0, 0, 6), (1, 0, 2)}


def test_a_shard_with_less_than_it_said_is_told() -> None:
    class Short(Shards):
        def read(self, shard: int, start: int, count: int) -> Iterator[int]:
            return islice(super().read(shard, start, count), count - 1)

    with pytest.raises(UsageError, match=r"read\(0, 0, 4\) gave 3 samples"):
        take(attached(Short(4), global_batch=4, shuffle=False), 1)
