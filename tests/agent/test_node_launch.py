"""Whose port the store has: nodes of one attempt start when it is known, and again when it moves."""

from collections import deque
from typing import Any

import msgspec
import pytest

from zrun.agent import node_actions as a
from zrun.agent import node_events as e
from zrun.agent.node_launch import LAUNCHES, NEW_PORT_S
from zrun.agent.node_machine import NodeMachine
from zrun.core.failure import Failure, FailureKind
from zrun.wire.order import End, Ending, JobOrder, LaunchPlan, Peer
from zrun.wire.report import Doing

PLAN = LaunchPlan(
    attempt=1, node_rank=1, nnodes=2, nproc=1, master_addr="10.0.0.1", master_port=0,
    peers=[Peer("a", "10.0.0.1", 4000), Peer("b", "10.0.0.2", 4000)],
)  # fmt: skip
NO_STORE = ["torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed"]


class Play:
    """Node b, of node rank 1, or the host of the store."""

    def __init__(self, *, rank: int = 1, setup: bool = False) -> None:
        self.plan = msgspec.structs.replace(PLAN, node_rank=rank)
        self.machine = NodeMachine("toy", "b", setup=setup, exit_s=60.0)
        self.now = 10.0
        self.shares = True
        """Whoever looks finds checkpoint.dir to be the same folder, at once."""

    def say(self, *events: e.NodeEvent) -> list[a.NodeAction]:
        out: list[a.NodeAction] = []
        coming = deque(events)
        while coming:
            self.now += 0.1
            done = self.machine.handle(coming.popleft(), self.now)
            asked = [action for action in done if isinstance(action, a.ShareFolder) and self.shares]
            coming.extend(e.FolderShared(action.plan.attempt, None) for action in asked)
            out += [action for action in done if action not in asked]
        return [action for action in out if not isinstance(action, a.Say)]

    def ordered(self, port: int = 0, **more: Any) -> list[a.NodeAction]:
        run = msgspec.structs.replace(self.plan, master_port=port, **more)
        return self.say(e.OrderReceived(JobOrder(run=run, attempt=1)))

    def starts(self, actions: list[a.NodeAction]) -> list[int]:
        """The ports of the launches among the actions."""
        return [action.plan.master_port for action in actions if isinstance(action, a.StartTorchrun)]

    def torchrun_ends(self, *, in_use: bool = False, lines: list[str] | None = None) -> list[a.NodeAction]:
        return self.say(e.TorchrunExited(1, None, 1000.0, in_use, lines or []))

    @property
    def doing(self) -> Doing:
        return self.machine.state.doing

    def kinds(self) -> list[FailureKind]:
        return [failure.kind for failure in self.machine.state.failures()]


def test_a_node_that_does_not_host_the_store_waits_for_its_port() -> None:
    play = Play()
    assert play.starts(play.ordered() + play.say(e.KeeperReady([]))) == []
    assert play.doing == Doing.STARTING
    assert play.starts(play.ordered(port=20001)) == [20001]
    assert play.starts(play.ordered(port=20001)) == []


def test_set_up_runs_while_the_port_is_not_known_yet() -> None:
    play = Play(setup=True)
    actions = play.ordered() + play.say(e.KeeperReady([]))
    assert any(isinstance(action, a.StartSetup) for action in actions)
    assert play.starts(play.ordered(port=20001)) == []
    assert play.starts(play.say(e.SetupEnded(None))) == [20001]


def test_the_host_starts_at_once_and_tells_the_port_it_picked() -> None:
    play = Play(rank=0)
    assert play.starts(play.ordered() + play.say(e.KeeperReady([]))) == [0]
    play.say(e.Launched([0], 20001))
    assert play.machine.state.record.port == 20001


def test_a_taken_port_is_another_port_of_the_same_attempt_three_times_and_no_more() -> None:
    play = Play(rank=0)
    play.ordered()
    play.say(e.KeeperReady([]), e.Launched([0], 20001))
    for port in range(20002, 20001 + LAUNCHES):
        assert len(play.starts(play.torchrun_ends(in_use=True))) == 1
        play.say(e.Launched([0], port))
        assert (play.machine.state.record.port, play.doing) == (port, Doing.STARTING)
    assert play.starts(play.torchrun_ends(in_use=True)) == []
    assert (play.doing, play.kinds()) == (Doing.FAILED, [FailureKind.LAUNCH])


def shared(problem: str = "", attempt: int = 1) -> e.FolderShared:
    failure = Failure(rank=-1, node="b", kind=FailureKind.LAUNCH, at=1.0, message=problem) if problem else None
    return e.FolderShared(attempt, failure)


@pytest.mark.parametrize("rank", [0, 1])
def test_no_rank_is_started_before_checkpoint_dir_is_known_to_be_shared(rank: int) -> None:
    play = Play(rank=rank)
    play.shares = False
    play.say(e.KeeperReady([]))
    asked = [type(action) for action in play.ordered(port=20001) if not isinstance(action, a.EnsureKeeper)]
    assert asked == [a.ShareFolder]
    assert play.ordered(port=20001) == [], "asked once"
    assert play.say(shared(attempt=0)) == [], "the answer to an earlier attempt's question"
    assert play.starts(play.say(shared())) == [20001]


def test_the_others_look_only_when_the_first_node_has_told_its_port() -> None:
    play = Play()
    play.shares = False
    assert not any(isinstance(action, a.ShareFolder) for action in play.ordered() + play.say(e.KeeperReady([])))


def test_a_folder_that_is_not_shared_refuses_the_launch() -> None:
    play = Play()
    play.shares = False
    play.say(e.KeeperReady([]))
    play.ordered(port=20001)
    assert play.starts(play.say(shared("not the same folder"))) == []
    assert (play.doing, play.kinds()) == (Doing.FAILED, [FailureKind.LAUNCH])


def test_the_answer_holds_for_another_port_of_the_same_attempt() -> None:
    play = Play()
    play.ordered(port=20001)
    play.say(e.KeeperReady([]), e.Launched([1]))
    play.shares = False
    play.ordered(port=20002)
    assert play.starts(play.say(e.Swept([]))) == [20002]


def test_the_others_end_what_looks_at_the_old_port_before_they_start_for_the_new_one() -> None:
    play = Play()
    play.ordered(port=20001)
    play.say(e.KeeperReady([]), e.Launched([1]))
    (kill,) = play.ordered(port=20002)
    assert isinstance(kill, a.KillAll)
    assert "20002" in kill.why
    assert play.starts(play.say(e.Swept([]))) == [20002]
    assert (play.doing, play.kinds()) == (Doing.STARTING, [])


def test_a_launch_that_met_a_stranger_at_the_port_waits_for_another_port() -> None:
    play = Play()
    play.ordered(port=20001)
    play.say(e.KeeperReady([]), e.Launched([1]))
    play.torchrun_ends(lines=NO_STORE)
    assert (play.doing, play.kinds()) == (Doing.STARTING, [])
    play.ordered(port=20002)
    assert play.starts(play.say(e.Swept([]))) == [20002]


def test_a_launch_that_lost_the_store_fails_in_the_words_of_an_echo_when_no_other_port_comes() -> None:
    play = Play()
    play.ordered(port=20001)
    play.say(e.KeeperReady([]), e.Launched([1]))
    play.torchrun_ends(lines=NO_STORE)
    until = play.machine.deadline()
    assert until is not None
    play.now = until - 0.1
    play.say(e.TimeUp())
    assert (play.doing, play.kinds()) == (Doing.FAILED, [FailureKind.EXITED])
    assert NEW_PORT_S > 3.0, "a lost host is known after its lease, and is the better answer"


def test_a_launch_that_fails_for_a_reason_of_its_own_is_told_at_once() -> None:
    play = Play()
    play.ordered(port=20001)
    play.say(e.KeeperReady([]), e.Launched([1]))
    play.torchrun_ends(lines=["No module named torch"])
    assert (play.doing, play.kinds()) == (Doing.FAILED, [FailureKind.LAUNCH])


def test_a_node_that_is_cut_off_ends_its_workers_and_says_that_it_was_the_node() -> None:
    play = Play()
    play.ordered(port=20001)
    play.say(e.KeeperReady([]), e.Launched([1]), e.RankSeen(1, 101))
    actions = play.say(e.CutOff("node b was cut off: nobody answers", 1000.0))
    assert any(isinstance(action, a.KillAll) and "cut off" in action.why for action in actions)
    play.say(e.RankExited(1, 101, None, "SIGKILL", 1000.1, []), e.Swept([]))
    assert play.doing == Doing.IDLE
    assert play.kinds()[0] == FailureKind.NODE
    assert play.ordered(port=20001) == []


def test_being_cut_off_does_not_wait_for_a_save_that_was_ordered() -> None:
    play = Play()
    play.ordered(port=20001)
    play.say(e.KeeperReady([]), e.Launched([1]), e.RankSeen(1, 101))
    play.say(e.OrderReceived(JobOrder(ending=Ending(End.SAVE, 600.0, "a person"), attempt=1)))
    assert any(isinstance(action, a.KillAll) for action in play.say(e.CutOff("cut off", 1000.0)))


def test_a_notice_makes_a_kill_from_outside_a_preemption_before_and_after_it() -> None:
    for early in (True, False):
        play = Play()
        play.ordered(port=20001)
        play.say(e.KeeperReady([]), e.Launched([1]), e.RankSeen(1, 101))
        killed = e.RankExited(1, 101, None, "SIGKILL", 1000.0, [])
        notice = e.NoticeRead("evicted")
        told: list[e.NodeEvent] = [notice, killed] if early else [killed, notice]
        play.say(*told)
        (failure,) = play.machine.state.failures()
        assert (failure.kind, failure.message, failure.signal) == (FailureKind.PREEMPTED, "evicted", "SIGKILL")
