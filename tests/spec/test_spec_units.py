"""Durations, sizes, cadences, ranges: what is read, what is refused with which way out, and that writing is exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.spec import units
from zrun.spec.problem import Wrong


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0), ("15m", 900.0), ("2h", 7200.0), ("7d", 604800.0), ("1w", 604800.0), ("250ms", 0.25), ("1h30m", 5400.0),
        ("0.5s", 0.5), ("1-00:00:00", 86400.0), ("01:30:00", 5400.0), ("2-12", 216000.0), ("1-02:30", 95400.0),
    ],
)  # fmt: skip
def test_durations_are_read(text: str, seconds: float) -> None:
    assert units.duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("15", "15s for 15 seconds, 15m for 15 minutes, 15h for 15 hours"),
        ("5 minutes", "5m"),
        ("5min", "5m"),
        ("3 Hours", "3h"),
        ("10S", "10s"),
        ("90:00", "write for example 90s or 1h30m"),
        ("5 parsecs", "ms, s, m, h, d or w"),
        ("soon", ""),
        ("-5s", ""),
        ("99999d", ""),
        ("1e3s", ""),
    ],
)
def test_a_wrong_duration_says_the_way_out(text: str, way_out: str) -> None:
    with pytest.raises(Wrong) as caught:
        units.duration_s(text)
    assert caught.value.suggestion == way_out


@given(st.integers(0, int(units.LONGEST_S * 1000)))
def test_a_shown_duration_reads_back_exactly(milliseconds: int) -> None:
    value = milliseconds / 1000
    assert units.duration_s(units.show_duration(value)) == value


def test_sizes_are_read() -> None:
    assert units.size_bytes("8GiB") == 8 << 30
    assert units.size_bytes("2TB") == 2 * 10**12
    assert units.size_bytes("1.5KiB") == 1536
    assert units.size_bytes("7B") == 7


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("512", "512GiB, 512MiB or 512B"),
        ("512G", "512GiB"),
        ("512Gi", "512GiB"),
        ("512gib", "512GiB"),
        ("64 GiB", "64GiB"),
        ("1XB", "KiB, MiB, GiB, TiB (or MB, GB, TB)"),
        ("much", ""),
    ],
)
def test_a_wrong_size_says_the_way_out(text: str, way_out: str) -> None:
    with pytest.raises(Wrong) as caught:
        units.size_bytes(text)
    assert caught.value.suggestion == way_out


@given(st.integers(0, units.LARGEST))
def test_a_shown_size_reads_back_exactly(value: int) -> None:
    assert units.size_bytes(units.show_size(value)) == value


def test_sizes_are_shown_in_the_shortest_form() -> None:
    assert units.show_size(8 << 30) == "8GiB"
    assert units.show_size(2 * 10**12) == "2TB"
    assert units.show_size(0) == "0B"


def test_a_cadence_is_steps_or_time() -> None:
    assert units.cadence("500 steps") == (500, None)
    assert units.cadence("1 step") == (1, None)
    assert units.cadence("10m") == (None, 600.0)
    with pytest.raises(Wrong) as caught:
        units.cadence("500")
    assert caught.value.suggestion == "500 steps or 500s"
    for text in ("0 steps", "0s", "steps"):
        with pytest.raises(Wrong):
            units.cadence(text)


def test_nodes_are_a_number_or_a_range() -> None:
    assert units.nodes("4") == (4, 4)
    assert units.nodes("3:4") == (3, 4)
    assert units.show_nodes((3, 4)) == "3:4"
    with pytest.raises(Wrong) as caught:
        units.nodes("4:2")
    assert caught.value.suggestion == "2:4"
    for text in ("0", "a:b", "1:", "-1", "1.5"):
        with pytest.raises(Wrong):
            units.nodes(text)
