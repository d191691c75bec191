"""How attempts begin, get going, survive the loss of ranks and nodes, and finish."""

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
    gone,
    heard,
    killed,
    opens,
    raised,
    running,
    says,
    silent,
    spec_of,
    started,
    submitted,
    verified,
)

from zrun.core.failure import Failure, FailureKind
from zrun.core.states import FaultClass, JobState
from zrun.machine.events import AttemptStarted, CoordinatorStarted, SaveFailed, Suspended
from zrun.spec.job import Restart


def test_a_job_waits_for_nodes_and_says_which_are_missing() -> None:
    play = Playbook(spec_of(nodes=2))
    play >> submitted(play.spec) << says(JobState.PENDING, "waiting for 2 more nodes: 0 of 2 ready")
    play >> heard("a") << says(JobState.PENDING, "waiting for 1 more node: 1 of 2 ready")
    play >> gone("b")
    play >> heard("b") << says(JobState.STARTING, "attempt 1 on a, b") << gives("a", run=1) << gives("b", run=1)
    job = play.done()
    assert [seat.node_rank for seat in job.attempts[0].seats] == [0, 1]


def test_a_node_that_another_job_holds_is_not_chosen() -> None:
    play = Playbook(spec_of(nodes=2))
    play >> submitted(play.spec) >> heard("a") >> gone("a", "busy with llama-1234") >> heard("b")
    assert "1 of 2 ready (a is gone: busy with llama-1234)" in play.job.reason
    play >> heard("a") << gives("a", run=1) << gives("b", run=1)
    play.done()


def test_one_node_runs_to_the_end() -> None:
    play = Playbook(spec_of(setup="make"))
    play >> submitted(play.spec) >> heard("a") << gives("a", run=1)
    play >> heard("a", "setup", 1) << says(JobState.SETUP, "setup commands run on a")
    play >> heard("a", "starting", 1) << says(JobState.STARTING)
    play >> heard("a", "running", 1) >> started(1) << says(JobState.RUNNING, "began at step 1")
    play >> verified(1, 2000)
    play >> heard("a", "finished", 1) << finishes(JobState.SUCCEEDED, "code 0 at step 2000") << gives("a", release=True)
    job = play.done()
    assert job.attempts[0].outcome == "finished"
    assert job.incidents == []


def test_all_nodes_have_to_finish_before_the_job_has() -> None:
    play = running(spec_of(nodes=2), nodes="ab")
    play >> heard("a", "finished", 1)
    assert play.job.state is JobState.RUNNING
    play.given(heard("b", "finished", 1))
    assert play.done().state is JobState.SUCCEEDED


def test_an_attempt_that_only_lived_is_put_right_when_its_slow_imports_are_over() -> None:
    play = fails(running().given(committed(1, 50), verified(1, 60)), 1, killed(1), step=60)
    play.given(heard("a", "running", 2), AttemptStarted(2, 0, None))
    assert (play.job.incidents[0].steps_lost, play.job.attempts[1].resumed_step) == (0, None)
    play.given(started(2, resumed=50))
    assert (play.job.incidents[0].steps_lost, play.job.attempts[1].resumed_step) == (10, 50)
    assert play.job.reason == "attempt 2 resumed at step 50"


def test_a_killed_rank_is_named_and_the_next_attempt_resumes() -> None:
    play = running()
    play >> committed(1, 50) >> verified(1, 60)
    (
        play
        >> ended("a", 1, killed(1), age_s=0.02)
        << opens("crash", "rank 1: killed by SIGKILL")
        << gives("a", collects=1)
    )
    play >> heard("a", "failed", 1, step=60) << says(JobState.RECOVERING) << gives("a", ends="kill", collects=1)
    play >> heard("a", "stopping", 1, step=60)
    play >> heard("a", "idle", 1, step=60) << gives("a", run=2)
    play >> heard("a", "running", 2)
    play >> After(1.0)
    play >> started(2, resumed=50) << closes("attempt 2 resumed at step 50") << says(JobState.RUNNING, "resumed")
    job = play.done()
    incident = job.incidents[0]
    assert (incident.steps_lost, incident.detected_s) == (10, 0.02)
    assert incident.recovered_s == pytest.approx(1.05)
    assert incident.verdict is not None
    assert incident.verdict.rank == 1
    assert incident.decision == "crash restart 1 of 5"
    first, second = job.attempts
    assert (first.outcome, first.incident, first.last_step) == ("fault", 1, 61)
    assert (second.first_step, second.resumed_step, second.resumed_tier) == (51, 50, "disk")


def test_the_failed_report_before_the_failure_itself_waits_for_it() -> None:
    play = running()
    play >> heard("a", "failed", 1) << opens("crash", "a rank on a ended badly") << gives("a", run=1, collects=1)
    play >> ended("a", 1, raised(0)) << gives("a", ends="kill")
    assert play.done().incidents[0].headline.startswith("rank 0: ValueError: bad sample")


def test_unsettled_evidence_is_waited_for_but_only_a_second() -> None:
    play = running()
    play >> ended("a", 1, raised(0)) << opens("crash") << gives("a", run=1, collects=1)
    play >> heard("a", "failed", 1, settled=False)
    play >> After(0.9)
    play >> After(0.2) << gives("a", ends="kill")
    play.done()


def test_a_cause_that_comes_after_its_echo_is_the_one_named() -> None:
    play = running(spec_of(nodes=2), nodes="ab")
    echo = raised(0, "RuntimeError", message="Connection closed by peer [127.0.0.1]:30127", at=1.0, step=61)
    play >> ended("a", 1, echo) << opens("crash") << gives("a", collects=1) << gives("b", collects=1)
    play >> heard("a", "failed", 1)  # only an echo so far: nobody is ended yet
    play >> ended("b", 1, killed(2, "b", at=1.5))
    play >> heard("b", "failed", 1) << gives("a", ends="kill") << gives("b", ends="kill")
    job = play.done()
    assert job.incidents[0].verdict is not None
    assert (job.incidents[0].verdict.rank, job.incidents[0].verdict.node) == (2, "b")
    assert job.incidents[0].verdict.followed == (0,)


def test_evidence_that_comes_while_ranks_are_ended_still_changes_the_verdict() -> None:
    play = fails_twice_told()
    job = play.done()
    assert job.incidents[0].headline.startswith("rank 1: ValueError")


def fails_twice_told() -> Playbook:
    play = running()
    play.given(ended("a", 1, killed(1, at=5.0)), heard("a", "failed", 1))
    play >> ended("a", 1, raised(1, at=4.0))
    play.given(heard("a", "idle", 1))
    return play


def test_what_we_ended_ourselves_is_not_a_fault() -> None:
    play = running()
    play >> ended("a", 1, Failure(0, "a", FailureKind.ENDED_BY_US, 1.0, signal="SIGTERM"))
    assert play.done().incidents == []


def test_news_of_an_older_attempt_changes_nothing() -> None:
    play = goes_on(fails(running(), 1, killed(1), step=60), 2)
    play >> ended("a", 1, raised(0)) >> started(1)
    assert play.done().state is JobState.RUNNING


def test_a_restarted_agent_with_nothing_running_is_a_lost_node() -> None:
    play = running()
    play >> heard("a", boot="a2") << opens("node", "began anew")
    play << says(JobState.STARTING, "attempt 2") << gives("a", boot="a2", run=2)
    job = play.done()
    assert job.incidents[0].decision == "node restarts are unlimited"


def test_a_restarted_agent_that_says_it_runs_our_attempt_is_believed() -> None:
    play = running()
    play >> heard("a", "running", 1, boot="a2") << gives("a", boot="a2", run=1)
    assert play.job.state is JobState.RUNNING
    play >> heard("a", "finished", 1, boot="a2") << finishes(JobState.SUCCEEDED) << gives("a", release=True)
    play.done()


def test_the_word_of_an_agents_dead_self_is_not_believed() -> None:
    play = running()
    play.given(heard("a", boot="a2"))
    play >> heard("a", "finished", 2, boot="a1")
    assert play.done().state is JobState.STARTING


def test_an_idle_report_from_before_the_order_is_not_a_fault_and_is_told_again() -> None:
    play = Playbook()
    play >> submitted(play.spec) >> heard("a") << gives("a", run=1)
    play >> heard("a", seen=0, settled=False) << gives("a", run=1)
    assert play.done().incidents == []


def test_workers_that_their_agent_ended_are_gone() -> None:
    play = running(spec_of(nodes=2), nodes="ab")
    play >> heard("b", "idle", 1) << opens("node", "the workers on b are gone") << gives("a", ends="kill", collects=1)
    play << gives("b", ends="kill")
    play.done()


def test_a_silent_node_of_two_is_lost_and_the_next_attempt_waits_for_the_other() -> None:
    play = running(spec_of(nodes=2), nodes="ab")
    play.given(heard("c"))
    play >> silent("b") << opens("node", "nothing was heard of b") << gives("a", ends="kill") << gives("b", ends="kill")
    play >> heard("a", "idle", 1) << gives("a", run=2) << gives("c", run=2)
    assert play.done().attempts[1].nodes == ("a", "c")


def test_a_cut_off_node_is_waited_for_until_its_lease_ran_out() -> None:
    play = running(spec_of(nodes=2), nodes="ab")
    play.given(heard("c"))
    play.given(verified(1, 60), ended("a", 1, killed(0)), heard("a", "failed", 1), heard("a", "idle", 1))
    assert "waiting for b (running)" in play.job.reason
    play >> gone("b")
    play >> After(2.9)
    assert play.job.attempt == 1
    play >> After(0.2) << gives("a", run=2) << gives("c", run=2)
    play.done()


def test_a_goodbye_alone_ends_nothing_before_the_lease() -> None:
    play = running(spec_of(nodes=2), nodes="ab")
    play >> gone("b")
    play >> After(1.0)
    play >> heard("b", "running", 1)
    play >> After(10.0)
    assert play.done().incidents == []


def test_a_lost_node_that_comes_back_with_old_workers_is_told_to_end_them() -> None:
    play = running(spec_of(nodes=2), nodes="ab")
    play.given(heard("c"), silent("b"), heard("a", "idle", 1))
    play >> heard("b", "running", 1) << gives("b", ends="kill", attempt=1)
    assert play.done().attempt == 2


def test_before_the_next_attempt_a_node_with_old_workers_is_waited_for() -> None:
    play = running(spec_of(nodes=2), nodes="ab")
    play.given(silent("b"), heard("a", "idle", 1))
    assert "waiting for 1 more node: 1 of 2 ready (b is silent)" in play.job.reason
    play.given(heard("b", "running", 1))
    assert "waiting until attempt 1 is surely over: b (running, attempt 1)" in play.job.reason
    play >> heard("b", "idle", 1) << gives("a", run=2) << gives("b", run=2)
    play.done()


def test_a_silent_node_is_not_moved_away_from_when_the_job_lives_on_it_alone() -> None:
    play = running()
    play.given(heard("b"))
    play >> silent("a") << says(JobState.RUNNING, "its agent is waited for (restart.fence: confirm)")
    play >> After(600.0)
    play >> heard("a", "running", 1)
    job = play.done()
    assert (job.state, job.incidents) == (JobState.RUNNING, [])


def test_with_fence_lease_a_one_node_job_is_moved() -> None:
    play = running(spec_of(restart=Restart(fence="lease")))
    play.given(heard("b"))
    play >> silent("a") << opens("node") << gives("a", ends="kill") << gives("b", run=2)
    play.done()


def test_a_restarted_coordinator_gives_nodes_time_before_it_calls_them_silent() -> None:
    play = running(spec_of(nodes=2), nodes="ab")
    play >> CoordinatorStarted()
    play >> silent("b")
    play >> After(12.9)
    assert play.job.incidents == []
    play >> heard("a", "running", 1)
    play >> After(1.0) << opens("node") << gives("a", ends="kill") << gives("b", ends="kill")
    play.done()


def test_a_restarted_coordinator_starts_nothing_before_the_old_agents_reported() -> None:
    play = running(spec_of(nodes=2), nodes="ab")
    play.given(heard("c"), verified(1, 60), ended("a", 1, killed(0)), heard("a", "failed", 1))
    play >> CoordinatorStarted()
    play >> heard("a", "idle", 1) >> heard("c")
    assert "b (not heard again yet)" in play.job.reason
    play >> After(12.0)
    assert play.job.attempt == 1
    play >> After(1.5) << gives("a", run=2) << gives("c", run=2)
    play.done()


def test_a_job_whose_nodes_come_back_after_a_coordinator_restart_simply_goes_on() -> None:
    play = running()
    play >> CoordinatorStarted() >> heard("a", "running", 1)
    play >> After(60.0)
    assert (play.done().state, play.job.incidents) == (JobState.RUNNING, [])


def test_an_attempt_that_does_not_get_going_closes_the_incident_before_it() -> None:
    play = fails(running(), 1, killed(1), step=60)
    play >> ended("a", 2, raised(0, step=None, phase="setup")) << closes("did not get going either: see incident 2")
    play << opens("crash") << gives("a", run=2, collects=2)
    assert [i.open for i in play.done().incidents] == [False, True]


def test_suspended_is_shown_and_is_no_fault() -> None:
    play = running()
    play >> Suspended(1, stopped=True) << says(JobState.SUSPENDED, "stopped from outside")
    play >> After(600.0)
    play >> Suspended(1, stopped=False) << says(JobState.RUNNING, "runs again")
    assert play.done().incidents == []


def test_a_job_that_ends_before_its_first_verified_step_has_succeeded_all_the_same() -> None:
    play = Playbook()
    play.given(submitted(play.spec), heard("a"))
    play >> heard("a", "finished", 1) << finishes(JobState.SUCCEEDED) << gives("a", release=True)
    play.done()


def test_setup_runs_once_a_node() -> None:
    play = Playbook(spec_of(setup="make"))
    play.given(submitted(play.spec), heard("a"))
    assert play.job.nodes["a"].order is not None
    assert play.job.nodes["a"].order.run is not None
    assert not play.job.nodes["a"].order.run.skip_setup
    goes_on(play, 1)
    fails(play, 1, killed(1), step=60)
    assert play.job.nodes["a"].order.run.skip_setup
    play.done()


def test_a_failure_of_setup_commands_is_the_end() -> None:
    play = Playbook(spec_of(setup="make"))
    play.given(submitted(play.spec), heard("a"), heard("a", "setup", 1))
    failure = Failure(-1, "a", FailureKind.SETUP, 1.0, exit_code=2, message="make: no rule")
    play.given(ended("a", 1, failure), heard("a", "failed", 1))
    play >> heard("a", "idle", 1) << closes() << finishes(JobState.FAILED, "not retried") << gives("a", release=True)
    assert play.done().incidents[0].fault is FaultClass.SETUP


def test_nothing_changes_a_job_that_is_over_but_resume() -> None:
    play = running()
    play.given(heard("a", "finished", 1))
    for event in (asks("stop"), asks("restart"), silent("a"), ended("a", 1, killed(0)), started(1), After(100.0)):
        play >> event
    assert play.done().state is JobState.SUCCEEDED


def test_an_attempt_that_ended_unseen_got_at_least_as_far_as_the_next_one_resumed_from() -> None:
    play = running().given(verified(1, 1), CoordinatorStarted())
    play.given(heard("a", "idle", 1), After(2.0))
    goes_on(play, 2, resumed=20)
    job = play.done()
    first = job.attempts[0]
    assert (first.first_step, first.last_step, first.completed, job.best_step) == (1, 20, 20, 20)
    assert job.incidents[0].steps_lost == 0


def test_a_committed_checkpoint_is_progress_of_its_attempt() -> None:
    job = running().given(committed(1, 20)).done()
    assert (job.attempts[0].last_step, job.attempts[0].completed, job.best_step) == (20, 20, 20)


def test_a_job_that_ends_well_says_that_saves_had_failed() -> None:
    full = "[Errno 28] No space left on device"
    play = running().given(committed(1, 10), SaveFailed(1, 20, full), SaveFailed(1, 30, full))
    play.given(verified(1, 40), heard("a", "finished", 1, step=40))
    assert play.done().reason == (
        "every rank ended by itself with code 0 at step 40; 2 saves failed ([Errno 28] No space left on device), "
        "newest checkpoint is step 10"
    )
    assert play.job.save_failures[0]["disk_full"] is True


def test_a_rank_whose_process_had_to_be_ended_is_not_said_to_have_ended_by_itself() -> None:
    words = "rank 1 did not exit within 30 s of its script's end: ended"
    play = running().given(heard("a", "finished", 1, step=9, warned=(words,)))
    assert play.done().reason == f"every rank's script ended with code 0 at step 9; {words}"
