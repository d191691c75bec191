"""The agents' end: one WebSocket each, reports in, orders out, and no agent that can harm another.

Frames and connections only; what a report means is the fleet's business.
"""

import asyncio
import contextlib
from typing import Final

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from starlette.websockets import WebSocketState

from zrun.coordinator.fleet import DEFAULT_LEASE_S, Fleet
from zrun.coordinator.outbox import Link
from zrun.coordinator.table import NodeSeen
from zrun.core.errors import ProtocolError
from zrun.wire.frames import PROTOCOL, decode_up, encode
from zrun.wire.order import Goodbye, Stacks
from zrun.wire.report import Hello, Lines, NodeReport

HELLO_WITHIN_S: Final = 10.0
CLOSE_WITHIN_S: Final = 2.0
BAD_FRAME: Final = 1008
CUT_OFF: Final = 1013
GOING: Final = 1001
NODE_NAME_MAX: Final = 253


def agents_router(fleet: Fleet) -> APIRouter:
    router = APIRouter()

    @router.websocket("/api/agents")
    async def agents(socket: WebSocket) -> None:
        await socket.accept()
        try:
            link = await _welcome(fleet, socket)
        except (ProtocolError, WebSocketDisconnect, TimeoutError) as error:
            fleet.log.warning("an agent was turned away", because=str(error))
            await _close(socket, BAD_FRAME, str(error))
            return
        if link is not None:
            await _serve(fleet, socket, link)

    return router


async def _welcome(fleet: Fleet, socket: WebSocket) -> Link | None:
    """The first frame has to be a Hello of this version and of a free name; None if a Goodbye was said."""
    hello = decode_up(await asyncio.wait_for(_frame(socket), HELLO_WITHIN_S))
    if not isinstance(hello, Hello):
        raise ProtocolError("the first frame has to be a hello")
    why = _refusal(fleet, hello)
    if why:
        fleet.log.warning("an agent was turned away", node=hello.node, because=why)
        await socket.send_bytes(encode(Goodbye(why)))
        await _close(socket, BAD_FRAME, why)
        return None
    return join(fleet, hello)


def _refusal(fleet: Fleet, hello: Hello) -> str:
    if hello.protocol != PROTOCOL:
        return (f"this coordinator speaks protocol {PROTOCOL}, the agent of zrun {hello.zrun} protocol "
                f"{hello.protocol}: install the same zrun on both")  # fmt: skip
    if not hello.node or len(hello.node) > NODE_NAME_MAX or not hello.node.isprintable() or "/" in hello.node:
        return f"{hello.node!r} is no name for a node: start the agent with --node NAME"
    seen = fleet.table.nodes.get(hello.node)
    alive = seen is not None and seen.connected and fleet.silence.now - seen.heard < DEFAULT_LEASE_S
    if seen is not None and alive and seen.boot != hello.boot and hello.node in fleet.links:
        return f"a node {hello.node!r} is connected already: start this agent with another --node NAME"
    return ""


def join(fleet: Fleet, hello: Hello) -> Link:
    """The connection is the node's from now on; an older one of the same life is closed."""
    old = fleet.links.get(hello.node)
    if old is not None:
        old.close("the agent connected again")
    link = fleet.links[hello.node] = Link(hello.node, hello.boot)
    link.secrets_held = set(hello.secrets_held)
    seen = fleet.table.nodes.get(hello.node)
    if seen is None or seen.boot != hello.boot:
        last = seen.last if seen is not None else {}
        seen = NodeSeen(hello.node, hello.boot, heard=fleet.silence.now, came=fleet.clock.now(), last=last)
        fleet.table.nodes[hello.node] = seen
    else:
        seen.report = None  # what it said before may be older than what we forgot
    seen.connected, seen.closed, seen.closed_because = True, None, ""
    fleet.log.info("agent connected", node=hello.node, boot=hello.boot, because="hello")
    return link


async def _serve(fleet: Fleet, socket: WebSocket, link: Link) -> None:
    """Until the agent leaves, sends nonsense, or leaves its outbox unread."""
    reader = asyncio.create_task(_read(fleet, socket, link))
    writer = asyncio.create_task(_write(socket, link))
    why, code = "its connection ended", GOING
    try:
        await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        error = reader.exception() if reader.done() and not reader.cancelled() else None
        if isinstance(error, WebSocketDisconnect):
            pass
        elif isinstance(error, ProtocolError | ValueError):
            why, code = f"a frame that no agent sends: {error}", BAD_FRAME
            fleet.log.warning("agent cut off", node=link.node, because=why)
        elif error is not None:
            why = "the coordinator failed over this agent's report"
            fleet.log.error(why, node=link.node, because=f"{type(error).__name__}: {error}", exc_info=error)
        elif link.closed_because:
            why, code = link.closed_because, CUT_OFF
    finally:
        reader.cancel()
        link.close(why)
        leave(fleet, link, why)
        await _end(reader)
        await _end(writer)
        await _close(socket, code, why)


async def _read(fleet: Fleet, socket: WebSocket, link: Link) -> None:
    while True:
        _take(fleet, link, await _frame(socket))


def _take(fleet: Fleet, link: Link, frame: bytes) -> None:
    message = decode_up(frame)
    match message:
        case NodeReport():
            if (message.node, message.boot) != (link.node, link.boot):
                raise ProtocolError(f"a report of {message.node!r} on the connection of {link.node!r}")
            if fleet.links.get(link.node) is link:
                fleet.report(link, message)
        case Lines():
            for line in message.lines:
                job = fleet.jobs.get(line.job)
                if job is not None:
                    text = job.redactor.text(line.msg)[:2000]
                    fleet.log.info("line", job=line.job, rank=line.rank, level_of_line=line.level, because=text)
        case Hello():
            raise ProtocolError("a second hello")


def leave(fleet: Fleet, link: Link, why: str) -> None:
    """The connection is over; whether the node is gone is found out by the sweep."""
    if fleet.links.get(link.node) is not link:
        return
    del fleet.links[link.node]
    seen = fleet.table.nodes.get(link.node)
    if seen is not None:
        seen.connected, seen.closed, seen.closed_because = False, fleet.silence.now, why
    fleet.log.info("agent disconnected", node=link.node, boot=link.boot, because=why)


def ask_stacks(fleet: Fleet, job: str, into: str) -> list[str]:
    """Ask every connected node of the job's newest attempt; gives their names."""
    current = fleet.jobs[job].state.current
    asked = [node for node in (current.nodes if current else ()) if node in fleet.links]
    for node in asked:
        fleet.links[node].send(Stacks(job, into))
    return asked


async def _write(socket: WebSocket, link: Link) -> None:
    while (frame := await link.frames.get()) is not None:
        await socket.send_bytes(frame)


async def _end(task: asyncio.Task[None]) -> None:
    """What is queued may still go out, but an agent that does not read is not waited for."""
    done, _ = await asyncio.wait({task}, timeout=CLOSE_WITHIN_S)
    if not done:
        task.cancel()
    elif not task.cancelled():
        task.exception()  # seen already, or that of a connection which is gone


async def _frame(socket: WebSocket) -> bytes:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", GOING), message.get("reason"))
    data = message.get("bytes")
    if data is None:
        raise ProtocolError("a text frame; agents send binary ones")
    return bytes(data)


async def _close(socket: WebSocket, code: int, why: str) -> None:
    if socket.client_state is WebSocketState.CONNECTED and socket.application_state is WebSocketState.CONNECTED:
        with contextlib.suppress(RuntimeError, OSError, WebSocketDisconnect, TimeoutError):
            text = why.encode()[:120].decode("utf-8", "ignore")
            await asyncio.wait_for(socket.close(code, text), CLOSE_WITHIN_S)
