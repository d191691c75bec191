"""Silence between nodes: a coordinator that is down stops nobody, a node that hears nobody stops by itself."""

import os
import signal
from collections.abc import Callable

import pytest
from tests.e2e.conftest import until
from tests.e2e.two_agents.conftest import APART, Cluster, alive

UNREACHABLE = 3

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_training_on_two_nodes_goes_on_while_the_coordinator_is_down(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster("a", "b")
    job = cluster.job(APART)
    job.start("-d")
    job.wait_until_apart(2)
    pids = [pid for node in "ab" for pid in job.workers(node).values()]
    assert cluster.coordinator
    cluster.coordinator.kill()
    cluster.coordinator.wait()
    # Both have asked each other by then, for a lease and more.
    until("both to know what the silence means", lambda: all(cluster.events(n, "training goes on") for n in "ab"), 30)
    assert sorted(alive(pids)) == sorted(pids)
    cluster.start_coordinator()
    job.wait_for_state("RUNNING", within_s=60)
    assert sorted(alive(pids)) == sorted(pids)
    assert job.status()["attempt"] == 1
    assert job.zrun("stop").returncode == 0
    job.wait_for_state("STOPPED", within_s=60)


@pytest.mark.long
def test_an_agent_that_hears_neither_coordinator_nor_peers_ends_its_workers_and_itself(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster("a", "b")
    job = cluster.job(f"{APART} 0:stop")
    job.start("-d")
    job.wait_until_apart(2)
    pids = list(job.workers("a").values())
    assert cluster.coordinator
    cluster.coordinator.send_signal(signal.SIGSTOP)
    cluster.kill("b")
    until("the stopped rank of node a ended", lambda: not alive(pids), 15)
    assert "nor does node b" in cluster.log("a")
    assert cluster.agents["a"].wait(60) == UNREACHABLE
    os.kill(cluster.coordinator.pid, signal.SIGCONT)
