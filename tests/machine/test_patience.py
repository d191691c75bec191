"""Between the naming of a suspect and its end: only time in which its files do not move counts."""

from msgspec.structs import replace
from tests.machine.playbook import After, ended, gives, killed, opens, records, running, spec_of, suspects

from zrun.machine.events import RollCalled
from zrun.machine.faults import BUSY_S, PATIENCE_S
from zrun.machine.moves import Stage
from zrun.spec.job import Watchdog

PATIENT = spec_of(watchdog=Watchdog(patience_s=30.0))


def test_a_busy_suspect_is_named_and_not_ended() -> None:
    play = running(PATIENT)
    play >> suspects(1, busy=True) << opens("hang", suspicion=True) << gives("a", collects=1)
    play >> After(300.0)
    assert play.job.stage is Stage.RUNNING
    assert "it reads or writes files" in play.job.reason
    play.done()


def test_patience_runs_on_from_where_it_was_when_the_suspect_is_idle_again() -> None:
    play = running(PATIENT)
    play.given(suspects(1), After(20.0), suspects(1, busy=True), After(100.0), suspects(1))
    play >> After(9.0)
    assert play.job.stage is Stage.RUNNING
    play >> After(2.0) << records("patience-over")
    assert play.job.stage is not Stage.RUNNING
    play.given(After(5.0))


def test_moving_files_do_not_save_a_suspect_for_ever() -> None:
    play = running(PATIENT)
    play.given(suspects(1, busy=True), After(BUSY_S - 1.0))
    assert play.job.stage is Stage.RUNNING
    play.given(After(2.0))
    assert play.job.stage is not Stage.RUNNING


def test_proof_does_not_wait_for_files() -> None:
    play = running(PATIENT)
    play.given(suspects(1, busy=True), suspects(1, provable=True))
    assert play.job.stage is Stage.SETTLING


def test_one_whose_native_code_holds_the_interpreter_has_twice_the_patience_unless_it_is_stated() -> None:
    held = replace(suspects(1), kind="gil-held")
    play = running()
    play.given(held, After(1.9 * PATIENCE_S))
    assert play.job.stage is Stage.RUNNING
    play.given(After(0.2 * PATIENCE_S))
    assert play.job.stage is not Stage.RUNNING
    stated = running(PATIENT)
    stated.given(held, After(31.0))
    assert stated.job.stage is not Stage.RUNNING


def test_a_slow_suspect_is_never_ended() -> None:
    play = running(PATIENT)
    play >> replace(suspects(1, busy=True), kind="slow") << opens("hang", suspicion=True) << gives("a", collects=1)
    play.given(After(10 * BUSY_S))
    assert play.job.stage is Stage.RUNNING
    assert "slow is not hung" in play.job.reason


def test_what_the_roll_call_tells_of_a_failure_is_among_its_reasons() -> None:
    play = running()
    play.given(ended("a", 1, killed(0)))
    because = ["different sizes in all_reduce #40: rank 0 32 bytes; rank 1 64 bytes"]
    play.given(RollCalled(1, because))
    [incident] = play.job.incidents
    assert incident.verdict is not None
    assert incident.verdict.because[1] == because[0]


def test_a_busy_suspect_that_moves_again_was_a_false_alarm() -> None:
    play = running(PATIENT)
    play.given(suspects(1, busy=True), After(10.0), suspects(1, cleared=True), After(BUSY_S))
    assert play.job.stage is Stage.RUNNING
    assert not play.job.timers
    play.done()
