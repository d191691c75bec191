"""The agent's one WebSocket to the coordinator: reports up, orders down, and coming back with jitter when it is gone.

Knows nothing about what reports and orders say. A coordinator that is away is waited for without limit: training
does not need it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from structlog.typing import FilteringBoundLogger
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from zrun.core.errors import ProtocolError
from zrun.core.words import encodable, shortened
from zrun.wire.frames import LARGEST_UP, decode_down, encode
from zrun.wire.order import Down
from zrun.wire.report import Up

LARGEST_DOWN: Final = 8 << 20
RETRY_S: Final = (0.1, 2.0)
EVERY_S: Final = 1.0
NOT_OFTENER_S: Final = 0.02
SHORTER: Final = (16_000, 4_000, 1_000, 250)
"""Lengths to which strings are cut, one after the other, while a report is larger than is read."""


class Link:
    """`address` and `token` are asked anew at each try: an embedded coordinator may come back elsewhere."""

    def __init__(
        self, address: Callable[[], str], token: Callable[[], str], hello: Callable[[], Up],
        report: Callable[[], list[Up]], on_down: Callable[[Down], None], log: FilteringBoundLogger,
    ) -> None:  # fmt: skip
        self._address, self._token, self._hello = address, token, hello
        self._report, self._on_down, self._log = report, on_down, log
        self._changed = asyncio.Event()
        self.opened: Callable[[str], Awaitable[None]] | None = None
        """Told of our own address on each new connection, before anything is said on it."""
        self.beat_s: float | None = None
        """A report is due this often, if more often than usual; then the coordinator is also looked for more often."""
        self._away = self._ever = False
        self.connected = False

    def changed(self) -> None:
        """Report at once, not at the next second."""
        self._changed.set()

    async def run(self) -> None:
        """For ever; cancelled by whoever ends the agent."""
        wait_s = RETRY_S[0]
        while True:
            try:
                async with connect(
                    websocket_address(self._address()), additional_headers={"Authorization": f"Bearer {self._token()}"},
                    compression=None, max_size=LARGEST_DOWN, open_timeout=10, ping_interval=10, ping_timeout=20,
                    close_timeout=1, proxy=None,
                ) as socket:  # fmt: skip
                    wait_s = RETRY_S[0]
                    await self._talk(socket)
            except (OSError, WebSocketException, TimeoutError, ValueError, ProtocolError) as error:
                self._gone(error)
            self.connected = False
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, no secret
            wait_s = min(wait_s * 2, RETRY_S[1], self.beat_s or RETRY_S[1])

    async def _talk(self, socket: ClientConnection) -> None:
        if self.opened is not None:
            await self.opened(str(socket.local_address[0]))
        await socket.send(frame_of(self._hello()))
        self.connected, self._away, self._ever = True, False, True
        self._log.info("connected")
        self._changed.set()
        sending = asyncio.create_task(self._send(socket))
        receiving = asyncio.create_task(self._receive(socket))
        try:
            done, _ = await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            sending.cancel()
            receiving.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _send(self, socket: ClientConnection) -> None:
        while True:
            try:
                await asyncio.wait_for(self._changed.wait(), min(EVERY_S, self.beat_s or EVERY_S))
            except TimeoutError:
                pass  # nothing changed: a beat
            self._changed.clear()
            for message in self._report():
                await socket.send(frame_of(message))
            await asyncio.sleep(NOT_OFTENER_S)

    async def _receive(self, socket: ClientConnection) -> None:
        async for frame in socket:
            if isinstance(frame, bytes):
                self._on_down(decode_down(frame))

    def _gone(self, error: Exception) -> None:
        if self._away:
            return
        self._away = True
        what = f"refused with {error.response.status_code}" if isinstance(error, InvalidStatus) else str(error)
        if self._ever:
            self._log.warning("coordinator away; training goes on", error=what or type(error).__name__)
            return
        try:
            text = f"no coordinator at {self._address()}, trying again"
        except (OSError, ValueError):  # an embedded one that has not said yet where it listens
            text = "no coordinator yet, trying again"
        self._log.warning(text, error=what or type(error).__name__)


def frame_of(message: Up) -> bytes:
    """Whatever its strings hold: a frame that cannot be sent would be tried again for ever."""
    try:
        frame = encode(message)
    except UnicodeEncodeError:
        frame = _encode_plain(encodable(_plain(message)))
    for longest in SHORTER:
        if len(frame) <= LARGEST_UP:
            break
        frame = _encode_plain(shortened(encodable(_plain(message)), longest))
    return frame


def _plain(message: Up) -> Any:
    return msgspec.to_builtins(message, builtin_types=(bytes, bytearray, memoryview))


_encode_plain: Final = msgspec.msgpack.encode


def websocket_address(address: str) -> str:
    """`http://host:port` -> `ws://host:port/api/agents`. Raises ValueError for anything else."""
    scheme, separator, rest = address.rstrip("/").partition("://")
    kinds = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if not separator or scheme not in kinds:
        raise ValueError(f"not the address of a coordinator: {address!r}")
    return f"{kinds[scheme]}://{rest}/api/agents"
