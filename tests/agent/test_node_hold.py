"""When ranks are asked for their state before they are ended, and how long that is waited for. By playbook."""

from dataclasses import replace
from typing import Any

from tests.agent.test_node_machine import Play, deck, ending, exited

from zrun.agent import node_actions as a
from zrun.agent import node_events as e
from zrun.agent.node_hold import HOLD_S
from zrun.core.deck import StopKind
from zrun.core.notes import NoteKind
from zrun.wire.order import End


def note(rank: int, kind: NoteKind, **fields: Any) -> e.NoteRead:
    return e.NoteRead(rank, {"kind": kind.value, "at": 1.0, **fields})


def able() -> Play:
    play = Play().running()
    play.say(note(0, NoteKind.HOLDS), note(1, NoteKind.HOLDS))
    beat(play)
    return play


def beat(play: Play, *ranks: int) -> None:
    for rank in ranks or (0, 1):
        play.say(e.DecksRead({rank: replace(deck(rank), beat_at=play.now)}))


def asked(out: list[a.NodeAction]) -> int:
    return sum(isinstance(action, a.WriteOrderPages) and action.ask.kind == StopKind.HOLD for action in out)


def killed(out: list[a.NodeAction]) -> bool:
    return any(isinstance(action, a.KillAll) for action in out)


def test_survivors_are_asked_once_and_ended_only_when_they_have_answered() -> None:
    play = able()
    out = play.say(exited(1, signal="SIGKILL"))
    assert asked(out) == 1
    assert not killed(play.say(ending(1, End.KILL)))
    out = play.say(note(0, NoteKind.HELD, step=12, bytes=100))
    assert killed(out)
    assert not asked(out)


def test_nobody_is_waited_for_longer_than_it_takes_to_begin() -> None:
    play = able()
    play.say(exited(1, signal="SIGKILL"))
    asked_at = play.now
    assert not killed(play.say(ending(1, End.KILL)))
    until = play.machine.deadline()
    assert until is not None
    assert asked_at < until <= asked_at + HOLD_S
    assert killed(play.at(until))


def test_a_large_state_gets_the_time_that_its_bytes_take() -> None:
    play = able()
    play.say(exited(1, signal="SIGKILL"), ending(1, End.KILL))
    play.say(note(0, NoteKind.HOLDING, bytes=1_000_000_000))
    assert not killed(play.at(play.now + HOLD_S + 1.0))
    assert killed(play.say(note(0, NoteKind.HELD, step=12)))


def test_a_rank_that_stands_still_is_not_waited_for() -> None:
    play = able()
    play.at(play.now + 5.0)
    assert killed(play.say(exited(1, signal="SIGKILL"), ending(1, End.KILL)))


def test_a_fault_elsewhere_is_a_reason_too_and_a_stop_is_not() -> None:
    play = able()
    assert asked(play.say(ending(1, End.KILL, keep=True))) == 1
    play = able()
    out = play.say(ending(1, End.KILL))
    assert not asked(out)
    assert killed(out)


def test_ranks_without_a_place_for_their_state_are_ended_as_ever() -> None:
    play = Play().running()
    out = play.say(exited(1, signal="SIGKILL"), ending(1, End.KILL))
    assert not asked(out)
    assert killed(out)


def test_a_rank_that_dies_instead_of_answering_is_not_waited_for() -> None:
    play = able()
    play.say(exited(1, signal="SIGKILL"), ending(1, End.KILL))
    assert killed(play.say(exited(0, signal="SIGSEGV")))
