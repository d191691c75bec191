"""What people and programs are shown of a job: the promised keys, and true values in them."""

import json
from typing import Any

import pytest
from tests.machine.playbook import (
    After,
    Playbook,
    committed,
    ended,
    goes_on,
    heard,
    killed,
    raised,
    running,
    silent,
    spec_of,
    started,
    submitted,
    suspects,
    verified,
)

from zrun.core.batch import BatchId
from zrun.core.deck import Phase
from zrun.core.failure import Failure, FailureKind
from zrun.core.rows import RankRow, RowFlag
from zrun.machine.limits import effective_limits
from zrun.machine.view import NodeNow, describe_view, incident_view, job_summary, job_view, verdict_view
from zrun.spec.job import Restart, Watchdog

F = RowFlag
STATUS_KEYS = {
    "job", "name", "state", "reason", "attempt", "step", "total_steps", "step_s", "goodput", "restarts", "nodes",
    "attempts", "incidents", "checkpoints",
}  # fmt: skip
INCIDENT_KEYS = {
    "id", "class", "rank", "node", "exit_code", "signal", "exception", "step", "batch", "collective", "where", "because",
    "followed", "detected_s", "recovered_s", "steps_lost",
}  # fmt: skip


def row(rank: int, step: int = 120, **more: Any) -> RankRow:
    known: dict[str, Any] = {
        "pid": 100 + rank, "phase": Phase.STEP, "batch": BatchId(0, step, 0xABC), "age_s": 0.02, "phase_age_s": 9.0,
        "step_s": 0.051, "coll_seq": 17, "coll_age_s": 0.01, "coll_op": "all_reduce", "cpu": 0.9, "state": "R",
        "flags": F.ALIVE | F.SESSION | F.RECORDER | F.STEPPING,
    }  # fmt: skip
    return RankRow(rank=rank, step=step, **(known | more))


def now_at(*rows: RankRow, **more: Any) -> dict[str, NodeNow]:
    return {"a": NodeNow(rows=rows, **more)}


def crashed() -> Playbook:
    """Rank 1 is killed at step 61; attempt 2 goes on from step 50."""
    play = running().given(verified(1, 60), committed(1, 50), After(10.0))
    play.given(ended("a", 1, killed(1), killed(0, at=2.0, signal="SIGTERM"), age_s=0.02))
    play.given(heard("a", "failed", 1, step=60), heard("a", "idle", 1, step=60), After(2.0))
    return goes_on(play, 2, resumed=50)


def test_a_running_job_shows_its_ranks() -> None:
    play = running()
    nodes = now_at(row(0), row(1, 119, flags=F.ALIVE | F.IN_COLLECTIVE), total_steps=2000, metrics={"loss": 2.5},
                   heard_s=0.4)  # fmt: skip
    shown = job_view(play.job, play.now, nodes)
    assert shown.keys() >= STATUS_KEYS
    assert (shown["state"], shown["name"], shown["step"], shown["total_steps"]) == ("RUNNING", "gpt2", 119, 2000)
    assert shown["step_s"] == 0.051
    assert shown["metrics"] == {"loss": 2.5}
    [node] = shown["nodes"]
    assert (node["node"], node["state"]) == ("a", "ok")
    first, second = node["ranks"]
    assert first | {"rank": 0, "pid": 100, "phase": "step", "step": 120, "batch": "e0-s000120-00000abc"} == first
    assert first["age_s"] == pytest.approx(0.42)
    assert second["collective"] == "all_reduce #17"
    assert first["collective"] is None


def test_everything_shown_is_json() -> None:
    play = crashed()
    nodes = now_at(row(0, age_s=float("inf"), step_s=float("nan")), row(1))
    limits = effective_limits(Watchdog())
    for shown in (
        job_view(play.job, play.now, nodes, limits=limits, submitted_unix=1e9), verdict_view(play.job),
        incident_view(play.job, 1), job_summary(play.job, nodes),
        describe_view(play.job, play.now, nodes, limits=limits, not_in_force=["launcher: auto"]),
    ):  # fmt: skip
        json.loads(json.dumps(shown, allow_nan=False))


def test_an_incident_shows_cause_consequence_and_cost() -> None:
    play = crashed()
    [incident] = job_view(play.job, play.now, {})["incidents"]
    assert incident.keys() >= INCIDENT_KEYS
    told = {key: incident[key] for key in ("id", "class", "rank", "node", "signal", "step", "followed", "attempt")}
    assert told == {"id": 1, "class": "crash", "rank": 1, "node": "a", "signal": "SIGKILL", "step": 61,
                    "followed": [0], "attempt": 1}  # fmt: skip
    assert incident["because"]
    assert incident["detected_s"] == 0.02
    assert incident["recovered_s"] > 0
    assert incident["steps_lost"] == 10
    assert not incident["open"]


def test_attempts_say_how_they_ended_and_where_they_began() -> None:
    play = crashed()
    first, second = job_view(play.job, play.now, {})["attempts"]
    assert (first["outcome"], first["first_step"], first["last_step"], first["resumed_from"], first["cause"]) == (
        "fault", 1, 61, None, "incident 1")  # fmt: skip
    assert (second["outcome"], second["first_step"], second["resumed_from"]) == (None, 51, {"tier": "disk", "step": 50})
    assert second["began_because"]
    assert first["duration_s"] > second["duration_s"]


def test_restarts_count_what_is_used_and_left() -> None:
    play = crashed()
    assert job_view(play.job, play.now, {})["restarts"]["used"] == 1
    assert job_view(play.job, play.now, {})["restarts"]["left"]["crash"] == 4


def test_goodput_is_none_before_the_first_step_and_falls_with_a_fault() -> None:
    fresh = Playbook()
    fresh.given(submitted(fresh.spec), heard("a"), After(5.0))
    assert job_view(fresh.job, fresh.now, {})["goodput"] is None
    well = running().given(After(100.0))
    before = job_view(well.job, well.now, now_at(row(0, 1001)))["goodput"]
    assert 0.99 < before <= 1.0
    play = crashed().given(After(10.0))
    after = job_view(play.job, play.now, now_at(row(0, 70)))["goodput"]
    assert 0.5 < after < before


def test_a_suspicion_is_shown_before_anything_is_ended() -> None:
    play = running().given(suspects(1))
    [incident] = job_view(play.job, play.now, {})["incidents"]
    assert incident["suspicion"]
    assert (incident["class"], incident["rank"], incident["step"]) == ("hang", 1, 61)
    assert incident["because"] == ["the others wait"]
    assert incident["headline"].startswith("1 of 2 ranks in all_reduce #17")


def test_a_silent_node_is_shown_as_silent() -> None:
    play = running(spec_of(nodes=2), nodes="ab").given(silent("b"))
    states = {n["node"]: n["state"] for n in job_view(play.job, play.now, {})["nodes"]}
    assert states == {"a": "ok", "b": "silent"}


def test_checkpoints_are_listed_without_paths() -> None:
    [one] = job_view(crashed().job, 20.0, {})["checkpoints"]
    assert one | {"step": 50, "tier": "disk", "state": "complete", "bytes": 8, "name": "step-000050"} == one
    assert "path" not in one


def test_times_are_told_for_people_when_the_wall_clock_is_known() -> None:
    play = crashed()
    shown = job_view(play.job, play.now, {}, submitted_unix=1_700_000_000.0)
    assert shown["submitted"] == "2023-11-14T22:13:20.000Z"
    assert shown["attempts"][1]["at"] > shown["attempts"][0]["at"] > shown["submitted"]
    assert shown["incidents"][0]["at"] > shown["attempts"][0]["at"]


def test_the_verdict_holds_its_promised_keys_and_the_exit_code() -> None:
    play = running(spec_of(restart=Restart(policy="never")))
    assert verdict_view(play.job)["exit_code"] == 101
    play.given(ended("a", 1, raised(1, exit_code=7)), heard("a", "failed", 1), heard("a", "idle", 1), After(5.0))
    verdict = verdict_view(play.job)
    assert verdict.keys() >= {"job", "name", "state", "reason", "attempts", "incidents", "exit_code"}
    assert (verdict["state"], verdict["exit_code"], verdict["incident"]) == ("FAILED", 100, 1)
    assert verdict["incidents"][0]["exit_code"] == 7
    assert verdict["incidents"][0]["exception"] == "ValueError"
    assert verdict["incidents"][0]["where"] == "train.py:10"


def test_the_verdict_changes_only_with_what_is_known() -> None:
    play = running()
    before = verdict_view(play.job, submitted_unix=1e9)
    play.given(After(60.0))
    assert verdict_view(play.job, submitted_unix=1e9) == before


def test_incident_detail_holds_all_evidence() -> None:
    play = crashed()
    detail = incident_view(play.job, 1)
    assert [f["rank"] for f in detail["failures"]] == [1, 0]
    assert detail["job"] == play.job.job
    with pytest.raises(IndexError):
        incident_view(play.job, 2)


def test_the_summary_is_one_line_of_the_list() -> None:
    play = running()
    line = job_summary(play.job, now_at(row(0, 7)))
    assert (line["job"], line["state"], line["step"], line["attempt"]) == (play.job.job, "RUNNING", 7, 1)
    assert line["run_dir"] == "/runs/gpt2-7f3a91"


def test_describe_tells_the_spec_and_the_limits_in_force() -> None:
    play = running()
    limits = effective_limits(play.spec.watchdog)
    shown = describe_view(play.job, play.now, {}, limits=limits, not_in_force=["launcher: auto (not yet: warm)"])
    assert shown["spec"]["restart"]["max_restarts"] == 10
    assert {x["name"] for x in shown["effective_limits"]} >= {"setup", "first_step", "step", "save", "exit"}
    assert shown["limits"]["exit"] == "60 s (watchdog.exit)"
    assert shown["not_in_force"] == ["launcher: auto (not yet: warm)"]


def test_a_step_number_stays_when_rows_are_gone() -> None:
    play = running().given(verified(1, 60))
    assert job_view(play.job, play.now, {})["step"] == 60
    play.given(ended("a", 1, killed(1)), heard("a", "failed", 1, step=60), heard("a", "idle", 1, step=60), After(3.0))
    play.given(heard("a", "starting", 2))
    assert job_view(play.job, play.now, now_at(row(0, 0, phase=Phase.BOOT)))["step"] == 60
    play.given(heard("a", "running", 2), started(2, 50))
    assert job_view(play.job, play.now, {})["step"] == 50


def test_a_hang_is_never_told_as_killed_by_the_signal_that_we_sent() -> None:
    play = running().given(suspects(1, provable=True), heard("a", "running", 1, collected=1))
    ours = Failure(1, "a", FailureKind.ENDED_BY_US, 2.0, signal="SIGKILL", where="data.py:10", step=61)
    play.given(ended("a", 1, ours), heard("a", "idle", 1, step=60))
    [incident] = job_view(play.job, play.now, {})["incidents"]
    assert (incident["class"], incident["rank"], incident["signal"], incident["exit_code"]) == ("hang", 1, None, None)
    assert incident["headline"].startswith("1 of 2 ranks in all_reduce #17; rank 1 not there")
    assert incident["where"] == "data.py:10"


def test_a_finished_job_shows_its_last_known_ranks_and_nobody_as_alive() -> None:
    play = running().given(verified(1, 120), heard("a", "finished", 1, step=120))
    nodes = now_at(row(0, flags=F.FINISHED), row(1), total_steps=120, heard_s=5.0)
    verdict = verdict_view(play.job, nodes)
    assert verdict.keys() >= STATUS_KEYS | {"exit_code"}
    assert (verdict["attempt"], verdict["total_steps"], verdict["step_s"], verdict["exit_code"]) == (1, 120, 0.051, 0)
    assert 0 < verdict["goodput"] <= 1
    assert [rank["state"] for rank in verdict["nodes"][0]["ranks"]] == ["finished", "absent"]
    live = job_view(play.job, play.now, nodes)
    assert live["exit_code"] == 0
    assert live["nodes"][0]["ranks"][0]["batch"] == verdict["nodes"][0]["ranks"][0]["batch"] == "e0-s000120-00000abc"


def test_a_phase_of_the_scripts_own_is_shown_by_its_name() -> None:
    nodes = now_at(row(0, phase=Phase.OWN), phase_names={0: "tokenize"})
    [node] = job_view(running().job, 9.0, nodes)["nodes"]
    assert node["ranks"][0]["phase"] == "tokenize"


def test_a_running_attempt_shows_the_step_that_its_ranks_are_in() -> None:
    attempt = job_view(running().given(verified(1, 1)).job, 9.0, now_at(row(0, 11), row(1, 10)))["attempts"][0]
    assert (attempt["first_step"], attempt["last_step"], attempt["outcome"]) == (1, 10, None)


def test_no_text_of_an_incident_or_a_verdict_is_longer_than_4000_characters_and_a_note() -> None:
    play = running()
    huge = raised(1, message="x" * 100_000, traceback="y" * 90_000 + "ValueError: the end")
    play.given(ended("a", 1, huge), heard("a", "failed", 1, step=60), heard("a", "idle", 1, step=60))
    shown = incident_view(play.job, 1)
    assert "[96000 characters left out]" in shown["message"]
    assert shown["traceback"].endswith("ValueError: the end")
    for text in (shown["message"], shown["traceback"], shown["failures"][0]["traceback"]):
        assert 4000 <= len(text) < 4100
    assert len(shown["headline"]) < 1100
    for view in (verdict_view(play.job), job_view(play.job, play.now, {})):
        assert len(view["incidents"][0]["message"]) < 4100
        assert len(view["reason"]) < 4100
