"""The `plan` block: what its values may look like, and that they come back as they were written."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.core.errors import SpecError
from zrun.spec.job import JobSpec, Plan
from zrun.spec.load import load_job
from zrun.spec.plan import PLAN, count, rate, read_options
from zrun.spec.problem import Problems
from zrun.spec.write import to_yaml

GOOD = "name: a\nrun: t.py\n"


@pytest.mark.parametrize(
    ("text", "value"), [("27B", 27 * 10**9), ("1.7B", 1_700_000_000), ("350M", 350 * 10**6), ("124439808", 124_439_808)]
)
def test_counts_are_read_as_people_write_them(text: str, value: int) -> None:
    assert count(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("450GB/s", 450e9),
        ("400Gb/s", 50e9),
        ("400Gbit/s", 50e9),
        ("400Gbps", 50e9),
        ("1GiB/s", 2.0**30),
        ("2.5GB/s", 2.5e9),
    ],
)
def test_rates_are_bytes_with_a_capital_and_bits_with_a_small_b(text: str, value: float) -> None:
    assert rate(text) == value


def test_a_plan_block_comes_back_as_it_was_written(tmp_path: Path) -> None:
    block = (
        "params: 27B, frozen: 1.5B, wrap: '16x(3x420M,430M)', memory: 80GB, headroom: 5%, recipe: bf16, micro_batch: 2, "
        "intra: 450GB/s, inter: 400Gb/s, latency_inter: 10ms, flops: 989T, mfu: 0.4, failures: llama-3, stall: 2s, "
        "dropout: true, deltanet_layers: 0, checkpointing: full"
    )
    file = tmp_path / "job.yaml"
    file.write_text(f"{GOOD}plan: {{{block}}}\n")
    spec = load_job(file)
    assert (spec.plan.params, spec.plan.inter, spec.plan.failures, spec.plan.headroom) == (
        27 * 10**9,
        50e9,
        3.789,
        0.05,
    )
    file.write_text(to_yaml(spec))
    assert load_job(file).plan == spec.plan


@given(st.integers(1, 2**62), st.integers(1, 2**50), st.floats(0, 1), st.floats(0.001, 1000))
def test_numbers_survive_being_written(params: int, bps: int, part: float, failures: float) -> None:
    part, failures = round(part, 6), round(failures, 6)
    made = Plan(params=params, intra=float(bps), headroom=part, failures=failures)
    shown = {name: str(value) for name, value in PLAN.show(made).items()}
    problems = Problems()
    assert Plan(**read_options(shown, problems)) == made
    assert problems.count == 0


def test_nothing_told_is_an_empty_block_again() -> None:
    assert PLAN.show(Plan()) == {}
    assert "plan: {}" in to_yaml(JobSpec(name="a", run=["t.py"]))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("params: 27", None), ("params: 27X", "27B"), ("memory: 80", "80GiB"), ("intra: 450GB", "450GB/s"),
        ("intra: 450", "450GB/s"), ("flops: '989'", "989T"), ("headroom: 120%", "40%"), ("mfu: 0%", "more than 0"),
        ("failures: often", "rsc-1"), ("checkpointing: some", "none | full"), ("parms: 1", "params"), ("world: 0", "1 or more"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_shown_with_what_would_be_right(tmp_path: Path, line: str, says: str | None) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"{GOOD}plan: {{{line}}}\n")
    if says is None:
        assert load_job(file).plan.params == 27
        return
    with pytest.raises(SpecError) as caught:
        load_job(file)
    assert "job.yaml:3:" in caught.value.problems[0]
    assert says in caught.value.problems[0]
