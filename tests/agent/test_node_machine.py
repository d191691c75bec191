"""The node machine by playbook: events and times in, actions out."""

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest

from zrun.agent import node_actions as a
from zrun.agent import node_events as e
from zrun.agent.node_machine import NodeMachine
from zrun.agent.node_state import KILLED_ECHO_S
from zrun.core.deck import Flag, Phase, StopKind
from zrun.core.deck_reader import DeckState
from zrun.core.failure import Failure, FailureKind
from zrun.wire.order import End, Ending, JobOrder, LaunchPlan, Peer
from zrun.wire.report import Doing

SOURCES = Path(__file__).parents[2] / "agent" / "zrun" / "agent"
PURE = (
    "node_machine", "node_state", "node_record", "node_ending", "node_finish", "node_events", "node_actions",
    "node_launch", "node_reach",
    "stop_step", "early_exit", "failures", "rank_story", "last_line",
)  # fmt: skip
FORBIDDEN = {
    "asyncio", "time", "random", "os", "socket", "subprocess", "threading", "logging", "structlog", "psutil",
    "fastapi", "torch",
}  # fmt: skip


def order(attempt: int, **more: Any) -> e.OrderReceived:
    plan = LaunchPlan(
        attempt=attempt, node_rank=0, nnodes=1, nproc=2, master_addr="m", master_port=0, peers=[Peer("a")]
    )
    return e.OrderReceived(JobOrder(run=plan, attempt=attempt, **more))


def ending(attempt: int, how: End, within_s: float = 10.0, collect: int = 0, *, keep: bool = False) -> e.OrderReceived:
    asked = Ending(how, within_s, "why", keep=keep)
    return e.OrderReceived(JobOrder(ending=asked, attempt=attempt, collect=collect))


def deck(rank: int, **more: Any) -> DeckState:
    values: dict[str, Any] = {
        "rank": rank, "attempt": 1, "pid": 100 + rank, "pid_started": 1, "phase": Phase.STEP, "phase_name": "",
        "flags": Flag.SESSION, "step": 3, "completed": 2, "progress": 1, "progress_at": 1.0, "phase_at": 1.0,
        "step_s": 0.1, "batch": None, "total_steps": 10, "ack_seq": 0, "coll_seq": 0, "coll_done": 0,
        "coll_entered_at": 0.0, "coll_left_at": 0.0, "coll_bytes": 0, "coll_group": 0, "coll_op": "none",
        "coll_group_seq": 0, "beat_at": 0.0, "wait_s": 0.0, "metrics": {},
    }  # fmt: skip
    return DeckState(**{**values, **more})


def exited(rank: int, code: int | None = None, signal: str | None = None) -> e.RankExited:
    return e.RankExited(rank, 100 + rank, code, signal, 1000.0, [])


class Play:
    """A machine with two ranks; `self.now` moves by 0.1 s an event."""

    def __init__(self, *, setup: bool = False) -> None:
        self.machine = NodeMachine("toy", "a", setup=setup, exit_s=60.0)
        self.now = 10.0

    def say(self, *events: e.NodeEvent) -> list[a.NodeAction]:
        out: list[a.NodeAction] = []
        for event in events:
            self.now += 0.1
            out += self.machine.handle(event, self.now)
        return [action for action in out if not isinstance(action, a.Say | a.TellRank)]

    def running(self, attempt: int = 1) -> "Play":
        self.say(order(attempt), e.KeeperReady([]), e.Launched([0, 1]), e.RankSeen(0, 100), e.RankSeen(1, 101))
        self.say(e.DecksRead({0: deck(0), 1: deck(1)}))
        assert self.doing == Doing.RUNNING
        return self

    def at(self, now: float) -> list[a.NodeAction]:
        self.now = now - 0.1
        return self.say(e.TimeUp())

    @property
    def doing(self) -> Doing:
        return self.machine.state.doing

    def kinds(self) -> list[FailureKind]:
        return [failure.kind for failure in self.machine.state.failures()]


def test_an_attempt_waits_for_the_keeper_and_is_seen_at_once() -> None:
    play = Play()
    (action,) = play.say(order(1))
    assert isinstance(action, a.EnsureKeeper)
    assert (play.doing, play.machine.state.seen) == (Doing.STARTING, 1)
    assert play.say(order(1), order(1)) == []
    (start,) = play.say(e.KeeperReady([]))
    assert isinstance(start, a.StartTorchrun)


def test_setup_comes_once_before_the_first_launch() -> None:
    play = Play(setup=True)
    (keeper, setup) = play.say(order(1), e.KeeperReady([]))
    assert isinstance(keeper, a.EnsureKeeper)
    assert isinstance(setup, a.StartSetup)
    (start,) = play.say(e.SetupEnded(None))
    assert isinstance(start, a.StartTorchrun)


def test_setup_failure_is_a_failure_and_ends_in_idle() -> None:
    play = Play(setup=True)
    play.say(order(1), e.KeeperReady([]))
    assert play.say(e.SetupEnded(Failure(-1, "a", FailureKind.SETUP, 1.0))) == []
    assert (play.doing, play.kinds()) == (Doing.FAILED, [FailureKind.SETUP])
    play.say(ending(1, End.KILL), e.Swept([]))
    assert play.doing == Doing.IDLE
    assert any(isinstance(action, a.StartSetup) for action in play.say(order(2)))


def test_an_abort_in_the_interpreters_teardown_is_a_warning_once_the_script_had_ended_well() -> None:
    play = Play().running()
    over = Flag.SESSION | Flag.FINISHED
    play.say(e.DecksRead({0: deck(0, flags=over), 1: deck(1, flags=over)}), exited(0, 0), exited(1, signal="SIGABRT"))
    play.say(e.Swept([]))
    assert (play.doing, play.kinds()) == (Doing.FINISHED, [])
    assert "rank 1: SIGABRT in the interpreter's teardown" in play.machine.state.record.warnings[0]


def test_an_abort_before_the_scripts_end_is_a_failure() -> None:
    play = Play().running()
    play.say(exited(1, signal="SIGABRT"))
    assert (play.doing, play.kinds()) == (Doing.FAILED, [FailureKind.SIGNALED])


def test_evidence_comes_before_the_first_signal() -> None:
    play = Play().running()
    (collect,) = play.say(exited(1, 1), ending(1, End.KILL, collect=4))
    assert collect == a.Collect(4, "evidence for incident 4")
    assert play.doing == Doing.FAILED
    assert isinstance(play.say(e.CollectEnded(4))[0], a.KillAll)
    play.say(e.Swept([]))
    assert (play.doing, play.machine.state.collected) == (Doing.IDLE, 4)


def test_evidence_that_never_comes_holds_nobody_up() -> None:
    play = Play().running()
    play.say(ending(1, End.KILL, collect=4))
    due = play.machine.deadline()
    assert due is not None
    assert any(isinstance(action, a.KillAll) for action in play.at(due))


def test_term_becomes_kill_when_the_time_is_over() -> None:
    play = Play().running()
    pages, term = play.say(ending(1, End.TERM, 3.0))
    assert isinstance(pages, a.WriteOrderPages)
    assert pages.ask.kind == StopKind.STOP
    assert term == a.SignalRanks([0, 1], "TERM", "why")
    due = play.machine.deadline()
    assert due is not None
    assert due == pytest.approx(play.now + 3.0)
    assert play.at(due - 0.01) == []
    assert isinstance(play.at(due)[0], a.KillAll)


def test_save_asks_all_ranks_for_one_step_and_confirms_it() -> None:
    play = Play().running()
    (pages,) = play.say(ending(1, End.SAVE))
    assert isinstance(pages, a.WriteOrderPages)
    assert (pages.ask.step, pages.ask.confirmed) == (4, False)
    sequence = pages.ask.sequence
    assert play.say(e.DecksRead({0: deck(0, step=4, ack_seq=sequence), 1: deck(1)})) == []
    (pages,) = play.say(e.DecksRead({0: deck(0, step=4, ack_seq=sequence), 1: deck(1, step=4, ack_seq=sequence)}))
    assert isinstance(pages, a.WriteOrderPages)
    assert pages.ask.confirmed
    play.say(*(e.NoteRead(rank, {"kind": "stopped-at", "step": 4}) for rank in (0, 1)))
    (kill,) = play.say(exited(0, 0), exited(1, 0))
    assert isinstance(kill, a.KillAll)
    play.say(e.Swept([]))
    assert (play.doing, play.machine.state.record.stopped_at, play.kinds()) == (Doing.IDLE, 4, [])


def test_save_without_session_is_a_term() -> None:
    play = Play().running()
    play.say(e.DecksRead({0: deck(0, flags=Flag(0)), 1: deck(1)}))
    assert any(isinstance(action, a.SignalRanks) for action in play.say(ending(1, End.SAVE)))


def test_a_save_whose_ranks_do_not_come_ends_in_term_and_kill() -> None:
    play = Play().running()
    play.say(ending(1, End.SAVE, 5.0))
    due = play.machine.deadline()
    assert due is not None
    assert any(isinstance(action, a.SignalRanks) for action in play.at(due))
    due = play.machine.deadline()
    assert due is not None
    assert any(isinstance(action, a.KillAll) for action in play.at(due))


def test_what_ends_after_our_signal_is_a_consequence_and_what_raised_before_is_not() -> None:
    play = Play().running()
    words = {"kind": "last-words", "final": False, "exception": "ValueError", "message": "x", "at": 900.0, "step": 3}
    play.say(e.NoteRead(1, words), ending(1, End.KILL), e.Signalled([0, 1], 950.0))
    play.say(exited(0, None, "SIGKILL"), exited(1, None, "SIGKILL"))
    assert play.kinds() == [FailureKind.RAISED, FailureKind.ENDED_BY_US]


def test_an_exception_that_was_handled_is_forgotten() -> None:
    play = Play().running()
    play.say(e.NoteRead(1, {"kind": "last-words", "final": False, "exception": "KeyError", "at": 900.0, "step": 3}))
    play.say(e.DecksRead({0: deck(0, step=5), 1: deck(1, step=5)}), exited(0, 9))
    assert play.kinds() == [FailureKind.EXITED]


def words(final: bool) -> e.NoteRead:
    return e.NoteRead(1, {"kind": "last-words", "final": final, "exception": "E", "at": 900.0, "step": 3})


def test_a_death_by_signal_is_settled_though_a_survivor_cries_out_and_unwinds() -> None:
    play = Play().running()
    outcry = {"kind": "last-words", "final": False, "exception": "RuntimeError", "at": 2000.0, "step": 3}
    play.say(exited(0, signal="SIGKILL"), e.NoteRead(1, outcry))
    assert play.machine.state.failures()[0].signal == "SIGKILL"
    play.at(play.now + KILLED_ECHO_S)
    assert play.machine.state.settled


def test_failed_is_settled_soon_after_the_final_words() -> None:
    play = Play().running()
    play.say(words(final=True))
    assert (play.doing, play.machine.state.settled) == (Doing.FAILED, False)
    play.at(play.now + 0.2)
    assert play.machine.state.settled


def test_an_exception_still_in_flight_is_waited_for_a_second() -> None:
    play = Play().running()
    play.say(words(final=False), exited(0, 1))
    play.at(play.now + 0.8)
    assert not play.machine.state.settled
    play.at(play.now + 0.2)
    assert play.machine.state.settled
    assert len(play.kinds()) == 2


def test_a_new_attempt_ends_the_old_one_first() -> None:
    play = Play().running()
    (kill,) = play.say(order(2))
    assert isinstance(kill, a.KillAll)
    (start,) = play.say(e.Swept([]))
    assert isinstance(start, a.StartTorchrun)
    assert play.machine.state.record.attempt == 2


def test_an_attempt_that_is_over_is_not_begun_again() -> None:
    play = Play().running()
    play.say(ending(1, End.KILL), e.Swept([]))
    assert play.say(order(1)) == []
    assert play.doing == Doing.IDLE


def test_an_order_to_be_idle_for_an_attempt_never_begun_is_seen() -> None:
    play = Play()
    assert play.say(ending(3, End.KILL)) == []
    assert (play.doing, play.machine.state.seen) == (Doing.IDLE, 3)


def test_a_port_taken_is_tried_three_times() -> None:
    play = Play()
    play.say(order(1), e.KeeperReady([]), e.Launched([0, 1]))
    taken = e.TorchrunExited(1, None, 5.0, address_in_use=True, last_lines=["EADDRINUSE"])
    assert isinstance(play.say(taken)[0], a.StartTorchrun)
    assert isinstance(play.say(taken)[0], a.StartTorchrun)
    play.say(taken)
    assert (play.doing, play.kinds()) == (Doing.FAILED, [FailureKind.LAUNCH])


def test_torchrun_dying_under_its_ranks_is_a_failure() -> None:
    play = Play().running()
    play.say(e.TorchrunExited(None, "SIGKILL", 5.0, address_in_use=False, last_lines=[]))
    assert (play.doing, play.kinds()) == (Doing.FAILED, [FailureKind.SIGNALED])


def test_finished_is_said_only_when_nothing_is_left() -> None:
    play = Play().running()
    (kill,) = play.say(exited(0, 0), exited(1, 0))
    assert isinstance(kill, a.KillAll)
    assert play.doing.value == "running"
    play.say(e.Swept([]))
    assert play.doing.value == "finished"
    play.say(e.OrderReceived(JobOrder(attempt=1, release=True)))
    (release,) = play.say(e.Swept([]))
    assert isinstance(release, a.Release)


def test_a_rank_that_writes_the_last_file_alone_is_waited_for() -> None:
    """Both did all steps; rank 1 is gone, rank 0 writes: not early after 5 s, but after exit_s."""
    play = Play().running()
    play.say(e.DecksRead({0: deck(0, completed=3), 1: deck(1, completed=3, flags=Flag.FINISHED)}), exited(1, 0))
    play.at(play.now + 30.0)
    assert play.doing == Doing.RUNNING
    play.at(play.now + 31.0)
    assert play.kinds() == [FailureKind.EARLY]


def test_a_collection_is_asked_for_once_however_often_the_order_comes() -> None:
    play = Play().running()
    again = order(1, collect=2)
    assert len(play.say(again, again, e.CollectEnded(2), again)) == 1


def test_a_dead_keepers_attempt_is_over_when_its_successor_has_swept() -> None:
    play = Play().running()
    (keeper,) = play.say(e.KeeperLost())
    assert isinstance(keeper, a.EnsureKeeper)
    play.say(e.KeeperReady([]))
    assert play.doing == Doing.IDLE


def test_a_node_that_ran_the_job_before_is_not_idle_until_a_keeper_has_ended_what_was_left() -> None:
    play = Play()
    (keeper,) = play.say(e.LeftBefore())
    assert isinstance(keeper, a.EnsureKeeper)
    assert play.doing == Doing.STOPPING
    assert play.say(order(2)) == []
    (start,) = play.say(e.KeeperReady(["process 7 cannot be killed"], ["shared memory psm_1"]))
    assert isinstance(start, a.StartTorchrun)
    assert play.machine.state.left_behind == ["process 7 cannot be killed"]


def test_a_keeper_that_cannot_be_started_to_end_what_was_left_holds_nobody_up() -> None:
    play = Play()
    play.say(e.LeftBefore(), e.LaunchRefused(Failure(-1, "a", FailureKind.LAUNCH, 1.0, message="no memory")))
    assert (play.doing, play.machine.state.left_behind) == (Doing.IDLE, ["no memory"])


def test_what_could_not_be_ended_is_told_until_it_has_ended_also_in_the_next_attempt() -> None:
    play = Play().running()
    play.say(ending(1, End.KILL), e.Swept(["process 7 cannot be killed"], ["shared memory psm_1"]))
    state = play.machine.state
    assert (play.doing, state.left_behind, state.removed) == (
        Doing.IDLE, ["process 7 cannot be killed"], ["shared memory psm_1"],
    )  # fmt: skip
    play.say(order(2))
    assert (state.left_behind, state.removed) == (["process 7 cannot be killed"], [])
    play.say(e.Freed([], ["shared memory psm_2"]))
    assert (play.doing, state.left_behind, state.removed) == (Doing.STARTING, [], ["shared memory psm_2"])


@pytest.mark.parametrize("events", list(itertools.permutations(range(5), 5)))
def test_no_order_of_orders_makes_an_illegal_move(events: tuple[int, ...]) -> None:
    choices = [order(1), ending(1, End.SAVE), ending(1, End.KILL, collect=1), order(2), ending(2, End.TERM)]
    play = Play().running()
    for number in events:
        play.say(choices[number], e.Swept([]), e.CollectEnded(1), e.DecksRead({0: deck(0), 1: deck(1)}))
        play.machine.deadline()


def test_the_machine_imports_nothing_that_acts() -> None:
    for name in PURE:
        for node in ast.walk(ast.parse((SOURCES / f"{name}.py").read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {part.split(".")[0] for part in names} & FORBIDDEN, name


def last_words(**more: Any) -> dict[str, Any]:
    return {"kind": "last-words", "at": 999.0, "final": True, "step": 3, **more}


@pytest.mark.parametrize(
    ("said", "kind", "code"),
    [
        ({"exit_code": 75, "exception": None}, FailureKind.EXITED, 75),
        ({"exit_code": 1, "exception": "ValueError"}, FailureKind.RAISED, 1),
        ({"exception": "ValueError"}, FailureKind.RAISED, 1),
    ],
)
def test_our_own_signal_is_never_the_end_of_a_rank_that_had_said_its_last(
    said: dict[str, Any], kind: FailureKind, code: int
) -> None:
    play = Play().running()
    play.say(e.NoteRead(1, last_words(**said)), exited(0, 1), e.Signalled([1], 1000.0), exited(1, signal="SIGKILL"))
    (failure,) = [f for f in play.machine.state.failures() if f.rank == 1]
    assert (failure.kind, failure.exit_code, failure.signal) == (kind, code, None)


def test_a_signal_of_others_after_the_last_words_stays_what_it_was() -> None:
    play = Play().running()
    play.say(e.NoteRead(1, last_words(exit_code=1, exception="ValueError")), exited(1, signal="SIGABRT"))
    (failure,) = play.machine.state.failures()
    assert (failure.exit_code, failure.signal) == (None, "SIGABRT")


def test_who_was_ended_by_zrun_carries_no_signal_but_its_place() -> None:
    play = Play().running()
    play.say(exited(0, 1), ending(1, End.KILL, collect=2), e.CollectEnded(2, {1: "train.py:7", 5: "x.py:1"}))
    play.say(e.Signalled([1], 999.0), exited(1, signal="SIGKILL"))
    (failure,) = [f for f in play.machine.state.failures() if f.rank == 1]
    assert (failure.kind, failure.signal, failure.exit_code) == (FailureKind.ENDED_BY_US, None, None)
    assert (failure.message, failure.where) == ("ended by zrun (SIGKILL): why", "train.py:7")
    assert set(play.machine.state.record.stories) == {0, 1}


def test_setup_that_takes_too_long_is_ended_once() -> None:
    play = Play(setup=True)
    play.machine.state.setup_s = 5.0
    play.say(order(1), e.KeeperReady([]))
    due = play.machine.deadline()
    assert due is not None
    assert play.at(due - 0.01) == []
    assert play.at(due) == [a.EndSetup("did not end within 5 s (watchdog.setup)")]
    assert (play.at(due + 1), play.machine.deadline()) == ([], None)
    play.say(e.SetupEnded(Failure(-1, "a", FailureKind.SETUP, 1.0)), e.Swept([]))
    assert (play.doing, play.kinds()) == (Doing.FAILED, [FailureKind.SETUP])
    assert any(isinstance(action, a.KillAll) for action in play.say(ending(1, End.KILL)))


def test_setup_runs_again_only_if_the_job_came_with_other_commands() -> None:
    play = Play(setup=True)
    play.say(order(1), e.KeeperReady([]), e.SetupEnded(None), ending(1, End.KILL), e.Swept([]))
    play.say(e.SpecChanged(setup=False, setup_s=None, exit_s=9.0))
    assert isinstance(play.say(order(2))[0], a.StartTorchrun)
    play.say(ending(2, End.KILL), e.Swept([]), e.SpecChanged(setup=True, setup_s=None, exit_s=9.0))
    assert isinstance(play.say(order(3))[0], a.StartSetup)


def test_checkpoints_that_were_pruned_are_told_and_listed_no_more() -> None:
    play = Play().running()
    for step, pruned in ((1, []), (2, []), (3, [1]), (1, [2]), (4, None)):
        note = {"kind": "checkpoint", "step": step, "batch": "", "path": "/x", "bytes": 1, "seconds": 0.1}
        play.say(e.NoteRead(0, note if pruned is None else {**note, "pruned": pruned}))
    record = play.machine.state.record
    assert [info.step for info in record.checkpoints] == [3, 1, 4]
    assert record.pruned == [2]


def echo(rank: int, at: float) -> e.NoteRead:
    text = "Connection closed by peer"
    said = {"kind": "last-words", "final": True, "exception": "RuntimeError", "message": text, "at": at, "step": 3}
    return e.NoteRead(rank, said)


def over(rank: int, at: float) -> e.NoteRead:
    return e.NoteRead(rank, {"kind": "finished", "exit_code": 0, "at": at})


def test_who_left_with_0_before_another_failed_is_told_of_too() -> None:
    play = Play().running()
    play.say(exited(1, 0), echo(0, 1000.03))
    left, other = play.machine.state.failures()
    assert (left.rank, left.kind, left.at, left.exit_code) == (1, FailureKind.EARLY, 1000.0, 0)
    assert (other.rank, other.kind, play.doing) == (0, FailureKind.RAISED, Doing.FAILED)


def test_who_left_is_told_of_also_while_its_process_still_ends() -> None:
    play = Play().running()
    play.say(over(1, 999.9), echo(0, 999.95))
    assert [(f.rank, f.kind, f.at) for f in play.machine.state.failures()] == [
        (1, FailureKind.EARLY, 999.9), (0, FailureKind.RAISED, 999.95),
    ]  # fmt: skip
    play.say(ending(1, End.KILL), e.Signalled([0, 1], 999.99), exited(1, signal="SIGKILL"))
    assert play.kinds()[0] == FailureKind.EARLY


def test_who_left_is_told_of_also_if_that_is_seen_after_the_others_outcry() -> None:
    play = Play().running()
    play.say(echo(0, 999.9), exited(1, 0))
    assert play.kinds() == [FailureKind.RAISED, FailureKind.EARLY]


@pytest.mark.parametrize("at", [999.5, 1005.1])
def test_who_left_after_a_failure_or_long_before_it_is_not_missed(at: float) -> None:
    play = Play().running()
    play.say(exited(1, 0), echo(0, at))
    assert play.kinds() == [FailureKind.RAISED]


def test_who_left_at_a_safe_point_or_after_the_last_step_is_not_missed() -> None:
    safe = Play().running()
    flags = Flag.SESSION | Flag.STOPPED_SAFE
    safe.say(e.DecksRead({0: deck(0), 1: deck(1, flags=flags)}), exited(1, 0), echo(0, 1000.1))
    assert safe.kinds() == [FailureKind.RAISED]
    done = Play().running()
    done.say(e.DecksRead({r: deck(r, step=10, completed=10) for r in (0, 1)}), exited(1, 0), echo(0, 1000.1))
    assert done.kinds() == [FailureKind.RAISED]


def test_what_a_keeper_ended_while_its_agent_stood_still_is_the_nodes_failure() -> None:
    play = Play().running()
    play.say(e.KeeperEnds(3.0, 999.0), exited(0, signal="SIGKILL"), echo(1, 999.5), exited(1, signal="SIGKILL"))
    assert play.kinds() == [FailureKind.NODE, FailureKind.ENDED_BY_US, FailureKind.ENDED_BY_US]
    (node, *_) = play.machine.state.failures()
    assert (node.rank, node.message) == (-1, "the agent of node a stood still for 3 s: its keeper ended the workers")
    play.say(e.KeeperLost(), e.KeeperReady([]))
    assert (play.doing, play.kinds()[0]) == (Doing.IDLE, FailureKind.NODE)
