"""Who gets the seats: pure choices with reasons."""

from typing import Any

import pytest
from tests.machine.playbook import spec_of

from zrun.machine.placement import choose
from zrun.machine.state import Member
from zrun.spec.job import JobSpec, Placement
from zrun.wire.report import Doing


def node(name: str, **more: Any) -> Member:
    return Member(name, boot=f"{name}1", **({"fresh": True} | more))


def test_seats_go_by_name_when_nothing_was_before() -> None:
    assert choose([node("b"), node("a")], spec_of(nodes=2)).nodes == ("a", "b")


def test_a_node_keeps_its_rank_where_it_can() -> None:
    assert choose([node("a"), node("b"), node("c")], spec_of(nodes=2), ("c", "x", "a")).nodes == ("c", "a")


def test_no_more_seats_than_asked_for_and_as_many_as_there_are() -> None:
    spec = JobSpec(name="x", run=["t.py"], nodes_min=1, nodes_max=2)
    assert choose([node("a"), node("b"), node("c")], spec).nodes == ("a", "b")
    assert choose([node("c")], spec).nodes == ("c",)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"gone": "busy with llama-1234"}, "a is gone: busy with llama-1234"),
        ({"silent": True}, "a is silent"),
        ({"fresh": False}, "a was not heard since the coordinator began"),
        ({"leaving_in_s": 9.0}, "a is about to leave"),
        ({"doing": Doing.STOPPING}, "a is still stopping"),
        (
            {"stuck": ("process 7 cannot be killed",)},
            "a has a process that outlived its end and may hold GPUs and ports: process 7 cannot be killed",
        ),
    ],
)
def test_a_node_that_cannot_have_a_seat_is_told_with_the_reason(more: dict[str, Any], why: str) -> None:
    seating = choose([node("a", **more)], spec_of())
    assert seating.nodes == ()
    assert seating.reason == f"waiting for 1 more node: 0 of 1 ready ({why})"


def test_hosts_and_exclude_are_obeyed() -> None:
    spec = spec_of(placement=Placement(hosts=["a", "b"], exclude=["a"]))
    assert choose([node("a"), node("b"), node("c")], spec).nodes == ("b",)
    assert "a is in placement.exclude; c is not among placement.hosts" in choose([node("a"), node("c")], spec).reason
