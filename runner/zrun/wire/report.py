"""What an agent tells the coordinator: the whole truth about its node, never news.

A report may be lost, late or doubled; the next one says it all again. Knows nothing about sockets.
"""

from enum import StrEnum
from typing import Any

import msgspec


class Doing(StrEnum):
    """What the processes of one job on one node are doing, as a whole."""

    IDLE = "idle"
    """No process of the job is alive on this node."""
    SETUP = "setup"
    """The job's `setup` commands run."""
    STARTING = "starting"
    """Processes are being started; not every rank's bootstrap has run."""
    RUNNING = "running"
    """Every rank's bootstrap has run, none has ended badly."""
    FAILED = "failed"
    """At least one rank ended badly, see `failures`; others may be alive."""
    FINISHED = "finished"
    """Every rank ended by itself with code 0 (or at the ordered stop step). Stays until told otherwise."""
    STOPPING = "stopping"
    """Ranks are being ended as ordered."""


class CheckpointInfo(msgspec.Struct, frozen=True):
    """A checkpoint the ranks committed during this attempt; `tier` is disk (memory comes later)."""

    step: int
    batch: str
    path: str
    bytes: int
    seconds: float
    tier: str = "disk"


class JobReport(msgspec.Struct, frozen=True):
    """One job on one node."""

    doing: Doing
    attempt: int
    """The attempt these processes belong to; 0 if none since this agent began."""
    seen: int
    """The newest attempt this boot of the agent was ordered to."""
    rows: bytes = b""
    """64 bytes a rank (core/rows.py), empty unless processes exist or have just ended."""
    failures: list[dict[str, Any]] = []
    """Failure.to_dict() of each rank of `attempt` that ended badly, in order of `at`."""
    settled: bool = True
    """False while a rank is unwinding (last words not final) or exit codes are missing: better evidence is coming."""
    checkpoints: list[CheckpointInfo] = []
    """Committed in `attempt`, oldest first, at most the newest 8."""
    save_failures: list[dict[str, Any]] = []
    """{step, error, disk_full} of saves that failed in `attempt`."""
    resumed_step: int | None = None
    """The step the Session of rank 0 resumed from (0: none); None until it said so or without Session."""
    resumed_from: str | None = None
    """The checkpoint folder of that, None if it began anew or from memory."""
    resumed_tier: str = ""
    """disk or memory; empty if it began anew."""
    skipped: list[dict[str, str]] = []
    """{path, reason}: checkpoints passed over at the resume."""
    collected: int = 0
    """The newest incident whose evidence this node has put on disk."""
    term_seen: bool = False
    """SIGTERM from outside reached a rank or the agent (or another signal of preempt.signals): preempt, please."""
    stopped_at: int | None = None
    """The common step at which all ranks obeyed a stop request; None if they did not."""
    saved_at: int | None = None
    """The newest step saved because of `save` in the order."""
    total_steps: int = 0
    metrics: dict[str, Any] = {}
    """What rank 0 reported last (loss, tokens_s, …)."""
    warnings: list[str] = []
    left_behind: list[str] = []
    """Processes or files that could not be removed, in words."""
    swept: list[str] = []
    """What dead processes of `attempt` (or of what was before it) had left outside its folders, in words: gone."""
    pruned: list[int] = []
    """Steps whose checkpoints were deleted in `attempt` to make room for newer ones, at most the newest 64."""
    phase_names: dict[str, str] = {}
    """rank -> the name of the phase it is in, for ranks in a phase of the script's own."""
    standings: dict[str, list[list[int]]] = {}
    """rank -> where it stands on each of its groups (core/standing.py), of ranks that have stood still for a while."""
    collective_timeout_s: float = 0.0
    """After which the script's process groups give a collective up: the shortest one; 0 = not known."""
    master_port: int = 0
    """Where the store of `attempt` listens, told by the node with node_rank 0 once it has picked the port."""
    standbys: list[int] = []
    """Memory in bytes of each process that waits, ready, to become a rank of the next attempt."""


class Vitals(msgspec.Struct, frozen=True):
    """The node itself, for eyes and placement."""

    cores: int = 0
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    gpus: int = 0
    load1: float = 0.0
    host: str = ""
    agent_pid: int = 0
    agent_rss_bytes: int = 0


class NodeReport(msgspec.Struct, frozen=True, tag="report", tag_field="t"):
    """`boot` names one life of the agent, `serial` counts its reports, `order_serial` is the newest order it obeys."""

    node: str
    boot: str
    serial: int
    order_serial: int
    jobs: dict[str, JobReport]
    vitals: Vitals
    at: float
    """Unix seconds on the node's clock, for people only."""
    leaving_in_s: float | None = None
    """This node is about to leave (agent got TERM): seconds until it must be gone."""
    address: str = ""
    """This node's own end of the agent's connection to the coordinator: where other nodes can reach it."""
    peer_port: int = 0
    """Where its agent answers the agents of other nodes (UDP)."""


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="t"):
    """The first frame of an agent; a version that differs is refused loudly."""

    protocol: int
    node: str
    boot: str
    zrun: str
    secrets_held: list[str] = []
    """Jobs whose secrets this agent holds in memory."""


class WarnLine(msgspec.Struct, frozen=True):
    """One line worth telling the coordinator about."""

    job: str
    attempt: int
    rank: int
    ts: float
    level: str
    msg: str


class Lines(msgspec.Struct, frozen=True, tag="lines", tag_field="t"):
    """Capped, batched warnings, errors and last words; logs themselves stay on the node."""

    lines: list[WarnLine]
    dropped: int = 0


Up = Hello | NodeReport | Lines
