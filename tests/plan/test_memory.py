"""Bytes on a rank: the figures that are known, and what holds for every model, world and recipe."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.core.errors import UsageError
from zrun.plan.activations import Activations
from zrun.plan.memory import Habits, largest_micro_batch, peak, persistent, verdict
from zrun.plan.model import Model, built, wrap
from zrun.plan.recipe import RECIPES, recipe
from zrun.plan.strategies import STRATEGIES, Choice, choices, layout, shard_groups

GB = 10**9
BIG = built(27 * GB, 0, [], "params")
MIXED = RECIPES["mixed"]


def whole(name: str, group: int = 64, secondary: int = 0) -> Choice:
    return Choice(STRATEGIES[name], group, secondary)


def test_27_billion_parameters_are_432_gigabytes_in_all() -> None:
    assert persistent(whole("ddp", 1), BIG, MIXED).total == 432 * GB


def test_zero1_on_64_ranks_is_54_and_54_and_5_06() -> None:
    found = persistent(whole("zero1"), BIG, MIXED)
    assert (found.parameters, found.gradients, found.optimizer) == (54 * GB, 54 * GB, 5.0625 * GB)
    assert round(found.total / GB) == 113


def test_zero2_on_64_ranks_is_54_and_0_84_and_5_06() -> None:
    found = persistent(whole("zero2"), BIG, MIXED)
    assert (found.parameters, found.gradients, found.optimizer) == (54 * GB, 0.84375 * GB, 5.0625 * GB)
    assert round(found.total / GB, 1) == 59.9


@pytest.mark.parametrize("name", ["zero3", "fsdp-noreshard"])
def test_all_sharded_over_64_ranks_is_6_75(name: str) -> None:
    assert persistent(whole(name), BIG, MIXED).total == 6.75 * GB


def test_fsdp_without_reshard_holds_the_whole_model_within_a_step_only() -> None:
    model = built(27 * GB, 0, wrap("64x400M").units, "params")
    kept, gone = (peak(whole(name), model, MIXED, Habits(), None, 1) for name in ("fsdp-noreshard", "zero3"))
    assert kept.gathered == 54 * GB
    assert gone.gathered == 2 * (2 * 400e6 + 1.4e9)  # a unit, its neighbour, the root


def test_hpz_adds_a_second_copy_spread_over_its_group() -> None:
    found = persistent(whole("hpz", 64, 8), BIG, MIXED)
    assert found.parameters == pytest.approx((54 / 64 + 54 / 8) * GB)
    assert found.optimizer == 5.0625 * GB


@pytest.mark.parametrize("name", ["hsdp", "mics"])
def test_groups_hold_what_a_smaller_world_would(name: str) -> None:
    assert persistent(whole(name, 8), BIG, MIXED) == persistent(whole("zero3", 8), BIG, MIXED)


@pytest.mark.parametrize(
    ("name", "each"), [("mixed", 16), ("bf16", 8), ("fp32", 16), ("fsdp2-mixed", 16), ("8bit", 10 + 2 * 4 / 256)]
)
def test_a_recipe_says_what_a_parameter_costs(name: str, each: float) -> None:
    assert persistent(whole("ddp", 1), BIG, RECIPES[name]).total == pytest.approx(each * 27 * GB)


def test_a_recipe_can_be_written_by_its_parts() -> None:
    own = recipe("master=none, moments=int8+int8")
    assert (own.parameters, own.master, own.optimizer_bytes) == ("bf16", "none", 2 + 8 / 256)


@pytest.mark.parametrize("text", ["foo", "parameters=none", "moments=fp12", "gather", "x=bf16"])
def test_what_is_no_recipe_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        recipe(text)


MODELS = st.builds(
    lambda units, root, frozen: built(sum(units) + root, int(frozen * (sum(units) + root)), units, "x"),
    st.lists(st.integers(1, 10**10), max_size=12), st.integers(1, 10**10), st.floats(0, 1),
)  # fmt: skip
WORLDS = st.sampled_from([(2, 2), (4, 2), (8, 8), (16, 8), (24, 8), (64, 8), (96, 4), (1024, 8)])
NAMES = st.sampled_from(sorted(RECIPES))


@given(MODELS, WORLDS, NAMES)
def test_sharding_more_never_needs_more_and_all_ranks_together_hold_the_model(
    model: Model, world: tuple[int, int], name: str
) -> None:
    place, made = layout(*world), RECIPES[name]
    by = {one.label: persistent(one, model, made) for one in choices(place)}
    assert by["ddp"].total >= by["zero1"].total >= by["zero2"].total >= by["zero3"].total
    once = persistent(whole("ddp", 1), model, made).total
    assert by["zero3"].total * place.world == pytest.approx(once)
    for one in choices(place):
        held = persistent(one, model, made)
        assert held.total * place.world >= once * (1 - 1e-12)
        high = peak(one, model, made, Habits(), None, 1)
        assert high.total >= held.total * (1 - 1e-12)
        assert math.isfinite(high.total)


@given(MODELS, NAMES)
def test_frozen_parameters_cost_their_own_bytes_only(model: Model, name: str) -> None:
    made = RECIPES[name]
    still = Model(model.params, 0, model.units)
    held = persistent(whole("ddp", 1), still, made)
    assert (held.gradients, held.optimizer) == (0, 0)
    assert held.parameters == model.params * made.parameter_bytes


@given(WORLDS)
def test_shard_groups_divide_the_world_and_never_cut_a_node_in_unequal_parts(world: tuple[int, int]) -> None:
    place = layout(*world)
    for size in shard_groups(place):
        assert 1 < size < place.world
        assert place.world % size == 0
        assert place.per_node % size == 0 or size % place.per_node == 0


def test_sixteen_super_blocks_are_gathered_four_times_as_large_as_sixty_four_layers() -> None:
    read = wrap("16x(3x420M,427.5M)")
    layers, blocks = (built(27 * GB, 0, one, "x") for one in (read.units, read.groups))
    assert (len(layers.units), len(blocks.units)) == (64, 16)
    assert {one.params for one in blocks.units} == {1_687_500_000}
    assert layers.root.params == blocks.root.params == 0
    small, large = (peak(whole("zero3"), one, MIXED, Habits(), None, 1) for one in (layers, blocks))
    assert small.gathered == 2 * (420e6 + 427.5e6)
    assert small.unit_gradients == 2 * 427.5e6
    assert large.gathered == 2 * 2 * 1_687.5e6
    assert large.unit_gradients == 2 * 1_687.5e6
    assert large.total > small.total


@pytest.mark.parametrize(("total", "word"), [(72.0, "yes"), (72.1, "barely"), (80.0, "barely"), (80.1, "no")])
def test_the_verdict_keeps_the_headroom_free(total: float, word: str) -> None:
    assert verdict(total, 80, 0.1) == word


@given(MODELS, st.integers(1, 10**9), st.integers(1, 10**13), st.integers(1, 4))
def test_the_largest_micro_batch_fits_and_one_more_does_not(
    model: Model, sample: int, memory: int, accumulate: int
) -> None:
    habits, kept = Habits(accumulate=accumulate), Activations(sample, sample / 8)
    found = largest_micro_batch(whole("zero3"), model, MIXED, habits, kept, memory)

    def fits(count: int) -> bool:
        total = peak(whole("zero3"), model, MIXED, habits, kept, count).total
        return verdict(total, memory, habits.headroom) == "yes"

    assert found == 0 or fits(found)
    assert not fits(found + 1)


def test_gradients_that_wait_whole_for_the_last_backward_are_counted() -> None:
    model = built(27 * GB, 0, wrap("64x400M").units, "x")
    every, last = (
        peak(whole("zero3"), model, MIXED, Habits(accumulate=4, sync=one), None, 1) for one in ("every", "last")
    )
    assert last.temporaries - every.temporaries == 54 * GB


def test_ddp_holds_gradients_twice_unless_buckets_are_views() -> None:
    copy, view = (peak(whole("ddp", 1), BIG, MIXED, Habits(ddp_buckets=one), None, 1) for one in ("copy", "view"))
    assert copy.total - view.total == 54 * GB


@pytest.mark.parametrize("text", ["", "16x", "16x(400M", "x400M", "400M)", "4x(", "400M,,1M", "3y4", "2x3x", "0x4M"])
def test_what_is_no_list_of_units_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        built(27 * GB, 0, wrap(text).units or [0], "x")


def test_units_larger_than_the_model_are_refused_with_both_numbers() -> None:
    with pytest.raises(UsageError, match=r"2,000,000,000 parameters, the model 1,000,000,000"):
        built(GB, 0, wrap("10x200M").units, "x")
