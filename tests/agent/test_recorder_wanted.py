"""When a node has the recorder built: in the background, once an attempt, and only if Python has to record."""

from tests.agent.test_node_machine import Play, deck

from zrun.agent import node_actions as a
from zrun.agent import node_events as e
from zrun.core.deck import Flag

IN_PYTHON = Flag.SESSION | Flag.RECORDER


def wanted(play: Play, flags: Flag, completed: int) -> bool:
    out = play.say(e.DecksRead({rank: deck(rank, flags=flags, completed=completed) for rank in range(2)}))
    return any(isinstance(action, a.BuildRecorder) for action in out)


def test_it_is_wanted_once_all_ranks_step_and_only_once() -> None:
    play = Play().running()
    assert not wanted(play, IN_PYTHON, 0)
    assert wanted(play, IN_PYTHON, 1)
    assert not wanted(play, IN_PYTHON, 2)


def test_ranks_that_have_it_or_record_nothing_want_no_other() -> None:
    assert not wanted(Play().running(), IN_PYTHON | Flag.BUILT_RECORDER, 1)
    assert not wanted(Play().running(), Flag.SESSION, 1)
