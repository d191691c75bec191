"""What the coordinator tells an agent: the state to be in, given again until the report agrees.

Knows nothing about sockets, nor about how an agent gets into that state.
"""

from enum import StrEnum
from typing import Any

import msgspec

from zrun.core import env


class Peer(msgspec.Struct, frozen=True):
    """A node of an attempt, and where its agent answers other agents; port 0: nowhere."""

    node: str
    address: str = ""
    port: int = 0


class LaunchPlan(msgspec.Struct, frozen=True):
    """One attempt as one node has to run it."""

    attempt: int
    node_rank: int
    nnodes: int
    nproc: int
    """Ranks on this node; 0 = the agent finds out (auto: GPUs, else 1 for `auto`/`gpu`, cores for `cpu`)."""
    master_addr: str
    master_port: int
    """0: node rank 0 picks a free port and reports it; the others start no rank before they are told which."""
    peers: list[Peer]
    """All nodes of the attempt, this one too, by node rank."""
    cause: str = ""
    """ZRUN_RESTART_CAUSE."""
    resume: str = "auto"
    """auto | never | a path."""
    fresh: bool = False
    quarantined: list[str] = []
    skip_setup: bool = False
    key: str = ""
    """What the agents of this attempt prove themselves to each other with; filled in when the order is sent."""


class End(StrEnum):
    """How the processes of an attempt are to be ended."""

    SAVE = "save"
    """All ranks stop at one common step after saving it; TERM and KILL only when `within_s` is over."""
    TERM = "term"
    """TERM to what lives, KILL after `within_s`."""
    KILL = "kill"
    """KILL now: nothing more is expected of them."""


class Ending(msgspec.Struct, frozen=True):
    how: End
    within_s: float
    why: str
    """Whose fault or wish it is; goes into each survivor's log."""
    keep: bool = False
    """Something has failed and there may be another attempt: ranks put their state into memory first."""


class JobOrder(msgspec.Struct, frozen=True):
    """The state one job should be in on one node. Neither `run` nor `ending`: be idle, keep what you reported."""

    run: LaunchPlan | None = None
    """Be running this attempt (already ended ranks of the same attempt are not started again)."""
    ending: Ending | None = None
    """End the attempt in `attempt` this way, then be idle."""
    attempt: int = 0
    """The attempt `ending`, `collect` and `save` speak of."""
    collect: int = 0
    """Put evidence for this incident on disk (before any signal), then report it as collected; 0 = none."""
    save: int = 0
    """Save at the next safe point, a number that grows with each request; 0 = none."""
    release: bool = False
    """The job is over: sweep, forget it, drop it from the next report."""
    why: str = ""
    because: int = 0
    """Number of the event that caused this order."""


class JobBrief(msgspec.Struct, frozen=True):
    """What an agent needs once per job; sent with the first order and after each reconnect."""

    job: str
    run_dir: str
    spec: dict[str, Any]
    """JobSpec as JSON (spec/job.py)."""
    env: dict[str, str]
    """The submitter's environment, launcher-owned names taken out."""
    secrets: dict[str, str] = {}
    env_bytes: dict[bytes, bytes] = {}
    """Variables that are no UTF-8; `parted` puts them here, `whole` back among the others."""
    secret_bytes: dict[bytes, bytes] = {}

    def parted(self) -> "JobBrief":
        """As it can cross the wire, byte for byte."""
        (text, others), (secrets, more) = env.parted(self.env), env.parted(self.secrets)
        return msgspec.structs.replace(self, env=text, env_bytes=others, secrets=secrets, secret_bytes=more)

    def whole(self) -> "JobBrief":
        given, secrets = env.joined(self.env, self.env_bytes), env.joined(self.secrets, self.secret_bytes)
        return msgspec.structs.replace(self, env=given, env_bytes={}, secrets=secrets, secret_bytes={})


class Order(msgspec.Struct, frozen=True, tag="order", tag_field="t"):
    """For the agent life `boot` only: an agent ignores one meant for its dead self."""

    boot: str
    serial: int
    jobs: dict[str, JobOrder]
    lease_s: float = 3.0
    acked: int = 0
    """The newest report serial seen."""


class Ack(msgspec.Struct, frozen=True, tag="ack", tag_field="t"):
    """Report `acked` of this life of the agent was heard: its lease runs from when that was sent."""

    boot: str
    acked: int


class Brief(msgspec.Struct, frozen=True, tag="brief", tag_field="t"):
    jobs: list[JobBrief]


class Stacks(msgspec.Struct, frozen=True, tag="stacks", tag_field="t"):
    """A person wants all stacks of a job now, in folder `into`."""

    job: str
    into: str


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye", tag_field="t"):
    """The coordinator will not talk to this agent (version, name taken): `why` says so, with the way out."""

    why: str


class Leave(msgspec.Struct, frozen=True, tag="leave", tag_field="t"):
    """Everything is over (embedded coordinator): end the agent process."""

    why: str = ""


Down = Order | Ack | Brief | Stacks | Goodbye | Leave
