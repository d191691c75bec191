"""A coordinator as a real process, and an agent that is only a WebSocket and does what a test says."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from zrun.core.batch import BatchId
from zrun.core.deck import Phase
from zrun.core.durable import write_json
from zrun.core.rows import RankRow, RowFlag, pack_rows
from zrun.spec.job import Backoff, JobSpec, Restart, Watchdog, spec_to_dict
from zrun.wire.frames import PROTOCOL, decode_down, encode
from zrun.wire.order import Brief, Down, Goodbye, JobOrder, Leave, Order, Stacks
from zrun.wire.report import CheckpointInfo, Doing, Hello, JobReport, NodeReport, Vitals

DEADLINE_S = 20.0
PROGRAM = """
import sys
from pathlib import Path
from zrun.coordinator.main import CoordinatorConfig, run_coordinator
kind, home, port, linger = sys.argv[1:5]
config = CoordinatorConfig(**{kind: Path(home)}, port=int(port), linger_s=float(linger))
sys.exit(run_coordinator(config))
"""


def spec(name: str = "toy", **more: Any) -> JobSpec:
    return JobSpec(
        name=name, run=["train.py"], nproc_per_node=2, restart=more.pop("restart", Restart()),
        watchdog=more.pop("watchdog", Watchdog()), **more,
    )  # fmt: skip


def eventually(what: Callable[[], Any], why: str = "") -> Any:
    """The first true value of `what`; fails after DEADLINE_S."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError(f"it never came: {why or what}")


@dataclass
class Served:
    """A coordinator process and how to talk to it."""

    kind: str
    home: Path
    linger_s: float = 0.2
    process: subprocess.Popen[bytes] | None = None
    address: str = ""
    env: dict[str, str] = field(default_factory=dict)

    def start(self, port: int = 0) -> "Served":
        (self.home / "coordinator.json").unlink(missing_ok=True)
        log = (self.home / "coordinator.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, self.kind, str(self.home), str(port), str(self.linger_s)],
            stderr=log, env={**os.environ, **self.env},
        )  # fmt: skip
        log.close()
        self.address = eventually(self._address, "coordinator.json")
        return self

    def _address(self) -> str:
        assert self.process
        assert self.process.poll() is None, (self.home / "coordinator.log").read_text()
        try:
            return str(json.loads((self.home / "coordinator.json").read_text())["address"])
        except FileNotFoundError:
            return ""

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    def kill(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def ended(self) -> int:
        assert self.process
        return self.process.wait(DEADLINE_S)

    def http(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.address, headers={"Authorization": f"Bearer {self.token}"}, timeout=10)

    def get(self, path: str, **params: Any) -> Any:
        with self.http() as client:
            answer = client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, status: int = 202) -> Any:
        with self.http() as client:
            answer = client.post(path, json=body if body is not None else {})
        assert answer.status_code == status, answer.text
        return answer.json()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class FakeAgent:
    """`report(...)` says what is; `order(...)` reads until an order for the job fits."""

    def __init__(self, served: Served, node: str = "n1", boot: str = "boot1") -> None:
        self.served, self.node, self.boot = served, node, boot
        self.serial = 0
        self.obeyed = 0
        self.jobs: dict[str, JobReport] = {}
        self.briefs: dict[str, Any] = {}
        self.socket: Any = None
        self.heard: list[Down] = []

    def connect(self, **hello: Any) -> "FakeAgent":
        self.socket = connect(
            f"ws://127.0.0.1:{self.served.port}/api/agents", compression=None, legacy=True,
            additional_headers={"Authorization": f"Bearer {self.served.token}"}, close_timeout=1,
        )  # fmt: skip
        said = {"protocol": PROTOCOL, "node": self.node, "boot": self.boot, "zrun": "test", **hello}
        self.socket.send(encode(Hello(**said)))
        return self

    def report(self, job: str = "", **said: Any) -> None:
        if job:
            self.jobs[job] = JobReport(**{"doing": Doing.IDLE, "attempt": 0, "seen": 0, **said})
        self.serial += 1
        assert self.socket
        self.socket.send(
            encode(NodeReport(self.node, self.boot, self.serial, self.obeyed, dict(self.jobs), Vitals(), time.time()))
        )

    def read(self, timeout_s: float = 1.0) -> Down | None:
        assert self.socket
        try:
            frame = self.socket.recv(timeout=timeout_s)
        except TimeoutError:
            return None
        assert isinstance(frame, bytes)
        message = decode_down(frame)
        self.heard.append(message)
        if isinstance(message, Order):
            assert message.boot == self.boot
            assert message.serial >= self.obeyed
            self.obeyed = message.serial
        elif isinstance(message, Brief):
            self.briefs |= {brief.job: brief for brief in message.jobs}
        return message

    def order(self, job: str, fits: Callable[[JobOrder], bool]) -> JobOrder:
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            message = self.read(0.5)
            if isinstance(message, Order) and job in message.jobs and fits(message.jobs[job]):
                assert job in self.briefs, "an order came before its brief"
                return message.jobs[job]
            self.report()
        raise AssertionError(f"no such order came; heard {self.heard[-3:]}")

    def expect(self, kind: type[Down]) -> Any:
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            message = self.read(0.5)
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} came")

    def closed(self) -> tuple[int, str]:
        """Read until the other side closes: (code, reason)."""
        assert self.socket
        try:
            while True:
                self.socket.recv(timeout=DEADLINE_S)
        except ConnectionClosed as error:
            return (error.rcvd.code, error.rcvd.reason) if error.rcvd else (0, "")

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()


def rows(step: int, **more: Any) -> bytes:
    """Two healthy ranks doing `step`."""
    flags = RowFlag.ALIVE | RowFlag.SESSION | (RowFlag.STEPPING if step > 1 else RowFlag(0)) | more.pop("flags", 0)
    values = {
        "pid": 100, "step": step, "phase": Phase.STEP if step > 1 else Phase.FIRST_STEP, "age_s": 0.01,
        "phase_age_s": 0.1, "step_s": 0.05, "coll_seq": 0, "coll_age_s": 0.0, "coll_op": "none", "cpu": 1.0,
        "state": "R", "batch": BatchId(0, step, 7) if step else None, **more,
    }  # fmt: skip
    return pack_rows([RankRow(rank=rank, flags=flags, **values) for rank in (0, 1)])


@pytest.fixture
def kit() -> Any:
    """The classes above, for tests (this folder is no package)."""
    return sys.modules[__name__]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """`serve()` a coordinator for many jobs, `serve(spec)` an embedded one."""
    started: list[Served] = []

    def begin(job: JobSpec | None = None, **more: Any) -> Served:
        home = tmp_path / (f"{job.name}-{len(started):04x}" if job else f"home-{len(started)}")
        home.mkdir()
        if job:
            write_json(home / "spec.json", spec_to_dict(job))
        served = Served("embedded" if job else "dir", home, **more)
        started.append(served)
        return served.start()

    yield begin
    for served in started:
        served.close()


@pytest.fixture
def agent() -> Iterator[Callable[..., FakeAgent]]:
    made: list[FakeAgent] = []

    def begin(served: Served, **more: Any) -> FakeAgent:
        one = FakeAgent(served, **more)
        made.append(one)
        return one.connect()

    yield begin
    for one in made:
        one.close()


__all__ = ["Backoff", "CheckpointInfo", "Doing", "Goodbye", "Leave", "Order", "Stacks"]
