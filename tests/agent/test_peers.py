"""Agents ask each other over UDP: only answers that are proved and asked for count."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from zrun.agent.peers import Company, PeerPort
from zrun.wire.order import LaunchPlan, Peer

KEY = "5" * 64


class Node:
    def __init__(self, rank: int, age_s: float) -> None:
        self.rank = rank
        self.heard: list[tuple[str, str, float]] = []
        self.came = asyncio.Event()
        self.port = PeerPort(lambda: age_s, self._answer)

    def _answer(self, job: str, node: str, age_s: float) -> None:
        self.heard.append((job, node, age_s))
        self.came.set()


def company(nodes: list[Node], rank: int, key: str = KEY) -> Company:
    peers = [Peer("ab"[node.rank], "127.0.0.1", node.port.port) for node in nodes]
    return Company("toy", LaunchPlan(1, rank, len(nodes), 1, "127.0.0.1", 20001, peers, key=key))


def between_two(story: Callable[[Node, Node], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        nodes = [Node(0, 0.25), Node(1, 4.5)]
        for node in nodes:
            await node.port.open("127.0.0.1")
        for node in nodes:
            node.port.serve([company(nodes, node.rank)])
        try:
            await story(*nodes)
        finally:
            for node in nodes:
                node.port.close()

    asyncio.run(run())


async def quiet(node: Node) -> None:
    """Nothing came, though there was time: a question of ours went and came back meanwhile."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(node.came.wait(), 0.3)


def test_a_peer_answers_with_how_long_ago_the_coordinator_heard_it() -> None:
    async def story(a: Node, b: Node) -> None:
        a.port.ask(company([a, b], 0))
        await asyncio.wait_for(a.came.wait(), 5)
        assert a.heard == [("toy", "b", 4.5)]
        assert b.heard == []

    between_two(story)


def test_a_node_that_ended_the_attempt_does_not_answer_for_it() -> None:
    async def story(a: Node, b: Node) -> None:
        b.port.serve([])
        a.port.ask(company([a, b], 0))
        await quiet(a)

    between_two(story)


def test_without_the_key_nobody_is_answered() -> None:
    async def story(a: Node, b: Node) -> None:
        a.port.serve([company([a, b], 0, key="6" * 64)])
        a.port.ask(company([a, b], 0, key="6" * 64))
        await quiet(a)

    between_two(story)


def test_rubbish_and_an_answer_sent_again_count_for_nothing() -> None:
    async def story(a: Node, b: Node) -> None:
        heard: list[bytes] = []
        take = a.port.datagram_received

        def overhear(data: bytes, addr: tuple[Any, ...]) -> None:
            heard.append(data)
            take(data, addr)

        a.port.datagram_received = overhear  # type: ignore[method-assign]
        a.port.ask(company([a, b], 0))
        await asyncio.wait_for(a.came.wait(), 5)
        a.came.clear()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for data in (b"", b"x" * 53, heard[0], heard[0][:-1] + bytes([heard[0][-1] ^ 1])):
                stranger.sendto(data, ("127.0.0.1", a.port.port))
        await quiet(a)

    between_two(story)
