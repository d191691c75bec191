"""Nodes that have different folders under the name of checkpoint.dir: refused before a rank starts, all of them named."""

from collections.abc import Callable

import pytest
from tests.e2e.two_agents.conftest import APART, Cluster

from zrun.core.manifest import CONTROL

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_a_launch_whose_nodes_do_not_share_the_folder_is_refused_with_their_names(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster("a")
    for node in "bc":
        (cluster.folder / node).mkdir()
        cluster.start_agent(node, cluster.folder / node)
    # A name that is another folder in each agent, as a mount that two machines lack.
    job = cluster.job(APART, nodes=3)
    job.start("--set", "checkpoint.dir=/proc/self/cwd/mounted")
    assert job.finish() == 100, job.story()
    assert job.verdict["state"] == "FAILED", job.story()
    assert len(job.verdict["attempts"]) == 1, "trying again would not help"
    incident = job.incident
    assert (
        "nodes b, c: checkpoint.dir /proc/self/cwd/mounted is not the folder that node a has" in incident["headline"]
    ), job.story()
    assert "set checkpoint.dir to a folder that all nodes share" in str(incident), job.story()
    started = sorted(path.name for path in job.run_dir.glob("logs/attempt-1/rank-*"))
    assert started == ["rank-0.jsonl"], "only the first node's"
    assert list((cluster.folder / "mounted" / CONTROL).glob("nonce-1-*"))
