"""A run that goes on with another job file, and what is left of a run when it is over, through a real coordinator."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from zrun.spec.job import spec_to_dict
from zrun.spec.load import load_job


def start(agent: Any, kit: Any, job: str, attempt: int = 1) -> Any:
    order = agent.order(job, lambda o: o.run is not None and o.run.attempt == attempt)
    agent.report(job, doing=kit.Doing.STARTING, attempt=attempt, seen=attempt)
    agent.report(job, doing=kit.Doing.RUNNING, attempt=attempt, seen=attempt, rows=kit.rows(1), resumed_step=0)
    return order


def test_an_interrupted_job_goes_on_with_the_changed_file_everywhere(serve: Any, agent: Any, kit: Any) -> None:
    served = serve(kit.spec())
    job = served.home.name
    one = agent(served)
    one.report()
    start(one, kit, job)
    one.report(job, doing=kit.Doing.RUNNING, attempt=1, seen=1, rows=kit.rows(3), resumed_step=0)
    kit.eventually(lambda: served.get(f"/api/jobs/{job}")["state"] == "RUNNING")
    served.kill()
    one.close()
    changed = spec_to_dict(kit.spec(env={"LR": "2"}))
    (served.home / "spec.json").write_text(json.dumps(changed))
    (served.home / "resume.json").write_text(json.dumps({"spec": changed}))
    served.start()
    two = agent(served, boot="boot2")
    two.report()
    start(two, kit, job, attempt=2)
    assert two.briefs[job].spec["env"] == {"LR": "2"}
    status = served.get(f"/api/jobs/{job}")
    assert (status["attempt"], status["incidents"]) == (2, [])
    assert not (served.home / "resume.json").exists()


def test_a_resume_over_http_gives_agents_the_job_anew_and_writes_it_down(
    serve: Any, agent: Any, kit: Any, tmp_path: Path
) -> None:
    served = serve()
    one = agent(served)
    one.report()
    folder = tmp_path / "toy-0001"
    body = {"spec": kit.spec_to_dict(kit.spec()), "run_dir": str(folder)}
    served.post("/api/jobs", body, 201)
    start(one, kit, "toy-0001")
    served.post("/api/jobs/toy/stop", {"now": True})
    one.order("toy-0001", lambda o: o.ending is not None)
    one.report("toy-0001", doing=kit.Doing.IDLE, attempt=1, seen=1)
    one.order("toy-0001", lambda o: o.release)
    del one.jobs["toy-0001"]
    one.report()
    one.briefs.clear()
    changed = kit.spec_to_dict(kit.spec(env={"LR": "2"}, workdir=str(tmp_path)))
    served.post("/api/jobs/toy/resume", {"options": {"spec": {"name": 7}}}, 422)
    served.post("/api/jobs/toy/resume", {"options": {"spec": changed}})
    start(one, kit, "toy-0001", attempt=2)
    assert one.briefs["toy-0001"].spec["env"] == {"LR": "2"}
    kit.eventually(lambda: "LR" in (folder / "spec.json").read_text())
    kit.eventually((folder / "job.yaml").exists)
    assert json.loads((folder / "spec.json").read_text()) == changed
    assert spec_to_dict(load_job(folder / "job.yaml")) == changed


def test_what_a_job_was_like_at_its_end_is_still_told_after_a_restart(
    serve: Any, agent: Any, kit: Any, tmp_path: Path
) -> None:
    served = serve()
    one = agent(served)
    one.report()
    folder = tmp_path / "runs" / "toy-0001"
    served.post("/api/jobs", {"spec": kit.spec_to_dict(kit.spec()), "run_dir": str(folder)}, 201)
    start(one, kit, "toy-0001")
    kept = [kit.CheckpointInfo(step, "b", f"/x/step-{step:06d}", 10, 0.1) for step in (3, 6, 9)]
    running = {"attempt": 1, "seen": 1, "resumed_step": 0, "total_steps": 9, "checkpoints": kept, "pruned": [3]}
    one.report("toy-0001", doing=kit.Doing.RUNNING, rows=kit.rows(5), **running)
    done = kit.rows(9, flags=kit.RowFlag.FINISHED, phase=kit.Phase.DONE)
    one.report("toy-0001", doing=kit.Doing.FINISHED, rows=done, **running)
    one.order("toy-0001", lambda o: o.release)
    del one.jobs["toy-0001"]
    one.report()
    for again in (False, True):
        if again:
            served.kill()
            served.start(served.port)
        status = served.get("/api/jobs/toy")
        assert (status["state"], status["attempt"], status["total_steps"], status["step_s"]) == (
            "SUCCEEDED",
            1,
            9,
            0.05,
        )
        assert [rank["state"] for rank in status["nodes"][0]["ranks"]] == ["finished", "finished"]
        assert [c["step"] for c in status["checkpoints"]] == [6, 9], "pruned ones are not listed"
        verdict = kit.eventually(lambda: _settled(folder))
        assert [rank["step"] for rank in verdict["nodes"][0]["ranks"]] == [9, 9]
        assert verdict.keys() >= {"attempt", "total_steps", "step_s", "goodput", "exit_code", "checkpoints", "restarts"}


def _settled(folder: Path) -> dict[str, Any]:
    verdict: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return verdict if verdict["state"] == "SUCCEEDED" else {}


@pytest.fixture
def open_umask() -> Any:
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_crash_leaves_a_roll_call_and_nothing_that_others_may_read(
    serve: Any, agent: Any, kit: Any, tmp_path: Path, open_umask: None
) -> None:
    served = serve()
    one = agent(served)
    one.report()
    folder = tmp_path / "runs" / "toy-0001"
    served.post("/api/jobs", {"spec": kit.spec_to_dict(kit.spec()), "run_dir": str(folder)}, 201)
    start(one, kit, "toy-0001")
    died = {"rank": 1, "node": "n1", "kind": "signaled", "at": 12.5, "signal": "SIGKILL", "step": 4,
            "collective": "all_reduce #17"}  # fmt: skip
    one.report("toy-0001", doing=kit.Doing.FAILED, attempt=1, seen=1, failures=[died], rows=kit.rows(4), resumed_step=0)
    called = kit.eventually(lambda: _text(folder / "incidents" / "0001" / "roll-call.txt"))
    first, *ranks = called.splitlines()
    assert first.startswith("rank 1: killed by SIGKILL")
    assert [line[:31] for line in ranks] == ["rank 0: alive, phase step, step", "rank 1: alive, phase step, step"]
    assert served.get("/api/jobs/toy/incidents/1")["roll_call"] == called
    assert served.get("/api/jobs/toy")["incidents"][0]["collective"] == "all_reduce #17"
    kit.eventually((folder / "verdict.json").exists)
    for path in [tmp_path / "runs", folder, *folder.rglob("*"), *served.home.rglob("*")]:
        if path.name != "coordinator.log":  # the test's own
            assert path.stat().st_mode & 0o077 == 0, path


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def over(one: Any, kit: Any, job: str, attempt: int) -> None:
    """The attempt ends well and the job is released."""
    running = {"attempt": attempt, "seen": attempt, "resumed_step": 0, "total_steps": 9}
    one.report(job, doing=kit.Doing.RUNNING, rows=kit.rows(5), **running)
    done = kit.rows(9, flags=kit.RowFlag.FINISHED, phase=kit.Phase.DONE)
    one.report(job, doing=kit.Doing.FINISHED, rows=done, **running)
    one.order(job, lambda o: o.release)
    del one.jobs[job]
    one.report()


def test_secrets_are_handed_in_again_with_a_resume_after_the_coordinator_was_started_again(
    serve: Any, agent: Any, kit: Any, tmp_path: Path
) -> None:
    served = serve()
    one = agent(served)
    one.report()
    folder = tmp_path / "runs" / "toy-0001"
    spec = kit.spec_to_dict(kit.spec(secrets=["WANDB"]))
    body = {"spec": spec, "run_dir": str(folder), "secrets": {"WANDB": "hunter22-secret"}}
    served.post("/api/jobs", body, 201)
    start(one, kit, "toy-0001")
    over(one, kit, "toy-0001", 1)
    assert served.get("/api/jobs/toy")["secrets_missing"] == []
    served.kill()
    served.start(served.port)
    one = agent(served, boot="boot2")
    one.report()
    assert served.get("/api/jobs/toy")["secrets_missing"] == ["WANDB"]
    refused = served.post("/api/jobs/toy/resume", {}, 422)
    assert "WANDB" in refused["error"]
    refused = served.post("/api/jobs/toy/resume", {"secrets": {"WANDB": "x" * 9, "PATH": "/evil-path"}}, 422)
    assert "PATH: no secret of this job" in refused["error"]
    assert "/evil-path" not in str(refused)
    served.post("/api/jobs/toy/resume", {"secrets": {"WANDB": "other33-secret"}})
    start(one, kit, "toy-0001", attempt=2)
    assert one.briefs["toy-0001"].secrets == {"WANDB": "other33-secret"}
    assert served.get("/api/jobs/toy")["secrets_missing"] == []
    one.report(
        "toy-0001", doing=kit.Doing.RUNNING, attempt=2, seen=2, rows=kit.rows(3), warnings=["saw other33-secret"]
    )
    kit.eventually(lambda: served.get("/api/jobs/toy")["warnings"] == ["saw [secret]"])
    for path in [*folder.rglob("*"), *served.home.rglob("*")]:
        if path.is_file():
            content = path.read_bytes()
            assert b"hunter22" not in content, path
            assert b"other33" not in content, path


def test_a_live_job_takes_the_secrets_its_coordinator_lost_and_hands_them_to_a_new_agent(
    serve: Any, agent: Any, kit: Any, tmp_path: Path
) -> None:
    served = serve()
    one = agent(served)
    one.report()
    folder = tmp_path / "runs" / "toy-0001"
    spec = kit.spec_to_dict(kit.spec(secrets=["WANDB"]))
    body = {"spec": spec, "run_dir": str(folder), "secrets": {"WANDB": "hunter22-secret"}}
    served.post("/api/jobs", body, 201)
    start(one, kit, "toy-0001")
    served.kill()
    served.start(served.port)
    two = agent(served, boot="boot2")
    two.report()
    served.post("/api/jobs/toy/resume", {}, 409)
    served.post("/api/jobs/toy/resume", {"secrets": {"WANDB": "hunter22-secret"}})
    served.post("/api/jobs/toy/resume", {"secrets": {"WANDB": "hunter22-secret"}}, 409)
    assert served.get("/api/jobs/toy")["secrets_missing"] == []
    kit.eventually(lambda: two.read(0.1) and two.briefs.get("toy-0001") and two.briefs["toy-0001"].secrets)
    assert two.briefs["toy-0001"].secrets == {"WANDB": "hunter22-secret"}


def test_variables_that_are_no_utf_8_reach_the_agent_byte_for_byte_also_after_a_restart(
    serve: Any, agent: Any, kit: Any, tmp_path: Path
) -> None:
    served = serve()
    one = agent(served)
    one.report()
    given = {"RAW": os.fsdecode(b"\xff\xfe"), os.fsdecode(b"N\xff"): "1", "TEXT": "é,漢 \n$x"}
    folder = tmp_path / "runs" / "toy-0001"
    body = {"spec": kit.spec_to_dict(kit.spec()), "run_dir": str(folder), "env": given}
    with served.http() as client:
        content = json.dumps(body)
        assert (
            client.post("/api/jobs", content=content, headers={"content-type": "application/json"}).status_code == 201
        )
    start(one, kit, "toy-0001")
    assert one.briefs["toy-0001"].whole().env == given
    served.kill()
    served.start(served.port)
    two = agent(served, boot="boot2")
    two.report()
    start(two, kit, "toy-0001", attempt=2)
    assert two.briefs["toy-0001"].whole().env == given
