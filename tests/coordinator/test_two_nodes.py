"""Two agents of one attempt: the store's port goes from one to the other, with a key, and each report is acked."""

import json
from typing import Any

from zrun.coordinator.peer_keys import PeerKeys
from zrun.wire.order import Ack, JobOrder, LaunchPlan


def begun(serve: Any, agent: Any, kit: Any) -> tuple[Any, str, Any, Any]:
    """A job for two nodes whose attempt is ordered."""
    served = serve(kit.spec(nodes_min=2, nodes_max=2))
    one, two = agent(served, node="n1"), agent(served, node="n2", boot="boot2")
    for each in (one, two):
        each.report()
    return served, served.home.name, one, two


def test_the_second_node_is_told_the_port_that_the_first_one_picked(serve: Any, agent: Any, kit: Any) -> None:
    served, job, one, two = begun(serve, agent, kit)
    first = one.order(job, lambda o: o.run is not None).run
    assert (first.node_rank, first.master_port) == (0, 0)
    assert two.order(job, lambda o: o.run is not None).run.master_port == 0
    one.report(job, doing=kit.Doing.STARTING, attempt=1, seen=1, master_port=20001)
    second = two.order(job, lambda o: o.run is not None and o.run.master_port > 0).run
    assert second.master_port == 20001
    assert len(second.key) == 64
    assert second.key == first.key
    assert second.key not in (served.home / "events.jsonl").read_text()
    assert second.key.encode() not in (served.home / "journal.db").read_bytes()


def test_a_node_with_peers_knows_of_every_report_that_it_was_heard(serve: Any, agent: Any, kit: Any) -> None:
    _, job, one, _ = begun(serve, agent, kit)
    one.order(job, lambda o: o.run is not None)
    for _ in range(3):
        one.report()
        heard = one.read(5.0)
        while heard is not None and getattr(heard, "acked", -1) < one.serial:
            heard = one.read(5.0)
        assert isinstance(heard, Ack | kit.Order), heard


def test_a_lost_node_is_an_order_to_the_other_though_its_workers_do_well(serve: Any, agent: Any, kit: Any) -> None:
    served, job, one, two = begun(serve, agent, kit)
    for each in (one, two):
        each.order(job, lambda o: o.run is not None)
        each.report(job, doing=kit.Doing.RUNNING, attempt=1, seen=1, rows=kit.rows(3))
    two.close()
    order = one.order(job, lambda o: o.ending is not None)
    assert "n2" in order.ending.why
    one.report(job, doing=kit.Doing.IDLE, attempt=1, seen=1, collected=1)
    kit.eventually(lambda: "1 of 2 ready" in served.get("/api/jobs/toy")["reason"], "waiting for the node")

    def classes() -> list[str]:
        return [one["class"] for one in json.loads((served.home / "verdict.json").read_text())["incidents"]]

    kit.eventually(lambda: classes() == ["node"], "the verdict")


def test_keys_differ_by_job_and_attempt_and_are_the_same_again_after_a_restart() -> None:
    keys, again, other = PeerKeys(b"token"), PeerKeys(b"token"), PeerKeys(b"another")
    found = {keys.of("toy", 1), keys.of("toy", 2), keys.of("toy-2", 1), other.of("toy", 1)}
    assert len(found) == 4
    assert again.of("toy", 1) == keys.of("toy", 1)
    alone = JobOrder(run=LaunchPlan(1, 0, 1, 2, "127.0.0.1", 0, []))
    assert keys.put_in("toy", alone) is alone
