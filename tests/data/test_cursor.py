"""Cutting a dataset into global batches, and a batch into shares and parts, loses and doubles nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.core.cursor import Cursor, Span, StreamCursor
from zrun.core.errors import UsageError
from zrun.data.shares import cut, share_of


@given(st.integers(1, 500), st.integers(1, 64), st.integers(0, 3))
def test_without_drop_last_an_epoch_covers_each_place_once(samples: int, batch: int, epoch: int) -> None:
    cursor = Cursor(samples, batch, drop_last=False)
    spans = [cursor.span(epoch * cursor.batches + number + 1) for number in range(cursor.batches)]
    assert {span.epoch for span in spans} == {epoch}
    assert [place for span in spans for place in range(span.start, span.start + span.size)] == list(range(samples))


@given(st.integers(1, 500), st.integers(1, 64))
def test_with_drop_last_all_batches_are_whole(samples: int, batch: int) -> None:
    if batch > samples:
        with pytest.raises(UsageError, match="larger than the dataset"):
            Cursor(samples, batch, drop_last=True)
        return
    cursor = Cursor(samples, batch, drop_last=True)
    assert {cursor.span(number + 1).size for number in range(3 * cursor.batches)} == {batch}


@given(st.integers(1, 200), st.integers(1, 17))
def test_shares_are_contiguous_and_differ_by_one_at_most(size: int, world_size: int) -> None:
    shares = [share_of(size, rank, world_size) for rank in range(world_size)]
    assert [place for a, b in shares for place in range(a, b)] == list(range(size))
    lengths = [b - a for a, b in shares]
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(1, 200), st.integers(1, 17), st.one_of(st.none(), st.integers(1, 20)))
def test_parts_are_as_many_on_every_rank_and_their_weights_make_the_mean(
    size: int, world_size: int, micro: int | None
) -> None:
    cuts = [cut(size, rank, world_size, micro) for rank in range(world_size)]
    assert len({len(c.parts) for c in cuts}) == 1
    assert sorted(place for c in cuts for a, b in c.parts for place in range(a, b)) == list(range(size))
    if micro:
        assert all(b - a <= micro for c in cuts for a, b in c.parts)
    # each sample's part in the averaged gradient: weight / part size / world size
    for c in cuts:
        for (a, b), weight in zip(c.parts, c.weights, strict=True):
            assert (weight == 0) == (a == b)
            if b > a:
                assert weight / (b - a) / world_size == pytest.approx(1 / size)


def test_an_even_cut_has_weight_one_in_all() -> None:
    assert sum(cut(64, 1, 2, 8).weights) == pytest.approx(1.0)


@pytest.mark.parametrize(("samples", "batch"), [(0, 4), (4, 0)])
def test_nothing_to_cut_is_refused(samples: int, batch: int) -> None:
    with pytest.raises(UsageError):
        Cursor(samples, batch, drop_last=False)


def test_a_stream_is_as_long_as_its_epochs_turned_out_to_be() -> None:
    cursor = StreamCursor(4, [[3, 10], [2, 8]])
    assert [cursor.span(ordinal) for ordinal in range(1, 8)] == [
        Span(0, 0, 4), Span(0, 4, 4), Span(0, 8, 2), Span(1, 0, 4), Span(1, 4, 4), Span(2, 0, 4), Span(2, 4, 4),
    ]  # fmt: skip
