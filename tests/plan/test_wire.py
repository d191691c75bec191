"""Bytes between ranks: ZeRO's volumes, the split over links, and the time the slow ones take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zrun.plan.compute import bound, floor_s
from zrun.plan.model import Model, built, wrap
from zrun.plan.recipe import RECIPES
from zrun.plan.strategies import STRATEGIES, Choice, Layout, choices, layout
from zrun.plan.wire import Collective, Links, Ring, collectives, cost, group_ring, replica_ring, summed

GB = 10**9
MIXED = RECIPES["mixed"]
NONE = Links()
WORLDS = st.sampled_from([(2, 2), (8, 8), (16, 8), (24, 8), (64, 8), (64, 4), (1024, 8)])
ROUTINGS = st.sampled_from(["flat", "hierarchical"])


def sent(name: str, model: Model, place: Layout, *, accumulate: int = 1, sync: str = "every", group: int = 0,
         secondary: int = 0) -> list[Collective]:  # fmt: skip
    strategy = STRATEGIES[name]
    choice = Choice(strategy, group or (place.world if strategy.optimizer else 1), secondary)
    return collectives(choice, model, MIXED, place, accumulate, sync)


@given(WORLDS, st.integers(1, 10**12), ROUTINGS)
@pytest.mark.parametrize(
    ("name", "volume"), [("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3), ("fsdp-noreshard", 2)]
)
def test_a_step_moves_as_many_times_the_parameters_as_zero_says(
    name: str, volume: int, world: tuple[int, int], params: int, routing: str
) -> None:
    place = layout(*world)
    found = summed(sent(name, built(params, 0, [], "x"), place), NONE, routing)
    ring = (place.world - 1) / place.world  # a ring spares each rank its own share; ZeRO counts without that
    assert found.intra + found.inter == pytest.approx(volume * params * 2 * ring)


@pytest.mark.parametrize(
    ("name", "volume"), [("ddp", 2), ("zero1", 2), ("zero2", 5), ("zero3", 12), ("fsdp-noreshard", 8)]
)
def test_four_backwards_a_step_cost_again_only_what_is_sharded(name: str, volume: int) -> None:
    place = layout(64, 8)
    found = summed(sent(name, built(GB, 0, [], "x"), place, accumulate=4), NONE, "flat")
    assert found.intra + found.inter == pytest.approx(volume * GB * 2 * 63 / 64)


def test_gradients_held_whole_cross_once_a_step() -> None:
    found = summed(sent("zero3", built(GB, 0, [], "x"), layout(64, 8), accumulate=4, sync="last"), NONE, "flat")
    assert found.intra + found.inter == pytest.approx((2 * 4 + 1) * GB * 2 * 63 / 64)


@given(WORLDS, st.integers(1, 10**12))
def test_both_routings_move_the_same_bytes_and_a_single_node_none_outside(world: tuple[int, int], params: int) -> None:
    place, model = layout(*world), built(params, 0, [], "x")
    for one in choices(place):
        found = collectives(one, model, MIXED, place, 1, "every")
        flat, tiers = summed(found, NONE, "flat"), summed(found, NONE, "hierarchical")
        assert flat.intra + flat.inter == pytest.approx(tiers.intra + tiers.inter)
        assert tiers.inter <= flat.inter * (1 + 1e-9)
        assert place.nodes > 1 or flat.inter == tiers.inter == 0


def test_one_of_eight_shares_leaves_the_node() -> None:
    one = Collective("all_gather", "", 64.0, 1, group_ring(64, layout(64, 8)))
    assert cost(one, NONE, "flat").inter == 63 / 8
    assert cost(one, NONE, "flat").intra == 63 * 7 / 8
    assert cost(one, NONE, "hierarchical").inter == 7
    assert cost(one, NONE, "hierarchical").intra == 56


def test_hsdp_in_a_node_keeps_parameters_inside_and_sums_shards_between_nodes() -> None:
    place = layout(64, 8)
    inside, _, _, between = sent("hsdp", built(GB, 0, [], "x"), place, group=8)
    assert inside.ring == Ring(8, 1, 1)
    assert between.ring == replica_ring(8, place) == Ring(1, 8, 8)
    assert (between.op, between.bytes) == ("all_reduce", 2 * GB / 8)
    assert cost(inside, NONE, "flat").inter == 0
    assert cost(between, NONE, "flat").inter == 2 * 7 / 8 * 2 * GB / 8


def test_groups_of_two_nodes_have_eight_replica_rings_side_by_side() -> None:
    assert replica_ring(16, layout(64, 8)) == Ring(1, 4, 8)
    assert replica_ring(4, layout(64, 8)) == Ring(2, 8, 4)
    assert group_ring(4, layout(64, 8)) == Ring(4, 1, 2)
    assert group_ring(16, layout(64, 8)) == Ring(8, 2, 1)


def test_mics_sums_over_replicas_once_a_step_and_hsdp_after_each_backward() -> None:
    place, model = layout(64, 8), built(GB, 0, [], "x")
    hsdp, mics = (sent(name, model, place, accumulate=4, group=8)[-1] for name in ("hsdp", "mics"))
    assert (hsdp.bytes, mics.bytes) == (4 * mics.bytes, 2 * GB / 8)


def test_hpz_gathers_for_the_backward_inside_the_node_only() -> None:
    forward, backward, scatter = sent("hpz", built(GB, 0, [], "x"), layout(64, 8), secondary=8)
    assert cost(forward, NONE, "flat").inter > 0
    assert cost(backward, NONE, "flat").inter == 0
    assert scatter.ring.size == 64


def test_wrap_units_set_the_number_of_collectives() -> None:
    read = wrap("16x(3x420M,427.5M)")
    counts = []
    for units in (read.units, read.groups):
        model = built(27 * GB, 0, units, "x")
        counts.append(sum(one.calls for one in sent("zero3", model, layout(64, 8))))
    assert counts == [65 + 64 + 65, 17 + 16 + 17]  # the root is gathered once and scattered once


def test_frozen_parameters_are_gathered_and_have_no_gradient_on_the_wire() -> None:
    found = sent("zero3", Model(GB, 0), layout(8, 8))
    assert {one.op for one in found} == {"all_gather"}
    assert sent("ddp", Model(GB, 0), layout(8, 8)) == []


def test_one_rank_sends_nothing() -> None:
    assert sent("zero3", built(GB, 0, [], "x"), layout(1, 1)) == []


def test_a_flat_ring_is_as_slow_as_its_slowest_link() -> None:
    one = Collective("all_gather", "", 64e9, 1, group_ring(64, layout(64, 8)))
    slow = cost(one, Links(450e9, 50e9), "flat")
    assert slow.seconds == slow.inter_s == pytest.approx(63 / 50)
    fast = cost(one, Links(450e9, 5000e9), "flat")
    assert fast.seconds == pytest.approx(63 / 450)
    assert fast.inter_s == 0.0


def test_hierarchical_stages_follow_each_other() -> None:
    one = Collective("all_gather", "", 64e9, 1, group_ring(64, layout(64, 8)))
    found = cost(one, Links(450e9, 50e9), "hierarchical")
    assert found.seconds == pytest.approx(56 / 450 + 8 * 7 / 50)


def test_groups_side_by_side_share_the_nodes_cards() -> None:
    one = Collective("all_reduce", "", 8e9, 1, replica_ring(8, layout(64, 8)))
    assert cost(one, Links(450e9, 50e9), "flat").seconds == pytest.approx(8 * 2 * 7 / 8 * 8 / 50)


def test_latency_counts_each_hop_of_each_call_and_fewer_hops_between_nodes_when_hierarchical() -> None:
    one = Collective("all_gather", "", 1.0, 10, group_ring(64, layout(64, 8)))
    links = Links(1e15, 1e15, 1e-6, 1e-5)
    assert cost(one, links, "flat").seconds == pytest.approx(10 * 63 * 1e-5, rel=1e-3)
    assert cost(one, links, "hierarchical").seconds == pytest.approx(10 * (7 * 1e-6 + 7 * 1e-5), rel=1e-3)


def test_without_bandwidths_there_is_no_time() -> None:
    one = Collective("all_gather", "", 64e9, 1, group_ring(64, layout(64, 8)))
    assert cost(one, Links(intra=1e9), "flat").seconds is None
    assert cost(one, Links(inter=1e9), "hierarchical").seconds is None


def test_a_step_waits_for_the_longer_of_compute_and_wire() -> None:
    assert (floor_s(2.0, 1.0), bound(2.0, 1.0, 1.0)) == (2.0, "compute")
    assert (floor_s(1.0, 2.0), bound(1.0, 2.0, 1.5)) == (2.0, "inter")
    assert bound(1.0, 2.0, 0.1) == "intra"
    assert (floor_s(None, None), bound(1.0, None, 0.0)) == (None, None)
    assert (floor_s(None, 0.0), bound(None, 0.0, 0.0)) == (None, None)
    assert (floor_s(1.0, 0.0), bound(1.0, 0.0, 0.0)) == (1.0, "compute")
