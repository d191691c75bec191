"""A coordinator that a test leads by hand, an agent beside it, and ranks that need no torch."""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosedError

from zrun.agent.main import Agent, AgentConfig
from zrun.core.durable import write_json
from zrun.spec.job import spec_from_dict, spec_to_dict
from zrun.wire.frames import decode_up, encode
from zrun.wire.order import Brief, Down, End, Ending, JobBrief, JobOrder, LaunchPlan, Leave, Order, Peer
from zrun.wire.report import Doing, Hello, JobReport, NodeReport

STAND_INS = Path(__file__).with_name("stand_ins")
TOKEN = "0123456789abcdef"


def plan(attempt: int, nproc: int = 2) -> LaunchPlan:
    return LaunchPlan(
        attempt=attempt, node_rank=0, nnodes=1, nproc=nproc, master_addr="127.0.0.1", master_port=0, peers=[Peer("a")]
    )


@dataclass
class FakeCoordinator:
    """Takes what agents say; says what the test wants said."""

    run_dir: Path
    brief: JobBrief
    port: int = 0
    socket: ServerConnection | None = None
    hello: Hello | None = None
    reports: list[NodeReport] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    refused: int = 0
    serial: int = 0

    async def serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        assert socket.request.headers["Authorization"] == f"Bearer {TOKEN}"
        self.socket = socket
        with contextlib.suppress(ConnectionClosedError):  # an agent was killed
            await self._read(socket)

    async def _read(self, socket: ServerConnection) -> None:
        async for frame in socket:
            assert isinstance(frame, bytes)
            message = decode_up(frame)
            if isinstance(message, Hello):
                self.hello = message
                await self.say(Brief([self.brief]))
            if isinstance(message, NodeReport):
                self.reports.append(message)
                self.heard.set()

    async def say(self, message: Down) -> None:
        assert self.socket is not None
        await self.socket.send(encode(message))

    async def order(self, order: JobOrder) -> None:
        assert self.hello is not None
        self.serial += 1
        await self.say(Order(self.hello.boot, self.serial, {self.brief.job: order}))

    async def run(self, attempt: int, nproc: int = 2, **more: Any) -> None:
        await self.order(JobOrder(run=plan(attempt, nproc), attempt=attempt, **more))

    async def end(self, attempt: int, how: End = End.KILL, within_s: float = 5.0, **more: Any) -> None:
        await self.order(JobOrder(ending=Ending(how, within_s, "a test says so"), attempt=attempt, **more))

    async def until(self, what: Callable[[JobReport], bool], limit_s: float = 20.0) -> JobReport:
        """The first report, from now on, of which `what` is true."""
        deadline = time.monotonic() + limit_s
        while True:
            report = self.reports[-1].jobs.get(self.brief.job) if self.reports else None
            if report is not None and what(report):
                return report
            self.heard.clear()
            left = deadline - time.monotonic()
            try:
                await asyncio.wait_for(self.heard.wait(), max(0.01, left))
            except TimeoutError:
                raise AssertionError(f"not within {limit_s} s; last: {report}") from None

    async def until_doing(self, doing: Doing, attempt: int) -> JobReport:
        return await self.until(lambda r: r.doing == doing and r.attempt == attempt and r.settled)

    async def until_gone(self) -> None:
        """The job is in no report any more."""
        deadline = time.monotonic() + 10
        while self.brief.job in self.reports[-1].jobs:
            self.heard.clear()
            await asyncio.wait_for(self.heard.wait(), max(0.01, deadline - time.monotonic()))

    async def leave(self) -> None:
        await self.say(Leave("the test is over"))

    async def connected(self, boot_before: str = "") -> None:
        deadline = time.monotonic() + 20
        while self.hello is None or self.hello.boot == boot_before or not self.reports:
            self.heard.clear()
            await asyncio.wait_for(self.heard.wait(), max(0.01, deadline - time.monotonic()))


@dataclass
class Place:
    """A run's folder with a script in it."""

    run_dir: Path
    work: Path
    python: Path
    job: str
    """Of its own in each test: others may run on the same machine."""

    def brief(self, script: str, **spec: Any) -> JobBrief:
        (self.work / "train.py").write_text(script)
        spec = {"python": str(self.python), "standby": {"enabled": False}, **spec}
        job = {"name": "toy", "run": ["train.py"], "workdir": str(self.work), **spec}
        return JobBrief(self.job, str(self.run_dir), spec_to_dict(spec_from_dict(job)), dict(os.environ))

    @asynccontextmanager
    async def coordinator(self, brief: JobBrief, port: int = 0) -> AsyncIterator[FakeCoordinator]:
        fake = FakeCoordinator(self.run_dir, brief)
        async with serve(fake.serve, "127.0.0.1", port) as server:
            fake.port = next(iter(server.sockets)).getsockname()[1]
            write_json(self.run_dir / "coordinator.json", {"address": f"http://127.0.0.1:{fake.port}", "pid": 1})
            yield fake

    @asynccontextmanager
    async def agent(self, fake: FakeCoordinator) -> AsyncIterator["asyncio.Task[Any]"]:
        """In this process; ends by Leave unless it ended itself."""
        agent = Agent(AgentConfig(run_dir=self.run_dir, node="a"), structlog.wrap_logger(_Quiet()))
        task = asyncio.create_task(agent.run())
        try:
            await fake.connected()
            yield task
            if not task.done():
                await fake.say(Leave("the test is over"))
                await asyncio.wait_for(task, 15)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def agent_process(self) -> "subprocess.Popen[bytes]":
        code = (
            "import sys; from pathlib import Path; from zrun.agent.main import AgentConfig, run_agent;"
            f"sys.exit(run_agent(AgentConfig(run_dir=Path({str(self.run_dir)!r}), node='a')))"
        )
        with (self.run_dir / "agent.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-c", code], stderr=log, start_new_session=True)


class _Quiet:
    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_a, **_k: None


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    run_dir, work = tmp_path / "run", tmp_path / "work"
    run_dir.mkdir()
    work.mkdir()
    (run_dir / "token").write_text(TOKEN + "\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_INS / "torchrun.py"}" "$@"\n')
    python.chmod(0o755)
    job = f"toy-{secrets.token_hex(3)}"
    yield Place(run_dir, work, python, job)
    for pid in bearers(job):
        os.kill(pid, signal.SIGKILL)
    assert not left_in_shm(job)


def bearers(job: str) -> list[int]:
    """Living processes of one job."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environ = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"ZRUN_MARK={job}/".encode() in environ and state not in "ZX":
            found.append(int(entry.name))
    return found


def left_in_shm(job: str) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"zrun-{job}-*")]


@pytest.fixture
def living(place: Place) -> Callable[[], list[int]]:
    return lambda: bearers(place.job)


@pytest.fixture
def shared_memory(place: Place) -> Callable[[], list[str]]:
    return lambda: left_in_shm(place.job)
