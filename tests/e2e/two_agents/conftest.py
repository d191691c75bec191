"""One job on several nodes: a coordinator service and agents under different names, all real processes of one machine.

`make_cluster()` starts them, `cluster.job(...)` is a job that is handed over to them; everything is swept at the end
and nothing may be left.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import SCRIPTS, ZRUN, Job, job_yaml, until

APART = f"{SCRIPTS / 'apart.py'}"
"""Ranks that meet in a few collectives and then sleep outside of any."""


@dataclass
class Cluster:
    """`agents` by node name."""

    folder: Path
    env: dict[str, str]
    coordinator: "subprocess.Popen[bytes] | None" = None
    agents: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)
    begun: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    jobs: "list[ClusterJob]" = field(default_factory=list)
    port: int = 0

    @property
    def home(self) -> Path:
        return self.folder / "coordinator"

    def start_coordinator(self) -> None:
        """At the same port if it was there before."""
        self.home.mkdir(exist_ok=True)
        (self.home / "coordinator.json").unlink(missing_ok=True)
        self.coordinator = self._start("coordinator", "--dir", str(self.home), "--port", str(self.port))
        address = until("the coordinator's address", self._address, 30)
        self.port = int(address.rpartition(":")[2])
        self.env |= {"ZRUN_COORDINATOR": address, "ZRUN_TOKEN_FILE": str(self.home / "token")}

    def _address(self) -> str:
        try:
            return str(json.loads((self.home / "coordinator.json").read_text())["address"])
        except OSError:
            return ""

    def start_agent(self, node: str, folder: Path | None = None) -> None:
        """`folder`: where its agent stands, so what `/proc/self/cwd` is there."""
        token = str(self.home / "token")
        join = self.env["ZRUN_COORDINATOR"]
        self.agents[node] = self._start(
            "agent", "--join", join, "--token-file", token, "--node", node, log=f"agent-{node}", folder=folder
        )

    def _start(self, *arguments: str, log: str = "", folder: Path | None = None) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{log or arguments[0]}.log").open("ab") as out:
            process = subprocess.Popen(
                [*ZRUN, *arguments], cwd=folder or self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self.begun.append(process)
        return process

    def kill(self, node: str) -> None:
        """Its agent, without a word; its keeper ends its workers."""
        self.agents[node].kill()
        self.agents[node].wait()

    def job(self, run: str, *, nproc: int = 1, nodes: int = 2, extra: str = "", restart: str = "") -> "ClusterJob":
        text = job_yaml("toy", run, nproc=nproc, extra=f"nodes: {nodes}\n{extra}", restart=restart)
        (self.folder / "job.yaml").write_text(text)
        self.jobs.append(ClusterJob(self.folder, self.env))
        return self.jobs[-1]

    def log(self, node: str) -> str:
        return (self.folder / f"agent-{node}.log").read_text(errors="replace")

    def events(self, node: str, what: str) -> list[dict[str, Any]]:
        """Lines of an agent's own log."""
        lines = [line for line in self.log(node).splitlines() if line.startswith("{")]
        return [line for line in map(json.loads, lines) if what in line["msg"]]

    def end(self) -> None:
        for process in self.begun:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.begun:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class ClusterJob(Job):
    """A job on a cluster; what it says when a test fails holds the agents' logs too."""

    def story(self) -> str:
        logs = [f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self.folder.glob("*.log")]
        return "\n".join([super().story(), *logs])

    def workers(self, node: str) -> dict[int, int]:
        """rank -> pid, as the coordinator was told last."""
        found = [n for n in self.status().get("nodes", []) if n["node"] == node]
        return {rank["rank"]: rank["pid"] for n in found for rank in n["ranks"]}

    def wait_until_apart(self, ranks: int, attempt: int = 1) -> None:
        """Every rank has left its last collective and sleeps."""

        def asleep() -> bool:
            if not list((self.folder / "runs").glob("*")):
                return False
            told = [[line["msg"] for line in self.log_lines(attempt, rank)] for rank in range(ranks)]
            return all("apart" in lines for lines in told)

        self.until("all ranks asleep", asleep, 120)

    @property
    def incident(self) -> dict[str, Any]:
        """The first one."""
        found: dict[str, Any] = self.verdict["incidents"][0]
        return found


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """`make_cluster("a", "b")`: a coordinator and agents with these names, all connected soon."""
    made: list[Cluster] = []

    def make(*nodes: str) -> Cluster:
        folder = tmp_path / f"cluster{len(made)}"
        folder.mkdir()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ZRUN_")}
        environment.pop("PYTHONUNBUFFERED", None)
        environment |= {
            "XDG_STATE_HOME": str(tmp_path / f"state{len(made)}"), "OMP_NUM_THREADS": "1", "E2E_FOLDER": str(folder),
        }  # fmt: skip
        cluster = Cluster(folder, environment)
        made.append(cluster)
        cluster.start_coordinator()
        for node in nodes:
            cluster.start_agent(node)
        return cluster

    yield make
    for cluster in made:
        cluster.end()
    jobs = [job for cluster in made for job in cluster.jobs]
    left = {str(job.folder): job.processes() for job in jobs}
    for job in jobs:
        job.end()
    ours = [run.name for cluster in made for run in (cluster.folder / "runs").glob("*")]
    swept = [path for run in ours for path in Path("/dev/shm").glob(f"zrun-{run}-*")]
    for path in swept:
        shutil.rmtree(path)
    assert all(not pids for pids in left.values()), f"left behind: {left}"
    assert swept == [], "shared memory was left behind"


def alive(pids: list[int]) -> list[int]:
    """Those that still run."""
    return [pid for pid in pids if _state(pid) not in "ZX"]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
