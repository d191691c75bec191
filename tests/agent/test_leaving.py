"""The node machine and exceptions in flight: who counts as ended before its process is, and what its log says last."""

from typing import Any

import pytest
from tests.agent.test_node_machine import Play, deck, ending, exited

from zrun.agent import node_actions as a
from zrun.agent import node_events as e
from zrun.core.failure import FailureKind
from zrun.wire.order import End
from zrun.wire.report import Doing


def note(kind: str, rank: int = 1, **more: Any) -> e.NoteRead:
    words = {"exception": "ValueError", "message": "x", "where": "train.py:9", "at": 900.0, "step": 3, "final": False}
    return e.NoteRead(rank, {"kind": kind, **(words if kind in ("last-words", "thread-ended") else {}), **more})


class Told(Play):
    """Also keeps what ranks' logs are told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[int, str] = {}

    def say(self, *events: e.NodeEvent) -> list[a.NodeAction]:
        out: list[a.NodeAction] = []
        for event in events:
            self.now += 0.1
            out += self.machine.handle(event, self.now)
        self.told |= {action.rank: action.text for action in out if isinstance(action, a.TellRank)}
        return [action for action in out if not isinstance(action, a.Say | a.TellRank)]


def test_who_surely_leaves_has_failed_a_moment_later_whatever_its_cleanup_does() -> None:
    play = Play().running()
    play.say(note("last-words"), note("leaving"))
    assert (play.doing, play.kinds()) == (Doing.RUNNING, [])
    due = play.machine.deadline()
    assert due is not None
    assert due == pytest.approx(play.now + 0.3)
    play.at(due - 0.01)
    assert play.doing == Doing.RUNNING
    play.at(due)
    assert (play.doing, play.kinds()) == (Doing.FAILED, [FailureKind.RAISED])
    assert play.machine.state.failures()[0].at == 900.0
    assert play.machine.deadline() is None


def test_the_others_need_not_wait_for_its_final_words() -> None:
    play = Play().running()
    play.say(note("last-words"), note("leaving"))
    play.at(play.now + 0.3)
    assert not play.machine.state.settled
    play.at(play.now + 0.2)
    assert play.machine.state.settled


def test_who_may_still_catch_it_has_not_failed() -> None:
    play = Play().running()
    play.say(note("last-words"))
    play.at(play.now + 60)
    assert (play.doing, play.machine.deadline()) == (Doing.RUNNING, None)


def test_what_was_handled_after_all_ends_nobody_and_blames_nobody() -> None:
    play = Play().running()
    play.say(note("last-words"), note("leaving"), note("handled"))
    play.at(play.now + 60)
    assert play.doing == Doing.RUNNING
    play.say(exited(0, 1))
    assert [failure.rank for failure in play.machine.state.failures()] == [0]


def test_who_went_on_to_a_later_step_has_handled_it() -> None:
    play = Play().running()
    play.say(note("last-words"), note("leaving"), e.DecksRead({0: deck(0), 1: deck(1, step=4)}))
    play.at(play.now + 60)
    assert (play.doing, play.machine.deadline()) == (Doing.RUNNING, None)


def test_a_common_stop_step_is_given_up_once_a_rank_is_sure_not_to_come_to_it() -> None:
    play = Play().running()
    play.say(ending(1, End.SAVE), note("last-words"), note("leaving"))
    due = play.machine.deadline()
    assert due is not None
    out = play.at(due)
    assert [action.signal for action in out if isinstance(action, a.SignalRanks)] == ["TERM"]
    assert play.kinds() == [FailureKind.RAISED]


def test_a_second_exception_is_judged_anew() -> None:
    play = Play().running()
    play.say(note("last-words"), note("leaving"), note("last-words", at=950.0))
    play.at(play.now + 60)
    assert play.doing == Doing.RUNNING


def test_final_words_take_the_place_of_those_it_was_given_up_for() -> None:
    play = Play().running()
    play.say(note("last-words"), note("leaving"))
    play.at(play.now + 0.3)
    play.say(note("last-words", final=True, message="whole", exit_code=1), exited(1, 1))
    (failure,) = play.machine.state.failures()
    assert (failure.message, failure.exit_code, failure.at) == ("whole", 1, 900.0)


def test_an_exception_of_a_thread_is_the_cause_of_an_exit_with_a_code_and_of_nothing_else() -> None:
    play = Play().running()
    play.say(note("thread-ended", thread="prefetch"))
    assert play.doing == Doing.RUNNING
    play.say(exited(1, 3))
    (failure,) = play.machine.state.failures()
    assert (failure.kind, failure.exception, failure.exit_code) == (FailureKind.RAISED, "ValueError", 3)
    play = Play().running()
    play.say(note("thread-ended", thread="prefetch"), exited(1, signal="SIGKILL"))
    assert play.kinds() == [FailureKind.SIGNALED]


def test_each_survivors_log_says_last_whose_fault_ended_it() -> None:
    play = Told().running()
    assert isinstance(play, Told)
    play.say(note("last-words"), note("leaving"))
    play.at(play.now + 0.3)
    play.say(ending(1, End.KILL), e.Signalled([0, 1], 950.0))
    play.say(exited(0, signal="SIGKILL"), exited(1, signal="SIGKILL"), e.Swept([]))
    assert play.told == {
        0: "ended by zrun (SIGKILL): why",
        1: "ended by zrun while its cleanup still ran: why",
    }


def test_what_a_rank_had_caught_is_noticed_and_no_cause() -> None:
    play = Told().running()
    play.say(note("last-words"), note("handled"), ending(1, End.KILL), e.Signalled([0, 1], 950.0))
    play.say(exited(0, signal="SIGKILL"), exited(1, signal="SIGKILL"))
    assert play.kinds() == [FailureKind.ENDED_BY_US, FailureKind.ENDED_BY_US]
    noticed = {failure.rank: failure.noticed for failure in play.machine.state.failures()}
    assert noticed == {0: None, 1: "had caught ValueError: x (train.py:9)"}


def test_who_sits_in_an_except_clause_is_told_of_as_such_once_the_others_fail() -> None:
    play = Told().running()
    play.say(note("last-words"), note("leaving"), note("caught"))
    play.at(play.now + 60)
    assert play.doing == Doing.RUNNING
    play.say(ending(1, End.KILL), e.Signalled([0, 1], 950.0))
    play.say(exited(0, signal="SIGKILL"), exited(1, signal="SIGKILL"))
    first, _ = play.machine.state.failures()
    assert (first.rank, first.noticed) == (1, "was still handling ValueError: x (train.py:9)")
    assert isinstance(play, Told)
    assert play.told[1] == "ended by zrun while it was still handling ValueError: x (train.py:9): why"


def test_who_was_killed_from_outside_has_that_in_its_log() -> None:
    play = Told().running()
    play.say(exited(1, signal="SIGKILL"))
    assert isinstance(play, Told)
    assert play.told == {1: "killed by SIGKILL, not by zrun"}
    play.say(exited(0, 7), e.Swept([]))
    assert play.told[0] == "exited with code 7, not ended by zrun"


def test_who_followed_with_words_of_its_own_is_told_whom_it_followed() -> None:
    play = Told().running()
    play.say(note("last-words", rank=0, final=True), exited(0, 1), ending(1, End.KILL))
    play.say(exited(1, signal="SIGKILL"), e.Swept([]))
    assert isinstance(play, Told)
    assert play.told[0] == "it ended by itself; the attempt ended because of why"


def test_who_ended_well_is_told_nothing() -> None:
    play = Told().running()
    play.say(exited(0, 0), exited(1, 0), e.Swept([]))
    assert isinstance(play, Told)
    assert play.told == {}
