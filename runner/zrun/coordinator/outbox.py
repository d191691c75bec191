"""What goes down to the agents: one bounded outbox a connection, and the order each node should be obeying.

Orders are states, so what is sent again is the newest one and never a history. Knows frames and serials, no sockets.
"""

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Final

from zrun.coordinator.peer_keys import PeerKeys
from zrun.wire.frames import encode
from zrun.wire.order import Brief, Down, JobBrief, JobOrder, Order

OUTBOX_FRAMES: Final = 64
"""An agent that leaves this many frames unread is cut off; it comes back and is told the newest state."""
REPEAT_S: Final = 1.0
"""An order that the newest report does not obey yet is sent again after this long."""
ACK_EVERY: Final = 5
"""Reports between two acknowledgements when there is nothing else to say."""


class Link:
    """One agent's connection, from its Hello on."""

    def __init__(self, node: str, boot: str) -> None:
        self.node = node
        self.boot = boot
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue(OUTBOX_FRAMES)
        self.closed_because = ""
        self.briefed: set[str] = set()
        self.secrets_held: set[str] = set()
        """Jobs whose secrets its agent has in memory, as its Hello said."""
        self.reports = 0

    def send(self, message: Down) -> None:
        """Never waits: a full outbox ends the connection."""
        if self.closed_because:
            return
        try:
            self.frames.put_nowait(encode(message))
        except asyncio.QueueFull:
            self.close(f"{OUTBOX_FRAMES} frames were left unread")

    def close(self, why: str) -> None:
        """After what is queued (dropped if the outbox is full) the connection ends."""
        if self.closed_because:
            return
        self.closed_because = why
        if self.frames.full():
            while not self.frames.empty():
                self.frames.get_nowait()
        self.frames.put_nowait(None)


@dataclass(slots=True)
class NodeOrders:
    """What one node is to do in one life of its agent."""

    boot: str
    serial: int = 0
    jobs: dict[str, JobOrder] = field(default_factory=dict)
    sent_at: float = float("-inf")
    obeyed: int = 0
    """`order_serial` of its newest report."""
    met: bool = False
    """It has reported to this process."""


class OrderBook:
    """The newest order of every node; `lease_s` goes with each."""

    def __init__(self, keys: PeerKeys | None = None) -> None:
        self.nodes: dict[str, NodeOrders] = {}
        self._keys = keys or PeerKeys(secrets.token_bytes(32))

    def give(self, node: str, boot: str, job: str, order: JobOrder) -> bool:
        """True if this changes what the node should do."""
        held = self.nodes.get(node)
        if held is None or held.boot != boot:
            held = self.nodes[node] = NodeOrders(boot)
        if held.jobs.get(job) == order:
            return False
        held.jobs[job] = order
        held.serial += 1
        return True

    def heard(self, node: str, boot: str, obeyed: int, reported: set[str]) -> None:
        """A report came: our serial must be past what this life of the agent has seen; released jobs may be dropped."""
        held = self.nodes.get(node)
        if held is None or held.boot != boot:
            held = self.nodes[node] = NodeOrders(boot)
        held.obeyed = obeyed
        if not held.met:
            # It may obey an order of the process before us under any serial: ours has to be newer.
            held.met, held.serial = True, max(held.serial, obeyed) + (1 if held.jobs else 0)
        if obeyed >= held.serial:
            for job in [j for j, order in held.jobs.items() if order.release and j not in reported]:
                del held.jobs[job]

    def released(self, job: str) -> bool:
        """No node has an order for this job any more."""
        return not any(job in held.jobs for held in self.nodes.values())

    def due(self, node: str, now: float) -> bool:
        held = self.nodes.get(node)
        return held is not None and bool(held.jobs) and held.obeyed < held.serial and now - held.sent_at >= REPEAT_S

    def has_peers(self, node: str) -> bool:
        """Does it run an attempt with other nodes? Then its agent has to know whether it is heard."""
        held = self.nodes.get(node)
        return held is not None and any(o.run is not None and o.run.nnodes > 1 for o in held.jobs.values())

    def order(self, node: str, boot: str, acked: int, lease_s: float) -> Order | None:
        """The frame for this node, or None if what is written here is for another life of its agent."""
        held = self.nodes.get(node)
        if held is None or held.boot != boot:
            return None
        jobs = {job: self._keys.put_in(job, order) for job, order in held.jobs.items()}
        return Order(boot, held.serial, jobs, lease_s, acked)

    def send(self, link: Link, briefs: list[JobBrief], acked: int, lease_s: float, now: float) -> None:
        """Put the newest order into the outbox, each job's brief before its first one on this connection."""
        order = self.order(link.node, link.boot, acked, lease_s)
        if order is None:
            return
        new = [brief for brief in briefs if brief.job in order.jobs and brief.job not in link.briefed]
        if new:
            link.briefed |= {brief.job for brief in new}
            link.send(Brief(new))
        link.send(order)
        self.nodes[link.node].sent_at = now
