"""Jobs that get stuck, each in another way: who is named, as what, on which grounds, and what is done."""

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.e2e.conftest import SCRIPTS, Job

MakeJob = Callable[..., Job]
PATIENT = "watchdog: {patience: 2s}\n"


@dataclass(frozen=True)
class Stuck:
    """One way; `says` is in the incident's headline, `because` in one of its reasons."""

    script: str
    ranks: list[int]
    kind: str
    says: str
    because: str = ""
    fault: str = "hang"
    nproc: int = 2


QUICK = [
    Stuck("mesh.py crossed 25", [0, 1], "deadlock", "wait for each other across groups",
          "rank 0 is in all_reduce #25 of group 1 and waits for rank 1", nproc=4),
    Stuck("stuck.py gil 1 25", [1], "gil-held", "rank 1 not there (phase step, step 25", "holds the GIL"),
]  # fmt: skip
LONG = [
    Stuck("mesh.py late 25", [3], "not-arrived", "rank 3 not there", "no CPU used", nproc=4),
    Stuck("mesh.py kinds 25", [0, 1], "mismatched", "different collectives: rank 0 all_reduce; rank 1 broadcast", nproc=4),
    Stuck("stuck.py sleep 1 25", [1], "not-arrived", "1 of 2 ranks in all_reduce #49; rank 1 not there"),
    Stuck("stuck.py spin 0 25", [0], "not-arrived", "busy with"),
    Stuck("stuck.py stop 1 25", [1], "stopped", "rank 1 stopped by a signal"),
    Stuck("stuck.py loader 0 25", [0, 1], "all-in-loader", "all 2 ranks in the data loader"),
    Stuck("stuck.py one-loader 1 25", [1], "in-loader", "in its data loader"),
    Stuck("stuck.py early 1 25", [1], "early", "rank 1 ended with code 0 before the others", fault="crash"),
    Stuck("stuck.py missing 1 25", [0, 1], "mismatched", "different collectives: rank 0 all_reduce; rank 1 barrier"),
]  # fmt: skip


@pytest.mark.parametrize(
    "stuck",
    [*QUICK, *(pytest.param(one, marks=pytest.mark.long) for one in LONG)],
    ids=lambda stuck: stuck.script.removesuffix(" 25").replace(".py ", "-").replace(" ", "-"),
)
def test_a_stuck_job_is_named_ended_and_brought_to_its_end(make_job: MakeJob, stuck: Stuck) -> None:
    job = make_job(str(SCRIPTS / stuck.script), nproc=stuck.nproc, extra=PATIENT)
    assert job.run() == 0, job.story()
    [incident] = job.verdict["incidents"]
    [told] = (job.run_dir / "incidents").glob("*/incident.json")
    detail = json.loads(told.read_text())
    assert incident["class"] == stuck.fault
    assert detail["kind"].removesuffix("-exit") == stuck.kind, detail["headline"]
    assert detail["rank"] == stuck.ranks[0]
    assert stuck.says in incident["headline"]
    assert any(stuck.because in reason for reason in detail["because"])
    assert job.verdict["attempt"] == 2


def test_a_limit_past_the_scripts_own_collective_timeout_is_told_as_soon_as_it_is_known(make_job: MakeJob) -> None:
    script = f"{SCRIPTS / 'stuck.py'} none 0 0 --total 30 --timeout 20"
    job = make_job(script, extra="watchdog: {step: 30s}\n")
    assert job.run() == 0, job.story()
    assert "give a collective up after 20 s" in job.output()
    assert "step 30 s (watchdog.step)" in job.output()
    assert job.verdict["incidents"] == []


@pytest.mark.long
def test_a_steadily_slower_rank_is_reported_and_not_ended(make_job: MakeJob) -> None:
    job = make_job(f"{SCRIPTS / 'stuck.py'} slow 1 0 --total 400")
    job.start()
    [slow] = job.until("a straggler", lambda: job.status().get("stragglers"))
    assert slow["ranks"] == [1]
    assert slow["steps"] >= 50
    assert 1.6 < slow["factor"] < 2.6
    assert 0.3 < slow["lost"] < 0.7
    assert job.finish() == 0, job.story()
    assert "rank 1 is steadily slower than its peers" in job.output()
    assert job.verdict["incidents"] == []


@pytest.mark.long
def test_what_was_learned_of_its_pace_is_in_force_from_the_first_step_of_the_next_launch(make_job: MakeJob) -> None:
    job = make_job(f"{SCRIPTS / 'stuck.py'} none 0 0 --total 2000", every=50)
    job.start()
    job.wait_for_step(150)
    job.until("something learned", lambda: "learned" in str(job.status()["limits"]["step"])
              or "recent steps" in str(job.status()["limits"]["step"]))  # fmt: skip
    job.until("a file of it", (job.run_dir / "learned.json").exists)
    job.launches[-1].send_signal(signal.SIGTERM)
    job.finish()
    job.start()
    job.until("limits of an earlier attempt", lambda: "an earlier attempt" in str(job.status().get("limits")))
    job.zrun("stop", "--now")
    job.finish()
