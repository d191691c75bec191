"""After a fault: when there is another attempt, after how long, and in which words there is none."""

from typing import Any

import pytest
from tests.machine.playbook import (
    After,
    Playbook,
    asks,
    committed,
    ended,
    fails,
    gives,
    goes_on,
    heard,
    killed,
    raised,
    running,
    spec_of,
    started,
    submitted,
    verified,
)

from zrun.core.failure import Failure, FailureKind
from zrun.core.states import FaultClass, JobState
from zrun.machine.budget import left
from zrun.machine.moves import Stage
from zrun.spec.job import Backoff, Budgets, Data, JobSpec, Restart, Rule, spec_to_dict


def restarting(**restart: Any) -> Playbook:
    return running(spec_of(restart=Restart(**restart)))


def in_setup(rank: int, exception: str, **more: Any) -> Failure:
    return raised(rank, exception, step=None, phase="setup", **more)


def fresh(**more: Any) -> Playbook:
    """Attempt 1 is ordered and has made no step."""
    play = Playbook(spec_of(**more))
    return play.given(submitted(play.spec), heard("a"), heard("a", "running", 1))


def test_the_first_restart_after_progress_goes_at_once() -> None:
    play = running()
    play.given(ended("a", 1, killed(1)), heard("a", "failed", 1, step=60))
    play >> heard("a", "idle", 1, step=60) << gives("a", run=2)
    play.done()


def test_restarts_without_progress_wait_twice_as_long_each_time_up_to_the_most() -> None:
    play = restarting(max_without_progress=9, backoff={"crash": Backoff(2.0, 6.0)}, budgets=Budgets(crash=9))
    waits = []
    for attempt in range(1, 5):
        fails(play, attempt, killed(1), step=0)
        assert play.job.stage is Stage.RETRYING
        waits.append(round(play.machine.deadline() - play.now, 3))
        play.given(After(6.0))
    assert waits == [2.0, 4.0, 6.0, 6.0]
    play.done()


def test_a_class_without_a_backoff_of_its_own_takes_crashs() -> None:
    play = restarting()
    play.given(heard("a", boot="a2"))
    assert play.job.attempt == 2  # node: 0s..0s
    play.done()


def test_a_spent_class_budget_ends_the_job_and_says_so() -> None:
    play = restarting(budgets=Budgets(crash=1), max_without_progress=9)
    fails(play, 1, killed(1))
    play.given(After(1.0))
    fails(play, 2, killed(0))
    job = play.done()
    assert job.state is JobState.FAILED
    assert job.reason == "rank 0: killed by SIGKILL (step 61): the crash budget of 1 is spent without progress"


def test_the_job_wide_budget_counts_all_limited_classes() -> None:
    play = restarting(max_restarts=1, max_without_progress=9)
    fails(play, 1, killed(1))
    play.given(After(1.0))
    fails(play, 2, Failure(0, "a", FailureKind.OOM, 1.0, signal="SIGKILL", step=3))
    assert "max_restarts of 1 is spent" in play.done().reason


def test_lost_nodes_are_unlimited_and_count_towards_nothing() -> None:
    play = restarting(max_restarts=0)
    for life in range(2, 20):
        play.given(heard("a", boot=f"boot{life}"))
    job = play.done()
    assert (job.state, job.attempt) == (JobState.STARTING, 19)


def test_verified_progress_fills_the_budgets_up_again() -> None:
    play = restarting(budgets=Budgets(crash=1), max_without_progress=9)
    fails(play, 1, killed(1), step=60)
    assert left(play.job)["crash"] == 0
    goes_on(play, 2, 50)
    play.given(verified(2, 60))
    assert left(play.job)["crash"] == 0  # no further than before
    play.given(verified(2, 61))
    assert left(play.job)["crash"] == 1
    fails(play, 2, killed(1), step=61)
    assert play.done().attempt == 3


def test_the_same_failure_twice_without_progress_is_deterministic() -> None:
    play = running()
    fails(play, 1, raised(0), step=60)
    goes_on(play, 2, 50)
    fails(play, 2, raised(0), step=60)
    job = play.done()
    assert job.state is JobState.FAILED
    assert "deterministic: the same failure twice without progress between (rank 0: ValueError: bad" in job.reason


def test_the_same_failure_further_on_is_not_deterministic() -> None:
    play = running()
    fails(play, 1, raised(0, step=61), step=60)
    goes_on(play, 2, 50)
    fails(play, 2, raised(0, step=90), step=89)
    assert play.done().attempt == 3


def test_two_kills_from_outside_are_two_accidents() -> None:
    play = running()
    fails(play, 1, killed(1), step=60)
    goes_on(play, 2, 50)
    fails(play, 2, killed(1), step=55)
    play.given(After(1.0))
    assert play.done().attempt == 3


def test_too_many_attempts_without_progress_end_the_job() -> None:
    play = running()
    fails(play, 1, raised(0, "AError"), step=60)
    for attempt, name in ((2, "BError"), (3, "CError"), (4, "DError")):
        play.given(After(60.0))
        fails(play, attempt, raised(0, name), step=55)
    assert "3 attempts in a row without progress (max_without_progress 2)" in play.done().reason


@pytest.mark.parametrize("name", ["ImportError", "ModuleNotFoundError", "SyntaxError", "NameError"])
def test_a_script_that_fails_at_import_is_not_retried(name: str) -> None:
    play = fresh()
    fails(play, 1, in_setup(0, name))
    assert f"not retried: {name} before the first step" in play.done().reason


def test_a_missing_script_is_not_retried() -> None:
    play = fresh()
    fails(play, 1, raised(0, "FileNotFoundError", step=None, phase="boot"))
    assert "not retried" in play.done().reason


def test_workers_that_cannot_be_started_are_not_retried() -> None:
    play = fresh()
    fails(play, 1, Failure(-1, "a", FailureKind.LAUNCH, 1.0, message="no python at .venv/bin/python"))
    job = play.done()
    assert "not retried" in job.reason
    assert job.incidents[0].fault is FaultClass.SETUP


@pytest.mark.parametrize(
    ("message", "fault"),
    [("the attempt's files cannot be made: [Errno 28] No space left on device", "disk"),
     ("no free TCP port on this node", "crash")],
)  # fmt: skip
def test_workers_that_cannot_be_started_again_are_retried_and_charged(message: str, fault: str) -> None:
    play = running()
    fails(play, 1, killed(1), step=60)
    fails(play, 2, Failure(-1, "a", FailureKind.LAUNCH, 1.0, message=message), step=60)
    job = play.done()
    assert job.incidents[1].fault == fault
    assert job.stage is Stage.RETRYING


def test_an_exception_of_a_rank_that_we_killed_afterwards_is_still_deterministic() -> None:
    play = running()
    fails(play, 1, raised(0, signal="SIGKILL"), step=60)
    goes_on(play, 2, 50)
    fails(play, 2, raised(0, signal="SIGKILL"), step=60)
    job = play.done()
    assert (job.state, job.attempt) == (JobState.FAILED, 2)
    assert "deterministic" in job.reason


@pytest.mark.parametrize(("ranks", "state"), [(2, JobState.FAILED), (4, JobState.RECOVERING), (0, JobState.RECOVERING)])
def test_with_auto_the_number_of_ranks_is_the_one_that_was_reported(ranks: int, state: JobState) -> None:
    play = Playbook(JobSpec(name="gpt2", run=["train.py"], nproc_per_node="auto"))
    play.given(submitted(play.spec), heard("a"), heard("a", "starting", 1, ranks=ranks))
    fails(play, 1, in_setup(0, "KeyError"), in_setup(1, "KeyError", at=1.1))
    assert play.done().state is state


def test_what_every_rank_raises_before_its_first_step_is_not_retried() -> None:
    play = fresh()
    fails(play, 1, in_setup(0, "KeyError"), in_setup(1, "KeyError", at=1.1))
    assert "not retried: every rank failed in the same way before the first step" in play.done().reason


def test_a_usage_error_of_the_script_on_every_rank_is_not_retried() -> None:
    play = fresh()
    both = [Failure(rank, "a", FailureKind.EXITED, 1.0 + rank, exit_code=2, phase="setup") for rank in (0, 1)]
    fails(play, 1, *both)
    assert "not retried: every rank" in play.done().reason


def test_what_one_rank_raises_before_its_first_step_gets_one_retry() -> None:
    play = fresh()
    fails(play, 1, in_setup(1, "OSError"))
    assert play.job.stage is Stage.RETRYING
    play.given(After(1.0))
    fails(play, 2, in_setup(1, "OSError"))
    assert "deterministic" in play.done().reason


def test_after_progress_an_import_error_may_be_the_file_systems_and_is_retried() -> None:
    play = running()
    fails(play, 1, killed(1), step=60)
    fails(play, 2, in_setup(0, "ImportError"))
    assert play.done().stage is Stage.RETRYING


def test_restart_policy_never_means_never() -> None:
    play = restarting(policy="never")
    fails(play, 1, killed(1), step=60)
    assert "restart.policy is never" in play.done().reason


@pytest.mark.parametrize(
    ("rule", "failure"),
    [
        (Rule("fail", exit_code=3), Failure(0, "a", FailureKind.EXITED, 1.0, exit_code=3, step=61)),
        (Rule("fail", signal="SEGV"), killed(0, signal="SIGSEGV")),
        (Rule("fail", fault="oom"), Failure(0, "a", FailureKind.OOM, 1.0, signal="SIGKILL", step=61)),
        (Rule("fail", regex="bad s.mple"), raised(0)),
    ],
)
def test_a_rule_that_says_fail_fails(rule: Rule, failure: Failure) -> None:
    play = restarting(rules=[rule])
    fails(play, 1, failure, step=60)
    assert "restart.rules say fail for" in play.done().reason


def test_a_rule_that_says_restart_overrules_deterministic_and_the_first_match_wins() -> None:
    play = restarting(rules=[Rule("restart", exit_code=75), Rule("fail", exit_code=75)])
    for attempt in range(1, 4):
        fails(play, attempt, Failure(0, "a", FailureKind.EXITED, 1.0, exit_code=75, step=61))
        play.given(After(60.0))
    job = play.done()
    assert job.attempt == 4
    assert "restart.rules say restart for exit code 75; crash restart 3 of 5" in job.incidents[2].decision


def poisoned(rank: int = 1, batch: str = "e0-s000061-7f3a9c21", step: int = 61, **more: Any) -> Failure:
    return raised(rank, batch=batch, step=step, **more)


def test_a_batch_that_ended_two_attempts_on_the_same_rank_is_skipped() -> None:
    play = running()
    fails(play, 1, poisoned(), step=60)
    goes_on(play, 2, 50)
    fails(play, 2, poisoned(), step=60)
    job = play.done()
    assert job.quarantined == ["e0-s000061-7f3a9c21"]
    assert job.incidents[1].fault is FaultClass.POISON
    assert "ended 2 attempts on rank 1: it is skipped from now on" in job.incidents[1].decision
    order = job.nodes["a"].order
    assert order is not None
    assert order.run is not None
    assert (order.run.attempt, order.run.quarantined) == (3, ["e0-s000061-7f3a9c21"])


@pytest.mark.parametrize(
    "more", [{"phase": "eval"}, {"phase": "save"}, {"kind": "signaled"}, {"rank": 0}, {"done": 61}]
)
def test_what_is_not_the_batch_does_not_quarantine_it(more: dict[str, Any]) -> None:
    play = running()
    fails(play, 1, poisoned(), step=60)
    goes_on(play, 2, 50)
    done = more.pop("done", 60)
    told = poisoned().to_dict() | more
    fails(play, 2, Failure.from_dict(told), step=done)
    assert play.done().quarantined == []


def test_quarantine_can_be_turned_off() -> None:
    play = running(spec_of(data=Data(quarantine_after=0)))
    fails(play, 1, poisoned(), step=60)
    goes_on(play, 2, 50)
    fails(play, 2, poisoned(), step=60)
    job = play.done()
    assert job.quarantined == []
    assert "deterministic" in job.reason


def test_the_same_failure_on_the_next_batch_was_the_code_and_lifts_the_quarantine() -> None:
    play = running(spec_of(data=Data(quarantine_after=1)))
    fails(play, 1, poisoned(), step=60)
    goes_on(play, 2, 50)
    fails(play, 2, poisoned(batch="e0-s000062-00000001"), step=60)
    job = play.done()
    assert (job.state, job.quarantined) == (JobState.FAILED, [])
    assert "it is the code, not the data" in job.reason
    assert job.quarantine_lifted == ["e0-s000061-7f3a9c21"]


def bad_loss(batch: str = "e0-s000061-7f3a9c21", step: int = 61, **more: Any) -> Failure:
    return raised(1, "zrun.core.errors.BadLossError", batch=batch, step=step, **more)


def test_a_bad_loss_quarantines_its_batch_at_once_if_that_is_wished() -> None:
    play = running(spec_of(data=Data(on_bad_loss="skip", quarantine_after=0)))
    fails(play, 1, bad_loss(), step=60)
    job = play.done()
    assert job.quarantined == ["e0-s000061-7f3a9c21"]
    assert job.incidents[0].fault is FaultClass.POISON
    assert "gave a bad loss (data.on_bad_loss): it is skipped from now on" in job.incidents[0].decision


def test_a_bad_loss_on_the_next_batch_too_is_not_the_datas() -> None:
    play = running(spec_of(data=Data(on_bad_loss="skip")))
    fails(play, 1, bad_loss(), step=60)
    goes_on(play, 2, 50)
    fails(play, 2, bad_loss("e0-s000062-00000001"), step=60)
    job = play.done()
    assert (job.state, job.quarantined) == (JobState.FAILED, [])
    assert "it is the code, not the data" in job.reason


@pytest.mark.parametrize("batch", ["e0-s000061-7f3a9c21", ""])
def test_a_bad_loss_ends_the_job_if_that_is_wished_also_without_a_named_batch(batch: str) -> None:
    play = running(spec_of(data=Data(on_bad_loss="stop")))
    fails(play, 1, bad_loss(batch), step=60)
    job = play.done()
    assert (job.state, job.quarantined) == (JobState.FAILED, [])
    assert "data.on_bad_loss is stop" in job.reason


def test_one_unreadable_sample_is_skipped_in_every_epoch_even_in_the_first_step_after_a_resume() -> None:
    play = running()
    attempt = 1
    for step in (5, 15, 25):
        batch = f"e{step // 10}-s{step:06d}-7f3a9c21"
        fails(play, attempt, poisoned(batch=batch, step=step), step=step - 1)
        goes_on(play, attempt + 1, step - 1)
        fails(play, attempt + 1, poisoned(batch=batch, step=step))  # no step done: no row tells of one
        attempt += 2
        goes_on(play, attempt, step - 1)
    job = play.done()
    assert (job.state, len(job.quarantined), job.quarantine_lifted) == (JobState.RUNNING, 3, [])


def test_a_later_attempt_beyond_the_quarantined_step_counts_after_a_step_back() -> None:
    play = running(spec_of(data=Data(quarantine_after=1)))
    fails(play, 1, poisoned(), step=60)
    goes_on(play, 2, 50).given(committed(2, 70))
    fails(play, 2, killed(0, step=71), step=70)
    goes_on(play, 3, 50)
    fails(play, 3, poisoned(batch="e0-s000058-00000001", step=58), step=57)
    assert len(play.done().quarantined) == 2


def test_a_node_that_failed_its_ranks_costs_no_crash() -> None:
    play = running()
    before = left(play.job)["crash"]
    words = "the agent of node a stood still for 8 s: its keeper ended the workers"
    ours = [Failure(rank, "a", FailureKind.ENDED_BY_US, 1.0, signal="SIGKILL") for rank in (0, 1)]
    fails(play, 1, Failure(-1, "a", FailureKind.NODE, 1.1, message=words), *ours, step=60)
    job = play.done()
    assert (job.attempt, job.incidents[0].fault, job.incidents[0].headline) == (2, FaultClass.NODE, words)
    verdict = job.incidents[0].verdict
    assert verdict is not None
    assert (verdict.node, verdict.rank, left(job)["crash"]) == ("a", None, before)


def test_a_disk_that_is_full_at_a_later_launch_is_called_so() -> None:
    play = running()
    fails(play, 1, killed(1), step=60)
    full = Failure(-1, "a", FailureKind.LAUNCH, 2.0, message="disk full: /runs (No space left on device)")
    fails(play, 2, full)
    job = play.done()
    assert job.incidents[1].fault is FaultClass.DISK
    assert "disk full: /runs" in job.reason


def test_another_bad_batch_much_later_is_quarantined_too() -> None:
    play = running(spec_of(data=Data(quarantine_after=1)))
    fails(play, 1, poisoned(), step=60)
    goes_on(play, 2, 50)
    fails(play, 2, poisoned(batch="e0-s000090-00000001", step=89), step=88)
    assert len(play.done().quarantined) == 2


def test_no_more_than_max_quarantined_batches_are_skipped() -> None:
    play = running(spec_of(data=Data(quarantine_after=1, max_quarantined=1)))
    fails(play, 1, poisoned(), step=60)
    goes_on(play, 2, 50)
    fails(play, 2, poisoned(batch="e0-s000090-00000001", step=89), step=88)
    assert "1 batches are quarantined already" in play.done().reason


def test_the_poison_budget_is_kept() -> None:
    play = running(spec_of(data=Data(quarantine_after=1), restart=Restart(budgets=Budgets(poison=0))))
    fails(play, 1, poisoned(), step=60)
    assert "the poison budget of 0 is spent" in play.done().reason


def test_resume_makes_budgets_fresh_and_begins_the_next_attempt() -> None:
    play = restarting(budgets=Budgets(crash=0))
    fails(play, 1, killed(1), step=60)
    assert play.job.state is JobState.FAILED
    more = spec_to_dict(spec_of(restart=Restart(budgets=Budgets(crash=3))))
    play >> asks("resume", spec=more) << gives("a", run=2)
    play.given(heard("a", "running", 2), started(2, 50))
    job = play.done()
    assert (job.state, left(job)["crash"]) == (JobState.RUNNING, 3)


def test_malformed_evidence_still_ends_the_attempt() -> None:
    play = running()
    play.given(ended("a", 1), heard("a", "failed", 1, step=60), After(1.0), heard("a", "idle", 1, step=60))
    job = play.done()
    assert (job.attempt, job.incidents[0].fault) == (2, FaultClass.CRASH)
