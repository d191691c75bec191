"""`zrun drill` on a real job: what it finds is what was done to the job, and the runs are equal."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.e2e.conftest import SCRIPTS, Job

pytestmark = pytest.mark.e2e
TOY = f"{SCRIPTS / 'toy.py'} --steps"
EQUAL = {"losses": "equal", "samples": "equal", "weights": "equal"}
Make = Callable[..., Job]


def drilled(job: Job, *faults: str, code: int = 0, timeout: float = 280.0) -> dict[str, Any]:
    asked = [part for fault in faults for part in ("--fault", fault)]
    done = job.zrun("drill", "job.yaml", "--json", *asked, timeout=timeout)
    assert done.returncode == code, f"{done.stderr}\n{done.stdout}"
    found: dict[str, Any] = json.loads(done.stdout)
    assert job.processes() == []
    return found


def equal(found: dict[str, Any]) -> dict[str, str]:
    return {what: found["equal"][what] for what in EQUAL}


def test_a_killed_rank_is_found_survived_and_nothing_of_the_run_is_another(make_job: Make) -> None:
    job = make_job(f"{TOY} 20", every=5)
    found = drilled(job, "kill:rank=1,step=13")
    (fault,) = found["faults"]
    assert found["passed"], found["problems"]
    assert equal(found) == EQUAL
    assert (fault["came"]["step"], fault["came"]["rank"]) == (13, 1)
    assert fault["resumed_from"]["step"] in {10, 12, 13}, "the last checkpoint, or what the survivor held"
    assert fault["steps_lost"] <= 2
    assert "SIGKILL" in fault["told"]
    assert found["runs"]["disturbed"]["attempts"] == 2
    assert not (job.folder / "runs").exists(), "the job's own runs are left alone"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_faults_from_within_and_without_are_survived_one_after_the_other(make_job: Make) -> None:
    faults = ["exit:rank=0,step=5", "oom:step=13", "stop:rank=0,step=24", "disk-full:rank=0,step=28",
              "coordinator-kill:step=35", "preempt:step=42"]  # fmt: skip
    found = drilled(make_job(f"{TOY} 80"), *faults, timeout=580)
    assert found["passed"], found["problems"]
    assert equal(found) == EQUAL
    told = {fault["kind"]: fault for fault in found["faults"]}
    assert told["stop"]["detected_s"] < 5
    assert "disk full" in told["disk-full"]["told"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_damaged_checkpoint_and_a_lost_agent_are_survived_and_a_poisoned_batch_is_left_out(make_job: Make) -> None:
    found = drilled(
        make_job(f"{TOY} 50"), "corrupt-checkpoint:rank=1,step=15", "node-loss:step=28", "poison:rank=0,step=40",
        timeout=580,
    )  # fmt: skip
    assert found["passed"], found["problems"]
    damaged = found["faults"][0]
    assert damaged["resumed_from"]["tier"] == "disk"
    assert damaged["resumed_from"]["step"] < damaged["came"]["checkpoint"]
    assert found["equal"]["left_out_from"] == 40
    assert equal(found) == EQUAL | {"weights": "not looked at"}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_hangs_are_told_as_hangs_of_the_right_rank_and_a_slow_rank_as_a_straggler(make_job: Make) -> None:
    job = make_job(f"{TOY} 120", extra="watchdog: {patience: 3s}\n")
    found = drilled(job, "hang:rank=1,step=20", "spin:rank=0,step=30", "slow:rank=1,step=45", timeout=580)
    assert found["passed"], found["problems"]
    assert equal(found) == EQUAL
    assert found["faults"][2]["incidents"] == []


@pytest.mark.long
def test_a_script_that_does_not_do_the_same_twice_is_found_out(make_job: Make) -> None:
    job = make_job("noisy.py")
    (job.folder / "noisy.py").write_text(NOISY)
    found = drilled(job, "none", code=1)
    assert found["equal"]["losses"] == "different"
    assert found["equal"]["first_difference"]["step"] == 1


@pytest.mark.long
def test_what_cannot_be_drilled_is_refused_with_the_way_out(make_job: Make) -> None:
    job = make_job(f"{TOY} 5")
    for faults, said in ((["kill:rank=2"], "ranks 0 to 1"), (["cut-off"], "node-loss"), (["kil"], "did you mean kill")):
        done = job.zrun("drill", "job.yaml", *(part for fault in faults for part in ("--fault", fault)))
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert not (job.folder / "drills").exists()
    late = job.zrun("drill", "job.yaml", "--fault", "kill:step=6", timeout=120)
    assert (late.returncode, "has made 5 steps" in late.stderr) == (2, True), late.stderr


NOISY = """
import os, torch
from zrun.worker import Session

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Session(model=torch.nn.parallel.DistributedDataParallel(model) if torch.distributed.is_initialized() else model,
             optimizer=optimizer) as run:
    for step in run.steps(total=3):
        loss = model(torch.ones(1, 2)).sum() * int.from_bytes(os.urandom(4))
        loss.backward()
        optimizer.step()
        run.report(loss=loss.item())
"""
