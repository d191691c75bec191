"""The order of samples is a bijection, whatever the size, seed and epoch, and the same one by one and many at once."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zrun.core.order import AsTheyLie, Order, ShardByShard
from zrun.data.order import ShuffledInBlocks, many

SIZES = st.integers(1, 3000)
SEEDS = st.integers(-(2**63), 2**64)
EPOCHS = st.integers(0, 10_000)


@settings(deadline=None)
@given(SIZES, SEEDS, EPOCHS)
def test_every_sample_comes_exactly_once(size: int, seed: int, epoch: int) -> None:
    assert sorted(Order(size, seed, epoch).samples(0, size)) == list(range(size))


@given(st.integers(1, 2**62), SEEDS, EPOCHS, st.data())
@settings(max_examples=60)
def test_one_by_one_and_many_at_once_agree(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size - 1))
    count = data.draw(st.integers(0, min(size - start, 20)))
    order = Order(size, seed, epoch)
    at_once = many(order, start, count)
    assert at_once == order.samples(start, count) == [order.sample(place) for place in range(start, start + count)]
    assert all(0 <= sample < size for sample in at_once)


@given(st.integers(1, 300), SEEDS)
def test_blocks_ahead_change_nothing(size: int, seed: int) -> None:
    ahead = ShuffledInBlocks(size, seed)
    for epoch, start in ((0, 0), (0, size // 2), (3, 0), (0, size // 3)):
        assert ahead.samples(epoch, start, size - start) == Order(size, seed, epoch).samples(start, size - start)


def test_without_shuffle_samples_come_as_they_lie() -> None:
    assert AsTheyLie(9).samples(3, 2, 4) == [2, 3, 4, 5]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any), SEEDS, EPOCHS, st.booleans(), st.data())
def test_shards_are_read_whole_one_after_the_other(
    lengths: list[int], seed: int, epoch: int, shuffle: bool, data: st.DataObject
) -> None:
    order = ShardByShard(lengths, seed, shuffle=shuffle)
    whole = order.samples(epoch, 0, order.size)
    assert sorted(whole) == list(range(sum(lengths)))
    start = data.draw(st.integers(0, order.size - 1))
    assert ShardByShard(lengths, seed, shuffle=shuffle).samples(epoch, start, order.size - start) == whole[start:]
    assert sum(b != a + 1 for a, b in pairwise(whole)) < sum(1 for length in lengths if length)
    if not shuffle:
        assert whole == list(range(order.size))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(Order(1000, seed, epoch).samples(0, 1000)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_each_sample_is_about_equally_likely_at_each_place() -> None:
    tries = 6000
    first = Counter(Order(12, seed, 0).sample(0) for seed in range(tries))
    middle = Counter(Order(12, 7, epoch).sample(5) for epoch in range(tries))
    for seen in (first, middle):
        # chi-square with 11 degrees of freedom: 31.3 is its 0.1 % point, and the seeds are fixed
        assert sum((seen[s] - tries / 12) ** 2 / (tries / 12) for s in range(12)) < 31.3


def test_neighbours_are_spread() -> None:
    samples = Order(100_000, 1, 0).samples(0, 1000)
    gaps = [abs(a - b) for a, b in pairwise(samples)]
    assert 25_000 < sum(gaps) / len(gaps) < 42_000  # a third of the size for independent places


@pytest.mark.parametrize("size", [0, -1, 2**62 + 1])
def test_sizes_out_of_range_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="samples"):
        Order(size, 0, 0)


def test_places_outside_the_epoch_are_refused() -> None:
    order = Order(10, 0, 0)
    for wrong in (
        lambda: order.sample(10),
        lambda: order.sample(-1),
        lambda: order.samples(5, 6),
        lambda: many(order, 5, 6),
    ):
        with pytest.raises(IndexError):
            wrong()
