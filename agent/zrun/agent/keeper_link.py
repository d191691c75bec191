"""The agent's end of one keeper: starts it, gives it orders, hands on what it says, keeps it from taking us for dead.

Knows nothing about when to give which order.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from zrun.agent.virtual_clock import VirtualClock
from zrun.core.private import open_append

BEAT_S: Final = 0.5
LOOP_STUCK_S: Final = 30.0
"""An event loop that did not turn for so long is as good as dead: the beats stop."""
KEEPER_STILL_S: Final = 6.0
"""A keeper that said nothing for so long of our own time is stopped or stuck: it is killed, its successor goes on."""
WATCH_S: Final = 0.25
ASIDE: Final = 0
"""As the number of a spawn: its end is nobody's news."""
HANG_UP_S: Final = 2.0


class Beats:
    """A thread that tells all keepers that this process runs; a slow disk under the event loop must end no job."""

    def __init__(self) -> None:
        self._fds: set[int] = set()
        self._lock = threading.Lock()
        self._turned = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beats", daemon=True)
        self._thread.start()

    def add(self, fd: int) -> None:
        with self._lock:
            self._fds.add(fd)

    def drop(self, fd: int) -> None:
        """Also closes it."""
        with self._lock:
            if fd in self._fds:
                self._fds.discard(fd)
                os.close(fd)

    def turned(self) -> None:
        """The event loop is alive; called at each poll."""
        self._turned = time.monotonic()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(BEAT_S):
            if time.monotonic() >= self._turned + LOOP_STUCK_S:
                continue
            with self._lock:
                for fd in self._fds:
                    try:
                        os.write(fd, b".")
                    except OSError:
                        continue  # a full pipe (stopped keeper) or a dead one: the control socket tells


class KeeperLink:
    """`on_line` gets each line the keeper says, and {"said": "lost"} once when it is gone."""

    def __init__(
        self, beats: Beats, on_line: Callable[[dict[str, Any]], None], more: Sequence[str] = ()
    ) -> None:  # fmt: skip
        """`more`: arguments for the keeper."""
        self._beats, self._more = beats, more
        self._on_line = on_line
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._beat_fd = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._clock = VirtualClock(time.monotonic())
        self._heard = 0.0
        self.spawned = 0
        """Number of the newest spawn; what the keeper says of earlier ones is about the past."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self, job: str, boot: str, lock: Path, log: Path) -> None:
        """Raises OSError if no process can be made."""
        ours = self._start_process(job, boot, lock, log)
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        self._reading = asyncio.create_task(self._read(reader))
        self._watching = asyncio.create_task(self._watch())

    def _start_process(self, job: str, boot: str, lock: Path, log: Path) -> socket.socket:
        ours, theirs = socket.socketpair()
        beat_read, self._beat_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._beat_fd, False)
        with theirs, os.fdopen(open_append(log), "ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "zrun.agent.keeper", "--control", str(theirs.fileno()),
                 "--beats", str(beat_read), "--job", job, "--boot", boot, "--lock", str(lock), *self._more],
                pass_fds=(theirs.fileno(), beat_read), start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        os.close(beat_read)
        self._beats.add(self._beat_fd)
        return ours

    def spawn(
        self, name: str, argv: Sequence[str], env: dict[str, str], cwd: str, log: Path, ranks: tuple[int, int] | None
    ) -> None:
        self.spawned += 1
        order = {
            "do": "spawn",
            "name": name,
            "id": self.spawned,
            "argv": list(argv),
            "env": env,
            "cwd": cwd,
            "log": str(log),
        }
        self._order(order if ranks is None else {**order, "ranks": ranks})

    def spawn_aside(self, name: str, argv: Sequence[str], env: dict[str, str], cwd: str, log: Path) -> None:
        """Something nobody waits for; it ends with the attempt, whatever it has done by then."""
        self._order({"do": "spawn", "name": name, "id": ASIDE, "argv": list(argv), "env": env, "cwd": cwd,
                     "log": str(log)})  # fmt: skip

    def standby(self, rank: int, argv: Sequence[str], env: dict[str, str], cwd: str, log: Path) -> None:
        """A process that is to become `rank`; answered by "standby-ready" or "standby-gone"."""
        self._order({"do": "standby", "rank": rank, "argv": list(argv), "env": env, "cwd": cwd, "log": str(log)})

    def activate(self, ranks: dict[int, str], host: str, port: int) -> None:
        """Standbys become ranks, the first of them hosts the store; answered by "rank" each, or by "not-activated"."""
        self.spawned += 1
        self._order({"do": "activate", "id": self.spawned, "ranks": ranks, "host": host, "port": port})

    def drop_standbys(self) -> None:
        self._order({"do": "drop-standbys"})

    def signal(self, ranks: Sequence[int], number: int) -> None:
        self._order({"do": "signal", "ranks": list(ranks), "signal": number})

    def kill(self, number: int) -> None:
        """Everything of the job; answered by {"said": "swept", "id": number}."""
        self._order({"do": "kill", "id": number})

    def lease(self, lease_s: float) -> None:
        self._order({"do": "lease", "lease_s": lease_s})

    async def close(self, limit_s: float = 8.0) -> None:
        """The keeper ends everything of the job, then itself; waited for at most `limit_s`."""
        if self._reading is None:
            return
        self._order({"do": "quit"})
        await asyncio.wait({self._reading}, timeout=limit_s)
        for task in (self._reading, self._watching):
            if task is not None:
                task.cancel()
        self._hang_up()

    def _order(self, order: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write((json.dumps(order) + "\n").encode())

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._heard = self._clock.time
                self._on_line(json.loads(line))
        except (OSError, ValueError):
            pass  # said below: the keeper is lost
        if self._watching is not None:
            self._watching.cancel()
        self._hang_up()
        self._on_line({"said": "lost"})

    async def _watch(self) -> None:
        """Kill a keeper that stands still; its end is then seen like any other, or said here if it never comes."""
        while self._clock.time < self._heard + KEEPER_STILL_S:
            await asyncio.sleep(WATCH_S)
            self._clock.tick(time.monotonic())
        if self._process is not None:
            self._process.kill()  # our own child, not reaped yet: no other bears its pid
        self._on_line({"said": "still", "for_s": KEEPER_STILL_S})
        await asyncio.sleep(HANG_UP_S)
        if self._reading is not None:
            self._reading.cancel()
        self._hang_up()
        self._on_line({"said": "lost"})

    def _hang_up(self) -> None:
        self._beats.drop(self._beat_fd)
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._process is not None:
            try:
                self._process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                pass  # it hung up before it ended; init collects it after us
