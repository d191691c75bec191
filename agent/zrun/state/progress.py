"""How far a run has come, and what saving and restoring say about it. Plain data."""

from dataclasses import dataclass, field
from typing import Any

from zrun.core.place import Place


@dataclass(slots=True)
class Progress:
    """Where the run stands; `run_state` is whatever JSON-able values Session wants back."""

    step: int = 0
    """Steps completed."""
    cursor: dict[str, Any] = field(default_factory=dict)
    batch: str | None = None
    run_state: dict[str, Any] = field(default_factory=dict)
    quarantined: list[str] = field(default_factory=list)
    strategy: str = ""


@dataclass(frozen=True, slots=True)
class Restored:
    """`progress` is None when there was nothing to resume from. `skipped`: {path, reason} of each one passed over."""

    progress: Progress | None
    path: Place | None
    skipped: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    tier: str = "disk"
    """Where it came from: disk, or memory, which has no path."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that is complete on disk."""

    path: Place
    step: int
    bytes: int
    seconds: float
    pruned: list[int] = field(default_factory=list)
    """Steps of older checkpoints that were then deleted; known on rank 0 only."""


@dataclass(slots=True)
class Outcome:
    """One requested save: neither `saved` nor `error` while it is in flight."""

    step: int
    batch: str | None
    blocked_s: float = 0.0
    """How long training stood still for its copy."""
    saved: Saved | None = None
    error: BaseException | None = None
