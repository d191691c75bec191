"""One run over many launches: a changed job file, and what an attempt begins from."""

from typing import Any

import pytest
from tests.machine.playbook import (
    Playbook,
    asks,
    committed,
    fails,
    gives,
    heard,
    killed,
    raised,
    records,
    running,
    says,
    spec_of,
    started,
    submitted,
)

from zrun.core.failure import Failure
from zrun.core.states import JobState
from zrun.machine.actions import Give
from zrun.machine.events import CheckpointsPruned, CoordinatorStarted
from zrun.machine.moves import Stage
from zrun.spec.job import Backoff, Checkpoint, JobSpec, Restart, spec_to_dict
from zrun.wire.order import LaunchPlan

AT_ONCE = Restart(backoff={"crash": Backoff(0.0, 0.0)})


def job_with(resume: str = "auto", **more: Any) -> JobSpec:
    return spec_of(checkpoint=Checkpoint(resume=resume), restart=AT_ONCE, **more)


def plan_of(play: Playbook) -> LaunchPlan:
    """The newest attempt as it was ordered."""
    orders = [a.order for _, _, _, actions in play.journal for a in actions if isinstance(a, Give)]
    return [order.run for order in orders if order.run is not None][-1]


def test_a_job_that_was_interrupted_takes_a_changed_file_and_begins_a_new_attempt() -> None:
    play = running()
    play.given(CoordinatorStarted())
    changed = spec_to_dict(job_with(env={"LR": "2"}))
    play >> asks("resume", spec=changed) << records("job-changed") << gives("a", ends="save")
    play >> heard("a", boot="a2") << gives("a", run=2, boot="a2")
    job = play.done()
    assert job.spec is not None
    assert job.spec.env == {"LR": "2"}
    assert job.incidents == []


def test_a_changed_file_is_taken_while_the_next_attempt_waits_for_nodes() -> None:
    play = Playbook()
    play.given(submitted(play.spec), asks("resume", spec=spec_to_dict(job_with(labels={"team": "x"}))))
    play >> heard("a") << gives("a", run=1)
    job = play.done()
    assert job.spec is not None
    assert job.spec.labels == {"team": "x"}


def test_the_same_file_again_changes_nothing_for_a_live_job() -> None:
    play = running()
    play >> asks("resume", spec=spec_to_dict(play.spec)) << records("command-ignored")
    assert play.done().stage is Stage.RUNNING


@pytest.mark.parametrize("wish", ["never", "/old/checkpoints"])
def test_what_to_begin_from_is_for_the_launch_and_not_for_its_later_attempts(wish: str) -> None:
    play = running(job_with(wish))
    assert plan_of(play).resume == wish
    play.given(committed(1, 0))
    fails(play, 1, killed(1), step=60)
    assert (plan_of(play).attempt, plan_of(play).resume) == (2, "auto")
    play.done()


def test_a_launch_that_never_came_to_a_checkpoint_still_begins_from_what_was_asked_for() -> None:
    play = running(job_with("/old/checkpoints"))
    fails(play, 1, killed(1), step=1)
    assert (plan_of(play).attempt, plan_of(play).resume) == (2, "/old/checkpoints")
    play.done()


@pytest.mark.parametrize(
    ("options", "begins_from"),
    [({}, "auto"), ({"resume": "never"}, "never"), ({"spec": spec_to_dict(job_with("/other"))}, "/other"),
     ({"spec": spec_to_dict(job_with("never", labels={"a": "b"}))}, "auto")],
)  # fmt: skip
def test_resume_goes_on_from_the_newest_checkpoint_unless_it_says_otherwise(
    options: dict[str, Any], begins_from: str
) -> None:
    play = running(job_with("never"))
    play.given(committed(1, 0), asks("stop"), heard("a", "idle", 1, stopped_at=61), asks("resume", **options))
    assert (plan_of(play).attempt, plan_of(play).resume) == (2, begins_from)
    play.done()


def unfit(message: str, **more: Any) -> Failure:
    return raised(0, "zrun.core.errors.CheckpointError", step=None, phase="setup", message=message, **more)


@pytest.mark.parametrize(
    ("failure", "way_out"),
    [(unfit("/c/step-000050 does not fit this job: model: layer 3 has 64 rows, the checkpoint 32",
            traceback="go on all the same with --allow-changed model --allow-changed data, or"),
      "zrun resume --allow-changed data --allow-changed model gpt2-7f3a91"),
     (unfit("/c/step-000050 does not fit this job: lr differs"), "zrun resume --allow-changed KEY gpt2-7f3a91"),
     (unfit("/c holds checkpoints of another run, old-123456"), "zrun launch --fresh"),
     (unfit("checkpoints exist in /c, but none is valid (step-000050: truncated)"), "zrun launch --fresh")],
)  # fmt: skip
def test_a_checkpoint_that_cannot_be_gone_on_from_is_not_tried_again(failure: Failure, way_out: str) -> None:
    play = running()
    fails(play, 1, killed(1), step=60)
    play.given(heard("a", "running", 2))
    fails(play, 2, failure, step=60)
    job = play.done()
    assert (job.state, job.attempt) == (JobState.FAILED, 2)
    assert str(failure.message) in job.reason, "the differences are told"
    assert way_out in job.reason


def test_pruned_checkpoints_are_no_longer_listed() -> None:
    play = running()
    play.given(committed(1, 10), committed(1, 20), committed(1, 30))
    play >> CheckpointsPruned(1, [10, 20]) << records("checkpoints-pruned")
    assert [c.step for c in play.done().checkpoints] == [30]


def test_one_node_that_is_not_here_yet_is_waited_for_in_plain_words() -> None:
    play = Playbook()
    play >> submitted(play.spec) << says(JobState.PENDING, "waiting for its agent")
    play.done()


def test_a_script_without_steps_loses_none() -> None:
    play = running(job_with())
    fails(play, 1, killed(1, step=None, phase="setup"))
    play.given(heard("a", "running", 2), type(started(2))(2, 0, None))
    assert play.done().incidents[0].steps_lost == 0
