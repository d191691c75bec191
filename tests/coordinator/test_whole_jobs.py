"""A fake agent over a real WebSocket takes whole jobs through a real coordinator process."""

import json
from typing import Any


def start(agent: Any, kit: Any, job: str, attempt: int = 1) -> Any:
    """Obey the order to run until every rank has completed a step."""
    order = agent.order(job, lambda o: o.run is not None and o.run.attempt == attempt)
    agent.report(job, doing=kit.Doing.STARTING, attempt=attempt, seen=attempt)
    agent.report(job, doing=kit.Doing.RUNNING, attempt=attempt, seen=attempt, rows=kit.rows(1), resumed_step=0)
    return order


def end(agent: Any, kit: Any, job: str, attempt: int) -> None:
    agent.order(job, lambda o: o.release)
    del agent.jobs[job]
    agent.report()


def test_a_job_that_goes_well_ends_succeeded_and_the_coordinator_with_0(serve: Any, agent: Any, kit: Any) -> None:
    served = serve(kit.spec())
    job = served.home.name
    one = agent(served)
    one.report()
    order = start(one, kit, job)
    assert order.run.nproc == 2
    assert one.briefs[job].run_dir == str(served.home)
    running = {"doing": kit.Doing.RUNNING, "attempt": 1, "seen": 1, "resumed_step": 0}
    one.report(job, **running, rows=kit.rows(3))
    kit.eventually(lambda: served.get("/api/jobs/toy")["state"] == "RUNNING", "RUNNING")
    done = kit.rows(9, flags=kit.RowFlag.FINISHED, phase=kit.Phase.DONE)
    kept = [kit.CheckpointInfo(9, "e0-s000009-00000007", "/x/step-000009", 10, 0.1)]
    one.report(job, **running | {"doing": kit.Doing.FINISHED}, rows=done, checkpoints=kept)
    end(one, kit, job, 1)
    one.expect(kit.Leave)
    one.close()
    assert served.ended() == 0
    verdict = json.loads((served.home / "verdict.json").read_text())
    assert (verdict["state"], verdict["job"]) == ("SUCCEEDED", job)
    lines = [json.loads(line) for line in (served.home / "events.jsonl").read_text().splitlines()]
    assert {"Submitted", "NodeHeard", "AttemptStarted", "ProgressVerified", "CheckpointCommitted"} <= {
        line.get("event") for line in lines
    }
    numbers = [line.get("n", line.get("because")) for line in lines]
    assert numbers == sorted(numbers)
    assert lines[-1]["decision"] in {"state", "order", "finished"}


def failure(rank: int = 1) -> dict[str, Any]:
    return {
        "rank": rank, "node": "n1", "kind": "raised", "at": 12.5, "exit_code": 1, "exception": "ValueError",
        "message": "bad sample", "where": "data.py:10", "traceback": "Traceback …\nValueError: bad sample", "step": 4,
        "batch": "e0-s000004-00000007", "last_lines": ["loss 1.0", "hunter22-secret"],
    }  # fmt: skip


def test_a_raise_leads_to_attempt_2_with_the_cause_on_disk_and_no_secret_anywhere(
    serve: Any, agent: Any, kit: Any
) -> None:
    spec = kit.spec(restart=kit.Restart(backoff={"crash": kit.Backoff(0.0, 0.0)}), secrets=["WANDB"])
    served = serve(spec, env={"WANDB": "hunter22-secret"})
    job = served.home.name
    one = agent(served)
    one.report()
    start(one, kit, job)
    assert one.briefs[job].secrets == {"WANDB": "hunter22-secret"}
    assert "WANDB" not in one.briefs[job].env
    running = {"doing": kit.Doing.RUNNING, "attempt": 1, "seen": 1, "resumed_step": 0}
    kept = [kit.CheckpointInfo(2, "e0-s000002-00000007", "/x/step-000002", 10, 0.1)]
    one.report(job, **running, rows=kit.rows(4), checkpoints=kept)
    fallen = running | {"doing": kit.Doing.FAILED, "failures": [failure()], "checkpoints": kept}
    dead = kit.rows(4, flags=kit.RowFlag.FAILED, state="Z")
    one.report(job, **fallen, rows=dead)
    order = one.order(job, lambda o: o.collect == 1)
    one.report(job, **fallen, rows=dead, collected=1)
    order = one.order(job, lambda o: o.ending is not None)
    assert order.attempt == 1
    one.report(job, doing=kit.Doing.IDLE, attempt=1, seen=1, failures=[failure()], collected=1, checkpoints=kept)
    start(one, kit, job, attempt=2)
    one.report(job, doing=kit.Doing.RUNNING, attempt=2, seen=2, rows=kit.rows(5), resumed_step=2, resumed_from="/x")
    status = kit.eventually(lambda: (s := served.get(f"/api/jobs/{job}"))["state"] == "RUNNING" and s, "attempt 2 runs")
    assert status["attempt"] == 2
    assert [a["outcome"] for a in status["attempts"]] == ["fault", None]
    assert status["incidents"][0]["rank"] == 1
    incident = served.get(f"/api/jobs/{job}/incidents/1")
    assert "bad sample" in incident["last_words"]
    one.report(job, doing=kit.Doing.FINISHED, attempt=2, seen=2, rows=kit.rows(9, flags=kit.RowFlag.FINISHED))
    end(one, kit, job, 2)
    one.expect(kit.Leave)
    one.close()
    assert served.ended() == 0
    folder = served.home / "incidents" / "0001"
    assert json.loads((folder / "incident.json").read_text())["class"] == "crash"
    assert "ValueError: bad sample" in (folder / "last-words.txt").read_text()
    assert "[secret]" in (folder / "last-lines.txt").read_text()
    for path in served.home.rglob("*"):
        assert not path.is_file() or b"hunter22-secret" not in path.read_bytes(), path


def test_kill_9_of_the_coordinator_costs_the_job_nothing(serve: Any, agent: Any, kit: Any) -> None:
    served = serve(kit.spec())
    job = served.home.name
    one = agent(served)
    one.report()
    start(one, kit, job)
    running = {"doing": kit.Doing.RUNNING, "attempt": 1, "seen": 1, "resumed_step": 0}
    one.report(job, **running, rows=kit.rows(3))
    before = kit.eventually(lambda: (s := served.get(f"/api/jobs/{job}"))["state"] == "RUNNING" and s)
    jobs = served.get("/api/jobs")["jobs"]
    served.kill()
    one.close()
    served.start(served.port)
    assert [(j["job"], j["state"], j["submitted"]) for j in served.get("/api/jobs")["jobs"]] == [
        (j["job"], j["state"], j["submitted"]) for j in jobs
    ]
    one.connect()
    one.report(job, **running, rows=kit.rows(30))
    order = one.order(job, lambda o: o.run is not None)
    assert order.run.attempt == 1, "the same attempt goes on"
    one.report(job, **running, rows=kit.rows(31))
    after = served.get(f"/api/jobs/{job}")
    assert (after["state"], after["attempt"]) == ("RUNNING", 1)
    assert after["attempts"][0]["at"] == before["attempts"][0]["at"]
    one.report(job, **running | {"doing": kit.Doing.FINISHED}, rows=kit.rows(40, flags=kit.RowFlag.FINISHED))
    end(one, kit, job, 1)
    one.expect(kit.Leave)
    one.close()
    assert served.ended() == 0
    numbers = [json.loads(x).get("n") for x in (served.home / "events.jsonl").read_text().splitlines()]
    told = [n for n in numbers if n is not None]
    assert told == sorted(set(told)), "each event stands in events.jsonl once"


def test_a_signal_ends_the_coordinator_with_its_own_code_and_the_job_goes_on(serve: Any, agent: Any, kit: Any) -> None:
    served = serve(kit.spec())
    one = agent(served)
    one.report()
    start(one, kit, served.home.name)
    served.process.terminate()
    assert served.ended() == 7
    served.start(served.port)
    assert served.get("/api/jobs/toy")["state"] in {"STARTING", "RUNNING"}


def test_a_job_that_ended_is_continued_by_resume_json(serve: Any, agent: Any, kit: Any) -> None:
    served = serve(kit.spec())
    job = served.home.name
    one = agent(served)
    one.report()
    start(one, kit, job)
    assert served.post(f"/api/jobs/{job}/stop", {"now": True})["job"] == job
    one.order(job, lambda o: o.ending is not None)
    one.report(job, doing=kit.Doing.IDLE, attempt=1, seen=1)
    end(one, kit, job, 1)
    one.expect(kit.Leave)
    one.close()
    assert served.ended() == 0
    assert json.loads((served.home / "verdict.json").read_text())["state"] == "STOPPED"
    (served.home / "resume.json").write_text("{}")
    served.start()
    assert not (served.home / "resume.json").exists()
    two = agent(served, boot="boot2")
    two.report()
    start(two, kit, job, attempt=2)
    kit.eventually(lambda: served.get(f"/api/jobs/{job}")["attempt"] == 2)


def test_many_jobs_come_in_over_http_and_share_a_node_one_after_the_other(
    serve: Any, agent: Any, kit: Any, tmp_path: Any
) -> None:
    served = serve()
    one = agent(served)
    one.report()
    first, second = tmp_path / "a-0001", tmp_path / "b-0002"
    body = {"spec": kit.spec_to_dict(kit.spec("a")), "env": {"PATH": "/bin", "ODD": "a=b\n,c"}, "run_dir": str(first)}
    assert served.post("/api/jobs", body, 201)["job"] == "a-0001"
    served.post("/api/jobs", {**body, "spec": kit.spec_to_dict(kit.spec("b")), "run_dir": str(second)}, 201)
    start(one, kit, "a-0001")
    assert one.briefs["a-0001"].env["ODD"] == "a=b\n,c"
    assert served.get("/api/jobs/b")["state"] == "PENDING"
    assert [j["job"] for j in served.get("/api/jobs")["jobs"]] == ["b-0002", "a-0001"]
    one.report("a-0001", doing=kit.Doing.FINISHED, attempt=1, seen=1, rows=kit.rows(4, flags=kit.RowFlag.FINISHED))
    end(one, kit, "a-0001", 1)
    start(one, kit, "b-0002")
    assert served.get("/api/jobs/a")["state"] == "SUCCEEDED"
    served.kill()
    served.start(served.port)
    assert [(j["job"], j["state"]) for j in served.get("/api/jobs")["jobs"]] == [
        ("b-0002", "STARTING"), ("a-0001", "SUCCEEDED")]  # fmt: skip
    assert (first / "env.json").stat().st_mode & 0o777 == 0o600
