"""How each rank of each attempt ended, and that what is said after the decision changes neither that nor the reason."""

from tests.machine.playbook import (
    After,
    Playbook,
    ended,
    fails,
    goes_on,
    heard,
    killed,
    raised,
    running,
    silent,
    spec_of,
    started,
    submitted,
    verified,
)

from zrun.core.failure import Failure, FailureKind
from zrun.machine.view import incident_view, job_view, verdict_view
from zrun.spec.job import Restart


def ours(rank: int, node: str = "a", at: float = 2.0) -> Failure:
    return Failure(rank, node, FailureKind.ENDED_BY_US, at, exit_code=143, signal="SIGTERM",
                   message="ended by zrun (SIGTERM): rank 1: ValueError")  # fmt: skip


def ends(play: Playbook, attempt: int = 1) -> dict[int, dict[str, object]]:
    shown = job_view(play.job, play.now, {})["attempts"][attempt - 1]["ends"]
    assert shown == verdict_view(play.job)["attempts"][attempt - 1]["ends"]
    return {end["rank"]: end for end in shown}


def test_code_signal_and_reason_are_the_ranks_own_and_not_what_zrun_did() -> None:
    play = running().given(heard("a", "running", 1, ranks=3))
    fails(play, 1, raised(1, exit_code=7), ours(0))
    told = ends(play)
    assert (told[1]["exit_code"], told[1]["exception"], told[1]["cause"]) == (7, "ValueError", True)
    assert told[1]["reason"] == "ValueError: bad sample"
    assert (told[0]["exit_code"], told[0]["signal"], told[0]["cause"]) == (None, None, False)
    assert str(told[0]["reason"]).startswith("ended by zrun (SIGTERM)")
    assert (told[2]["exit_code"], told[2]["reason"]) == (0, "ended with code 0")


def test_every_attempt_keeps_its_own() -> None:
    play = running().given(heard("a", "running", 1, ranks=2), verified(1, 60))
    fails(play, 1, killed(1))
    goes_on(play, 2).given(heard("a", "running", 2, ranks=2))
    assert ends(play, 1)[1]["signal"] == "SIGKILL"
    assert ends(play, 2) == {}
    play.given(heard("a", "finished", 2, ranks=2))
    assert ends(play, 1)[1]["signal"] == "SIGKILL"


def test_ranks_of_a_node_that_was_lost_are_told_as_lost() -> None:
    play = Playbook(spec_of(2)).given(submitted(spec_of(2)), heard("a"), heard("b"))
    play.given(*[heard(node, "running", 1, ranks=2) for node in "ab"], started(1), silent("b"))
    play.given(heard("a", "idle", 1), After(30.0))
    told = ends(play)
    assert {rank for rank, end in told.items() if end["kind"] == "lost"} == {2, 3}


def test_what_is_said_after_the_decision_changes_no_reason() -> None:
    """The cleanup goes on while the next attempt waits: an agent tells late, and other things."""
    spec = spec_of(restart=Restart(policy="never"))
    play = running(spec).given(heard("a", "running", 1, ranks=2))
    fails(play, 1, raised(1), ours(0))
    before = verdict_view(play.job), incident_view(play.job, 1)
    assert before[0]["state"] == "FAILED"
    worse = killed(0, at=0.1, message="out of nowhere")
    play.given(ended("a", 1, worse, raised(1)), heard("a", "idle", 1), ended("a", 1, worse))
    assert (verdict_view(play.job), incident_view(play.job, 1)) == before


def test_while_the_next_attempt_is_waited_for_the_reason_stands() -> None:
    play = running().given(heard("a", "running", 1, ranks=2))
    fails(play, 1, raised(1), ours(0))
    before = incident_view(play.job, 1)
    assert before["decision"]
    play.given(ended("a", 1, killed(0, at=0.1), raised(1)))
    after = incident_view(play.job, 1)
    assert {k: after[k] for k in ("rank", "headline", "because", "followed", "failures")} == {
        k: before[k] for k in ("rank", "headline", "because", "followed", "failures")
    }
    assert ends(play)[0]["kind"] == "ended-by-us"
