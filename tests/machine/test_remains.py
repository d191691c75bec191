"""What an attempt leaves on its node: told once when it is gone, and in the way while it cannot be ended."""

from typing import Any

from tests.machine.playbook import (
    After,
    Playbook,
    asks,
    closes,
    ended,
    finishes,
    gives,
    heard,
    killed,
    records,
    running,
    says,
    spec_of,
)

from zrun.core.states import JobState
from zrun.machine.actions import Record

STUCK = "process 7 (python train.py, state D) cannot be killed"


def after_a_kill(stuck: bool = True) -> Playbook:
    play = running(spec_of())
    return play.given(
        ended("a", 1, killed(1)),
        heard("a", "failed", 1, collected=1),
        heard("a", "stopping", 1, collected=1),
        heard("a", "idle", 1, collected=1, stuck=(STUCK,) if stuck else ()),
    )


def told(play: Playbook) -> dict[str, Any]:
    """The one record that the last event was answered with."""
    (record,) = [action for action in play.journal[-1][-1] if isinstance(action, Record)]
    return record.fields


def test_a_node_with_a_process_that_cannot_be_killed_gets_no_next_attempt_until_that_has_ended() -> None:
    play = after_a_kill()
    play.given(After(60.0))
    assert play.job.state == JobState.RECOVERING
    assert STUCK in play.job.reason
    assert "may hold GPUs and ports" in play.job.reason
    play >> heard("a", "idle", 1, collected=1)
    play << records("ended-after-all") << gives("a", run=2) << says(JobState.STARTING, "attempt 2 on a")
    play.done()


def test_a_job_whose_process_cannot_be_killed_can_be_stopped_and_says_what_stays() -> None:
    play = after_a_kill()
    play.given(After(60.0))
    (
        play
        >> asks("stop")
        << closes()
        << finishes(JobState.STOPPED, f"could not be killed; {STUCK} on a")
        << gives("a", release=True)
    )
    assert play.job.over


def test_what_was_swept_is_told_once_for_each_thing() -> None:
    play = running(spec_of())
    play >> heard("a", "running", 1, swept=("shared memory psm_1",)) << records("swept")
    assert told(play) == {"node": "a", "attempt": 1, "count": 1, "what": ["shared memory psm_1"]}
    play >> heard("a", "running", 1, swept=("shared memory psm_1",))
    play >> heard("a", "running", 1, swept=("shared memory psm_1", "temporary folder x")) << records("swept")
    assert told(play)["what"] == ["temporary folder x"]
