"""The coordinator process: opens the journal, rebuilds what was, binds, serves, and ends when its one job is over.

Stopped by INT or TERM it ends with STOPPED_BY_SIGNAL and the jobs go on; HUP makes it read its token again.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog
import uvicorn
import uvloop
from fastapi import APIRouter

from zrun.coordinator.app import create_app
from zrun.coordinator.begin import begin_embedded
from zrun.coordinator.clock import MachineClock, SilenceClock
from zrun.coordinator.closing import close_when_over
from zrun.coordinator.commands import Commands
from zrun.coordinator.fleet import Fleet
from zrun.coordinator.gate import Keys, is_loopback
from zrun.coordinator.journal import Journal
from zrun.coordinator.peer_keys import PeerKeys
from zrun.coordinator.running import run_fleet
from zrun.coordinator.scribe import Scribe
from zrun.coordinator.stream import Changes
from zrun.core.durable import create_exclusive, write_json
from zrun.core.errors import LaunchError, UsageError, ZrunError
from zrun.core.own_log import Renderer
from zrun.core.private import make_folder
from zrun.core.runfolder import RunFolder
from zrun.wire.frames import LARGEST_UP

STOPPED_BY_SIGNAL: Final = 7
"""Exit code after INT or TERM: jobs are not over, a supervisor starts the coordinator again. 0 = the embedded job is
final, 1 = it could not start."""


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Exactly one of `dir` (many jobs) and `embedded` (the run folder of one) is set."""

    dir: Path | None = None
    embedded: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    allow_plain_http: bool = False
    linger_s: float = 3.0
    open_paths: frozenset[str] = field(default_factory=frozenset)
    """Paths that need no token: the login page's own files."""

    @property
    def home(self) -> Path:
        """Where journal.db, token and coordinator.json lie."""
        home = self.embedded or self.dir
        if home is None or (self.embedded and self.dir):
            raise UsageError("a coordinator needs either --dir or --embedded")
        return home.absolute()


def run_coordinator(config: CoordinatorConfig, routers: Sequence[APIRouter] = ()) -> int:
    """Serve until the embedded job is over (0) or a signal comes (STOPPED_BY_SIGNAL).

    Raises ZrunError if it cannot begin, for a person to read.
    """
    log = own_log()
    try:
        with contextlib.ExitStack() as opened:
            coordinator = Coordinator(config, log, opened)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(coordinator.serve(routers))
    except OSError as error:
        raise LaunchError(f"the coordinator cannot run: {error}") from error


class Coordinator:
    """Everything one process holds, built in the order in which it depends on each other."""

    def __init__(self, config: CoordinatorConfig, log: Any, opened: contextlib.ExitStack) -> None:
        if not is_loopback(config.host) and not config.allow_plain_http:
            raise UsageError(
                f"binding to {config.host} would send tokens and secrets over the network in the clear",
                "bind to 127.0.0.1, or say --allow-plain-http in a network you trust",
            )
        self.config = config
        self.log = log
        self.code = 0
        self.home = config.home
        make_folder(self.home)
        token = read_token(RunFolder(self.home).token)
        self.keys = Keys(token)
        self.socket = opened.enter_context(contextlib.closing(bind(config.host, config.port)))
        self.journal = Journal(RunFolder(self.home).journal)
        opened.callback(self.journal.close)
        self.scribe = Scribe(log)
        opened.callback(self.scribe.close)
        clock = MachineClock()
        self.fleet = Fleet(self.journal, self.scribe, clock, SilenceClock(), log, PeerKeys(token.encode()))
        if config.embedded:
            begin_embedded(self.fleet, RunFolder(self.home))
        for entry in self.journal.replay():
            self.fleet.replay(entry)
        self.fleet.clock.restart(self.journal.last_at)
        self.commands = Commands(self.fleet, embedded=config.embedded is not None)
        self.changes = Changes(lambda job: self.fleet.jobs[job].views.status())

    async def serve(self, routers: Sequence[APIRouter]) -> int:
        _, gated = create_app(
            self.fleet, self.commands, self.changes, self.keys, self.config.host, routers, self.config.open_paths
        )
        server = _Server(uvicorn.Config(
            gated, ws="websockets-sansio", http="httptools", loop="uvloop", lifespan="off", log_config=None,
            access_log=False, ws_per_message_deflate=False, ws_max_size=LARGEST_UP, ws_ping_interval=20.0,
            server_header=False, timeout_graceful_shutdown=2, proxy_headers=False,
        ))  # fmt: skip
        self._listen_to_signals(server)
        self.fleet.changed = self.changes.touch
        async with run_fleet(self.fleet, self.journal, RunFolder(self.home) if self.config.embedded else None):
            for job in self.fleet.jobs:
                self.changes.touch(job)
            announcing = asyncio.create_task(self._announce(server))
            closing = asyncio.create_task(self._close_when_over(server)) if self.config.embedded else None
            await server.serve(sockets=[self.socket])
            announcing.cancel()
            if closing is not None and not closing.done():
                closing.cancel()
            for link in list(self.fleet.links.values()):
                link.close("the coordinator stops")
        self.scribe.drain(5.0)
        return self.code

    async def _announce(self, server: "_Server") -> None:
        """Say where we are once we answer; the folder may be full, then those who know the port still find us."""
        await server.up.wait()
        address = f"http://{_url_host(self.config.host)}:{self.socket.getsockname()[1]}"
        value = {"address": address, "pid": os.getpid()}
        path = RunFolder(self.home).coordinator
        try:
            await asyncio.to_thread(write_json, path, value)
        except OSError as error:
            self.log.warning("coordinator.json cannot be written", because=str(error))
        self.log.info("serving", address=address, because="started", jobs=len(self.fleet.jobs))

    async def _close_when_over(self, server: "_Server") -> None:
        job = await close_when_over(self.fleet, self.config.linger_s)
        self.log.info("ends", job=job, because="the job is over")
        self._stop(server, 0)

    def _listen_to_signals(self, server: "_Server") -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, server, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.set_exception_handler(self._on_loop_error)

    def _on_signal(self, server: "_Server", number: signal.Signals) -> None:
        self.log.info("stops serving, jobs go on", because=number.name)
        self._stop(server, STOPPED_BY_SIGNAL)

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.log.error("own failure", because=str(context.get("message")), exc_info=context.get("exception"))

    def _stop(self, server: "_Server", code: int) -> None:
        if not server.should_exit:
            self.code = code
            self.changes.close()
            server.should_exit = True

    def _reload(self) -> None:
        try:
            self.keys.replace(read_token(RunFolder(self.home).token))
            self.log.info("token read again", because="SIGHUP")
        except (ZrunError, OSError) as error:
            self.log.warning("the old token stays", because=str(error))


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn would raise them again after its end and so replace our exit code."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises LaunchError if the port is taken or the address is not ours."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"{host!r} is no address of this machine: {error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise LaunchError(
            f"cannot listen on {host}:{port}: {error.strerror}", "choose another --port, or 0 for any"
        ) from error
    sock.setblocking(False)
    return sock


def read_token(path: Path) -> str:
    """The token in the file, made if there is none. Raises ZrunError if others could read or replace it."""
    with contextlib.suppress(FileExistsError):
        create_exclusive(path, (secrets.token_hex(32) + "\n").encode())
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle) as file:
        facts = os.fstat(file.fileno())
        token = file.read(4096).strip()
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise ZrunError(f"{path} may be read by others", f"chmod 600 {path}")
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise ZrunError(f"{path} holds no token", f"remove it: a new one is made; rm {path}")
    return token


def own_log() -> Any:
    """JSON lines on stderr, as in core/own_log.py."""
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.format_exc_info,
            Renderer("coordinator"),
        ],
    )


def _url_host(host: str) -> str:
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)  # noqa: S104 - shown only
    return f"[{shown}]" if ":" in shown else shown
