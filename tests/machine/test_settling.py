"""How long better evidence is waited for once a rank has failed."""

from tests.machine.playbook import After, ended, gives, heard, opens, raised, records, running, spec_of

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 10\nValueError: bad sample\n'
CLOSED = "[pair.cc:553] Connection closed by peer [127.0.0.1]:1234"


def test_a_rank_that_told_what_it_raised_is_not_kept_waiting_for() -> None:
    play = running(spec_of(2), "ab")
    play >> ended("a", 1, raised(1, traceback=TRACE)) << opens("crash", "ValueError")
    play << records("cause-certain") << gives("a", collects=1) << gives("b", collects=1)
    play >> heard("a", "failed", 1, settled=False)
    play >> After(0.25)
    play >> After(0.1) << gives("a", ends="kill") << gives("b", ends="kill")
    play.done()


def test_words_that_only_speak_of_a_peer_are_waited_for_a_second() -> None:
    play = running(spec_of(2), "ab")
    echo = raised(0, "RuntimeError", message=CLOSED, traceback=TRACE, collective="all_reduce #3")
    play >> ended("a", 1, echo) << opens("crash", "RuntimeError")
    play << gives("a", collects=1) << gives("b", collects=1)
    play >> heard("a", "failed", 1, settled=False)
    play >> After(0.9)
    play >> After(0.2) << gives("a", ends="kill") << gives("b", ends="kill")
    play.done()


def test_a_cause_that_comes_after_its_echo_shortens_the_wait() -> None:
    play = running(spec_of(2), "ab")
    echo = raised(0, "RuntimeError", message=CLOSED, traceback=TRACE, collective="all_reduce #3")
    play.given(ended("a", 1, echo), heard("a", "failed", 1, settled=False), After(0.2))
    play >> ended("b", 1, raised(2, node="b", at=0.5, traceback=TRACE)) << records("cause-certain")
    play.given(heard("b", "failed", 1, settled=False))
    play >> After(0.25)
    play >> After(0.1) << gives("a", ends="kill") << gives("b", ends="kill")
    job = play.done()
    assert job.open_incident is not None
    assert job.open_incident.verdict is not None
    assert job.open_incident.verdict.rank == 2
