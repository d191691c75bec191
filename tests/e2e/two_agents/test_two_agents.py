"""One job on two nodes: it trains as one job, and what ends on one node is known and ended on the other."""

import os
import signal
import time
from collections.abc import Callable

import pytest
from tests.e2e.conftest import SCRIPTS, until
from tests.e2e.two_agents.conftest import APART, Cluster, alive

TOY = f"{SCRIPTS / 'toy.py'} --steps 12"
NEVER = "policy: never"

pytestmark = pytest.mark.e2e


def test_one_job_on_two_agents_ends_well_and_every_line_says_which_node_and_rank_wrote_it(
    make_cluster: Callable[..., Cluster],
) -> None:
    job = make_cluster("a", "b").job(TOY, nproc=2)
    assert job.run() == 0, job.story()
    assert [(a["outcome"], a["last_step"]) for a in job.verdict["attempts"]] == [("finished", 12)]
    for rank, (node, local_rank) in enumerate([("a", 0), ("a", 1), ("b", 0), ("b", 1)]):
        lines = [line for line in job.log_lines(1, rank) if line["msg"].startswith("step ")]
        assert len(lines) == 12
        told = {(line["job"], line["attempt"], line["node"], line["rank"], line["local_rank"]) for line in lines}
        assert told == {(job.run_dir.name, 1, node, rank, local_rank)}
    of_b = job.zrun("logs", "--node", "b", "--grep", "step 12 ").stdout
    assert [f"[rank {rank}]" in of_b for rank in range(4)] == [False, False, True, True]


def test_an_exception_on_one_node_ends_every_rank_on_every_node(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster("a", "b")
    job = cluster.job(f"{APART} 1:raise", restart=NEVER)
    job.start()
    job.wait_until_apart(2)
    pids = [pid for node in "ab" for pid in job.workers(node).values()]
    assert len(pids) == 2
    final = job.wait_for_state("FAILED", within_s=15)
    assert alive(pids) == [], "FAILED was published while workers lived"
    assert job.finish() == 100
    assert (final["incidents"][0]["rank"], final["incidents"][0]["node"]) == (1, "b")
    assert final["incidents"][0]["exception"] == "ValueError"
    (ended,) = [line for line in cluster.events("a", "kill all") if "rank 1: ValueError" in line["why"]]
    assert ended


@pytest.mark.long
def test_a_node_that_vanishes_is_noticed_whatever_the_other_is_doing(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster("a", "b")
    job = cluster.job(APART)
    job.start()
    job.wait_until_apart(2)
    pids = list(job.workers("a").values())
    cluster.kill("b")
    gone = time.monotonic()
    until("the sleeping rank of the other node ended", lambda: not alive(pids), 15)
    assert time.monotonic() - gone < 10
    status = job.wait_for_state("RECOVERING")
    assert "1 of 2 ready" in status["reason"] or "waiting" in status["reason"]
    cluster.start_agent("b")
    assert job.finish() == 0, job.story()
    assert (job.incident["class"], job.incident["node"]) == ("node", "b")
    assert [a["outcome"] for a in job.verdict["attempts"]] == ["fault", "finished"]


@pytest.mark.long
def test_a_killed_worker_is_told_to_all_agents_though_no_backend_raises(make_cluster: Callable[..., Cluster]) -> None:
    job = make_cluster("a", "b").job(APART)
    job.start()
    job.wait_until_apart(2)
    survivor = list(job.workers("a").values())
    os.kill(job.workers("b")[1], signal.SIGKILL)
    until("the survivor ended", lambda: not alive(survivor), 10)
    assert job.finish() == 0, job.story()
    assert (job.incident["rank"], job.incident["node"], job.incident["signal"]) == (1, "b", "SIGKILL")


@pytest.mark.long
def test_a_job_is_not_called_failed_while_a_rank_of_another_node_lives(make_cluster: Callable[..., Cluster]) -> None:
    job = make_cluster("a", "b").job(f"{APART} 1:exit1", restart=NEVER)
    job.start()
    job.wait_until_apart(2)
    pids = list(job.workers("a").values())
    os.kill(pids[0], signal.SIGSTOP)  # it answers no TERM either
    job.wait_for_state("FAILED", within_s=20)
    assert alive(pids) == []
    assert job.finish() == 100
    assert (job.incident["rank"], job.incident["exit_code"]) == (1, 1)


@pytest.mark.long
def test_a_worker_taken_away_with_a_notice_is_a_preemption_and_charged_as_one(
    make_cluster: Callable[..., Cluster],
) -> None:
    job = make_cluster("a", "b").job(APART, restart="budgets: {crash: 0, preemption: 1}")
    job.start()
    job.wait_until_apart(2)
    (job.run_dir / "node-b" / "notice").write_text("evicted\n")
    survivor = list(job.workers("a").values())
    os.kill(job.workers("b")[1], signal.SIGKILL)
    until("the survivor ended", lambda: not alive(survivor), 10)
    assert job.finish() == 0, job.story()
    assert (job.incident["class"], job.incident["rank"]) == ("preemption", 1)
    assert any("evicted" in reason for reason in job.incident["because"])
    assert [a["outcome"] for a in job.verdict["attempts"]] == ["fault", "finished"]
