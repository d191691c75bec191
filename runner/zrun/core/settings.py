"""What a rank has to know of job.yaml, as one JSON value in its environment; standard library only."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RankSettings:
    """Written by the agent, read by bootstrap and Session. Durations in seconds."""

    seed: int = 0
    rng: str = "derived"
    """derived: every step is seeded from (seed, rank, step); stream: the script's own streams are saved."""
    save_every_steps: int | None = 500
    save_every_s: float | None = None
    save_initial: bool = True
    resume: str = "auto"
    """auto | never | a path to one checkpoint folder or to a folder of them."""
    allow_changed: list[str] = field(default_factory=list)
    keep_last: int = 3
    keep_every_steps: int | None = 1000
    fresh: bool = False
    """Start from step 0 though the folder holds checkpoints of another run."""
    quarantined: list[str] = field(default_factory=list)
    """Batch ids to skip."""
    on_bad_loss: str = "off"
    """off | skip | stop; a rank only asks whether it is off."""
    bad_loss_factor: float | None = None
    memory_every: str = "off"
    """Cadence of the copy in memory: auto | off | a number of steps | seconds with an s behind them."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RankSettings":
        """Unknown keys are ignored, so that a rank of an older library still starts."""
        value: dict[str, Any] = json.loads(text) if text else {}
        known = {name: value[name] for name in cls.__slots__ if name in value}
        return cls(**known)
