"""One attempt on two nodes: where its store is, and that the others are told."""

from typing import Any

from tests.machine.playbook import Playbook, gives, heard, killed, records, spec_of, submitted

from zrun.core.failure import Failure, FailureKind
from zrun.core.states import FaultClass
from zrun.machine.actions import Give
from zrun.machine.blame import blame
from zrun.machine.orders import plan
from zrun.wire.order import LaunchPlan, Peer

AT_A: dict[str, Any] = {"address": "10.0.0.1", "peer_port": 4001}
AT_B: dict[str, Any] = {"address": "10.0.0.2", "peer_port": 4002}


def begun() -> Playbook:
    play = Playbook(spec_of(2))
    return play.given(submitted(play.spec), heard("a", **AT_A), heard("b", **AT_B))


def plan_for(play: Playbook, node: str) -> LaunchPlan:
    current = play.job.current
    assert current is not None
    seat = current.seat_of(node)
    assert seat is not None
    return plan(play.job, current, seat)


def test_every_node_is_told_where_its_peers_are_and_the_first_one_picks_the_port() -> None:
    play = begun()
    told = plan_for(play, "b")
    assert (told.master_addr, told.master_port, told.nnodes) == ("10.0.0.1", 0, 2)
    assert told.peers == [Peer("a", "10.0.0.1", 4001), Peer("b", "10.0.0.2", 4002)]
    assert plan_for(play, "a").master_port == 0


def test_the_port_that_the_first_node_tells_is_given_to_the_others_at_once() -> None:
    play = begun()
    play >> heard("a", "starting", 1, master_port=20001, **AT_A)
    play << gives("b", run=1)
    play.done()
    assert (plan_for(play, "b").master_port, plan_for(play, "a").master_port) == (20001, 0)


def test_another_port_of_the_same_attempt_replaces_the_first_and_costs_nothing() -> None:
    play = begun().given(heard("a", "starting", 1, master_port=20001, **AT_A), heard("b", "starting", 1, **AT_B))
    play >> heard("a", "starting", 1, master_port=20002, **AT_A)
    play << records("store-moved")
    play << gives("b", run=1)
    play.done()
    assert (plan_for(play, "b").master_port, play.job.attempt, play.job.restarts) == (20002, 1, 0)


def test_only_the_first_node_of_this_very_attempt_says_where_the_store_is() -> None:
    play = begun().given(heard("b", "starting", 1, master_port=666, **AT_B))
    play = play.given(heard("a", "idle", 0, seen=0, master_port=667, **AT_A))
    assert plan_for(play, "b").master_port == 0


def test_a_node_alone_keeps_to_its_own_loopback() -> None:
    play = Playbook()
    play.given(submitted(play.spec), heard("a", **AT_A))
    assert plan_for(play, "a").master_addr == "127.0.0.1"


def test_keys_of_peers_are_no_business_of_the_machine() -> None:
    play = begun()
    given = [action for _, _, _, actions in play.journal for action in actions if isinstance(action, Give)]
    assert {give.order.run.key for give in given if give.order.run} == {""}


def test_a_rank_taken_away_with_a_notice_is_a_preemption() -> None:
    told = Failure(1, "b", FailureKind.PREEMPTED, 1.0, signal="SIGKILL", message="evicted", step=61)
    verdict = blame([told, killed(0, at=1.5)])
    assert (verdict.fault, verdict.rank, verdict.node) == (FaultClass.PREEMPTION, 1, "b")
    assert verdict.headline == "rank 1: evicted: killed by SIGKILL (step 61)"


def test_a_launch_that_lost_its_store_is_the_echo_of_the_node_that_was_lost() -> None:
    message = "torchrun ended before any rank was there (code 1): its TCPStore at 10.0.0.1:20001 failed"
    verdict = blame([Failure(-1, "b", FailureKind.EXITED, 1.0, exit_code=1, message=message)], None, ["a"])
    assert (verdict.fault, verdict.node) == (FaultClass.NODE, "a")
