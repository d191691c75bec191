"""How the agents of one attempt ask each other whether they are there: one UDP port an agent, every datagram proved.

A ping carries a fresh nonce, the answer gives it back with how long ago the coordinator heard the answering agent;
both bear an HMAC under the attempt's key, so that neither a stranger nor an old answer counts. UDP, because a lost
question is simply asked again and a node that is gone leaves no connection behind. Decides nothing.
"""

import asyncio
import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from zrun.wire.order import LaunchPlan

MAGIC: Final = b"zrp1"
PING: Final = 1
PONG: Final = 2
_HEAD: Final = struct.Struct("!4sB8sHHI16s")
"""magic, kind, key id, node rank of the sender, of the receiver, age in ms, nonce; then the MAC."""
_MAC: Final = 16
LARGEST_AGE_MS: Final = 0xFFFFFFFF
NONCES_KEPT: Final = 8
"""Of each peer: older questions are not answered in time any more."""


@dataclass(frozen=True, slots=True)
class Company:
    """One attempt that this node runs with others."""

    job: str
    plan: LaunchPlan

    @property
    def others(self) -> list[str]:
        return [peer.node for rank, peer in enumerate(self.plan.peers) if rank != self.plan.node_rank]


def _id(key: str) -> bytes:
    return hashlib.sha256(b"id" + key.encode()).digest()[:8]


def _proved(key: str, head: bytes) -> bytes:
    return head + hmac.new(key.encode(), head, hashlib.sha256).digest()[:_MAC]


class PeerPort(asyncio.DatagramProtocol):
    """`age_s()`: how long ago the coordinator heard this agent; `on_answer(job, node, age_s)`."""

    def __init__(self, age_s: Callable[[], float], on_answer: Callable[[str, str, float], None]) -> None:
        self._age_s, self._on_answer = age_s, on_answer
        self._transport: asyncio.DatagramTransport | None = None
        self._companies: dict[bytes, Company] = {}
        self._asked: dict[tuple[bytes, int], list[bytes]] = {}

    async def open(self, address: str) -> None:
        """At this address of ours, at any port. Raises OSError."""
        if self._transport is None:
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(address, 0))

    @property
    def port(self) -> int:
        """0 while it is not open."""
        return int(self._transport.get_extra_info("sockname")[1]) if self._transport is not None else 0

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def serve(self, companies: Iterable[Company]) -> None:
        """Answer for these attempts and no others: who has ended one is not there any more."""
        self._companies = {_id(company.plan.key): company for company in companies if company.plan.key}
        self._asked = {asked: nonces for asked, nonces in self._asked.items() if asked[0] in self._companies}

    def ask(self, company: Company) -> None:
        """Every other node of the attempt."""
        plan = company.plan
        for rank, peer in enumerate(plan.peers):
            if rank == plan.node_rank or not peer.port or self._transport is None:
                continue
            nonce = secrets.token_bytes(16)
            asked = (_id(plan.key), rank)
            self._asked[asked] = [*self._asked.get(asked, []), nonce][-NONCES_KEPT:]
            self._send(plan.key, PING, plan.node_rank, rank, 0, nonce, (peer.address, peer.port))

    def _send(self, key: str, kind: int, own: int, to: int, age_ms: int, nonce: bytes, where: tuple[Any, ...]) -> None:
        assert self._transport is not None
        self._transport.sendto(_proved(key, _HEAD.pack(MAGIC, kind, _id(key), own, to, age_ms, nonce)), where)

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        if len(data) != _HEAD.size + _MAC:
            return
        magic, kind, key_id, sender, receiver, age_ms, nonce = _HEAD.unpack(data[: _HEAD.size])
        company = self._companies.get(key_id)
        if magic != MAGIC or company is None or receiver != company.plan.node_rank:
            return
        key, peers = company.plan.key, company.plan.peers
        if not hmac.compare_digest(_proved(key, data[: _HEAD.size]), data) or sender >= len(peers):
            return
        if kind == PING:
            age = min(int(self._age_s() * 1000), LARGEST_AGE_MS)
            self._send(key, PONG, receiver, sender, age, nonce, addr)
        elif kind == PONG and nonce in self._asked.get((key_id, sender), []):
            self._asked[key_id, sender].remove(nonce)
            self._on_answer(company.job, peers[sender].node, age_ms / 1000)

    def error_received(self, exc: Exception) -> None:
        """Nobody listens there: that is what no answer means."""
