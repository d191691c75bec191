"""What people ask for, and what hangs lead to: stop, preempt, restart, save; suspicion, patience, proof."""

import pytest
from tests.machine.playbook import (
    After,
    Playbook,
    asks,
    closes,
    committed,
    ended,
    fails,
    finishes,
    gives,
    goes_on,
    heard,
    killed,
    opens,
    raised,
    records,
    running,
    says,
    silent,
    spec_of,
    submitted,
    suspects,
    verified,
)

from zrun.core.states import FaultClass, JobState
from zrun.machine.events import CoordinatorStarted, DurationOver, SaveFailed, Suspended
from zrun.machine.moves import Stage
from zrun.spec.job import JobSpec, Preempt, Watchdog


def test_stop_lets_all_ranks_save_first() -> None:
    play = running(spec_of(stop_grace_s=90.0))
    play >> asks("stop") << says(JobState.STOPPING, "stop was asked for by a person") << gives("a", ends="save")
    assert play.job.wish is not None
    assert play.job.wish.within_s == 90.0
    play >> committed(1, 61)
    play >> heard("a", "finished", 1, stopped_at=61)
    play << finishes(JobState.STOPPED, "all ranks stopped after step 61 and saved it", timed_out=False)
    play << gives("a", release=True)
    assert play.done().attempts[0].outcome == "stopped"


def test_stop_before_anything_runs_comes_at_once() -> None:
    play = Playbook()
    play >> submitted(play.spec) >> asks("stop") << finishes(JobState.STOPPED, "no process was alive")
    play.done()


def test_stop_at_once_kills() -> None:
    play = running()
    play >> committed(1, 50)
    play >> asks("stop_now") << gives("a", ends="kill")
    play >> heard("a", "idle", 1) << finishes(JobState.STOPPED, "the newest checkpoint is step 50")
    play << gives("a", release=True)
    play.done()


def test_a_second_stop_at_once_hastens_the_first() -> None:
    play = running()
    play >> asks("stop") << gives("a", ends="save")
    play >> asks("stop") << records("command-ignored")
    play >> asks("stop_now") << gives("a", ends="kill")
    play.done()


def test_a_stop_that_takes_too_long_is_ended_at_once() -> None:
    play = running(spec_of(stop_grace_s=10.0))
    play.given(asks("stop"))
    play >> After(14.9)
    play >> After(0.2) << gives("a", ends="kill")
    play.done()


def test_a_fault_while_stopping_ends_in_the_asked_for_state_and_says_what_was_saved() -> None:
    play = running()
    play.given(committed(1, 50), asks("stop"))
    play >> ended("a", 1, raised(1)) << opens("crash") << gives("a", ends="kill", collects=1)
    play >> heard("a", "failed", 1) << gives("a", ends="kill")  # told again: it does not look ended
    play >> heard("a", "idle", 1) << closes("the job ended STOPPED") << finishes(JobState.STOPPED, "meanwhile rank 1")
    play << gives("a", release=True)
    assert "not saved on the way out, the newest checkpoint is step 50" in play.done().reason


def test_a_failed_save_on_the_way_out_is_told() -> None:
    play = running()
    play.given(committed(1, 50), asks("stop"), SaveFailed(1, 61, "No space left on device", disk_full=True))
    play >> heard("a", "finished", 1, stopped_at=61)
    play << finishes(JobState.STOPPED, "the last save failed (No space left on device), the newest checkpoint is step")
    play << gives("a", release=True)
    play.done()


def test_stop_during_recovery_does_not_start_again() -> None:
    play = running()
    play.given(ended("a", 1, killed(1)), heard("a", "failed", 1))
    play >> asks("stop") << says(JobState.STOPPING)
    play >> heard("a", "idle", 1) << closes() << finishes(JobState.STOPPED) << gives("a", release=True)
    play.done()


def test_stop_during_backoff_comes_at_once() -> None:
    play = fails(running(), 1, killed(1))
    assert play.job.stage is Stage.RETRYING
    play >> asks("stop") << closes() << finishes(JobState.STOPPED, "no process was alive")
    play << gives("a", release=True)
    play.done()


def test_preempt_saves_within_the_shorter_of_notice_and_grace() -> None:
    play = running(spec_of(preempt=Preempt(grace_s=600.0)))
    play >> asks("preempt", within_s=30.0) << gives("a", ends="save")
    assert play.job.wish is not None
    assert play.job.wish.within_s == 30.0
    play >> heard("a", "idle", 1, stopped_at=61) << finishes(JobState.PREEMPTED, "stopped after step 61 and saved it")
    play << gives("a", release=True)
    assert play.done().attempts[0].outcome == "preempted"


def test_sigterm_from_outside_preempts_the_whole_job() -> None:
    play = running()
    play >> heard("a", "running", 1, term_seen=True) << gives("a", ends="save")
    play >> heard("a", "stopping", 1, term_seen=True)
    play >> heard("a", "finished", 1, term_seen=True, stopped_at=9) << finishes(JobState.PREEMPTED, "SIGTERM came")
    play << gives("a", release=True)
    play.done()


def test_a_leaving_node_that_is_the_whole_job_preempts_it() -> None:
    play = running()
    play >> heard("a", "running", 1, leaving_in_s=45.0) << gives("a", ends="save")
    assert play.job.wish is not None
    assert (play.job.wish.what, play.job.wish.within_s) == ("preempt", 45.0)
    play.done()


def test_a_leaving_node_of_several_is_replaced_after_a_save() -> None:
    play = running(spec_of(nodes=2), nodes="ab")
    play.given(heard("c"))
    play >> heard("b", "running", 1, leaving_in_s=45.0) << opens("preemption", "b leaves in 45 s")
    play << gives("a", ends="save") << gives("b", ends="save")
    play.given(heard("a", "idle", 1, stopped_at=70), heard("b", "idle", 1, stopped_at=70, leaving_in_s=40.0))
    job = play.done()
    assert job.attempts[1].nodes == ("a", "c")


def test_restart_saves_and_begins_a_new_attempt_without_charge() -> None:
    play = running()
    play >> asks("restart") << says(JobState.RECOVERING, "a new attempt was asked for") << gives("a", ends="save")
    play >> heard("a", "finished", 1, stopped_at=61)
    assert play.job.stage is Stage.RETRYING
    play >> heard("a", "idle", 1, stopped_at=61) << gives("a", run=2)
    job = play.done()
    assert (job.incidents, job.spent.restarts, job.attempts[1].cause) == ([], 0, "asked for")


def test_restart_during_backoff_does_not_wait_longer() -> None:
    play = fails(running(), 1, killed(1))
    play >> asks("restart") << gives("a", run=2)
    play.done()


def test_restart_of_a_job_that_is_over_points_to_resume() -> None:
    play = running()
    play.given(heard("a", "finished", 1))
    play >> asks("restart") << records("command-ignored")
    play.done()


@pytest.mark.parametrize("how", ["stop", "preempt"])
def test_resume_continues_what_was_ended(how: str) -> None:
    play = running()
    play.given(asks(how), heard("a", "idle", 1, stopped_at=61), CoordinatorStarted())
    play >> asks("resume") << says(JobState.PENDING, "a was not heard since the coordinator began")
    play >> heard("a", boot="a2") << gives("a", run=2, boot="a2")
    play.done()


def test_a_resumed_job_may_begin_on_another_node() -> None:
    play = running()
    play.given(asks("preempt"), heard("a", "idle", 1, stopped_at=61), CoordinatorStarted(), asks("resume"))
    play >> heard("other") << gives("other", run=2)
    play.done()


def test_save_is_ordered_and_the_job_goes_on() -> None:
    play = running()
    play >> asks("save") << gives("a", run=1, save=1)
    play >> asks("save") << gives("a", run=1, save=2)
    assert play.done().state is JobState.RUNNING


def test_max_duration_stops_the_job_as_timed_out() -> None:
    play = running()
    play >> DurationOver() << gives("a", ends="save")
    play >> heard("a", "idle", 1, stopped_at=61) << finishes(JobState.STOPPED, "time: max_duration", timed_out=True)
    play << gives("a", release=True)
    play.done()


def test_stop_at_once_gives_up_a_silent_node_because_a_person_says_so() -> None:
    play = running()
    play.given(silent("a"), asks("stop"), After(600.0))
    assert play.job.state is JobState.STOPPING  # time alone gives nobody up
    play >> asks("stop_now") << finishes(JobState.STOPPED, "a did not answer") << gives("a", release=True)
    play.done()


def test_a_suspicion_is_named_at_once_and_acted_on_when_patience_is_over() -> None:
    play = running(_patient(2.0))
    play >> suspects(1) << opens("hang", "rank 1 not there: data.py:10", suspicion=True)
    play << gives("a", run=1, collects=1) << says(JobState.RUNNING, "not proved, so it has 2 s")
    play >> heard("a", "running", 1, collected=1)
    play >> After(1.9)
    play >> After(0.2) << gives("a", ends="kill", collects=1)
    play.given(heard("a", "idle", 1, collected=1, step=60))
    job = play.done()
    assert job.incidents[0].fault is FaultClass.HANG
    assert job.incidents[0].detected_s == 2.5
    assert not job.incidents[0].suspicion
    assert job.attempt == 2


def test_a_suspicion_that_clears_is_a_false_alarm_and_teaches_patience() -> None:
    play = running()
    for _ in range(2):
        play.given(suspects(1))
        play >> After(17.5)
        (
            play
            >> suspects(1, cleared=True)
            << closes("false alarm: it moved again after 20.0 s")
            << gives("a", collects=0)
        )
    play.given(suspects(1))
    assert play.machine.deadline() - play.now == pytest.approx(60.0, abs=0.1)  # 3 x the longest pause
    play >> After(59.0)
    assert play.job.state is JobState.RUNNING
    play.done()


def test_without_experience_patience_is_half_a_minute() -> None:
    play = running()
    play.given(suspects(1))
    assert play.machine.deadline() - play.now == pytest.approx(30.0)
    play.done()


def test_a_proved_hang_collects_evidence_before_the_kill_but_waits_for_it_only_so_long() -> None:
    play = running()
    play >> suspects(1, provable=True) << opens("hang") << gives("a", run=1, collects=1)
    play >> After(2.9)
    play >> After(0.2) << gives("a", ends="kill")
    play.done()


def test_a_suspicion_that_gets_proved_is_acted_on_in_the_same_incident() -> None:
    play = running()
    play.given(suspects(1))
    play >> suspects(1, provable=True) << says(JobState.RECOVERING)
    play >> heard("a", "running", 1, collected=1) << gives("a", ends="kill")
    assert len(play.done().incidents) == 1


def test_a_crash_while_suspected_takes_the_incident_over() -> None:
    play = running()
    play.given(suspects(1))
    play >> ended("a", 1, raised(1))
    play >> heard("a", "failed", 1, collected=1) << gives("a", ends="kill")
    job = play.done()
    assert [i.fault for i in job.incidents] == [FaultClass.CRASH]


def test_on_hang_notify_only_names_it() -> None:
    play = running(_watching(on_hang="notify"))
    play >> suspects(1, provable=True) << opens("hang", suspicion=True) << gives("a", run=1, collects=1)
    play >> After(600.0)
    assert play.done().state is JobState.RUNNING


def test_on_hang_stop_ends_the_job() -> None:
    play = running(_watching(on_hang="stop"))
    play.given(suspects(1, provable=True), heard("a", "running", 1, collected=1), heard("a", "idle", 1, step=60))
    job = play.done()
    assert job.state is JobState.FAILED
    assert "watchdog.on_hang is stop" in job.reason


def test_a_suspended_job_is_not_hung_and_its_patience_starts_anew() -> None:
    play = running()
    play.given(suspects(1))
    play >> Suspended(1, stopped=True) << closes("not a hang") << gives("a", collects=0)
    play >> After(100.0)
    play >> Suspended(1, stopped=False) << says(JobState.RUNNING)
    play.done()


def test_the_same_hang_twice_without_progress_is_deterministic() -> None:
    play = running()
    play.given(verified(1, 60))
    for attempt in (1, 2):
        play.given(suspects(attempt, provable=True), After(3.0), heard("a", "idle", attempt))
        if attempt == 1:
            goes_on(play, 2, 50)
    assert "deterministic" in play.done().reason


def _watching(**watchdog: object) -> JobSpec:
    return spec_of(watchdog=Watchdog(**watchdog))  # type: ignore[arg-type]


def _patient(seconds: float) -> JobSpec:
    return _watching(patience_s=seconds)
