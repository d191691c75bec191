"""A job as it was understood: job.yaml with every default filled in and every unit turned into seconds and bytes.

Plain frozen data that travels as JSON or msgpack. Knows nothing about YAML, files or error messages.
"""

from typing import Any, Final, Literal

import msgspec

Launcher = Literal["auto", "warm", "torchrun", "exec"]


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Standby(_Data, frozen=True):
    enabled: bool = True
    cuda: bool = False
    max_memory_bytes: int = 8 << 30


class Resources(_Data, frozen=True):
    """None: not asked for."""

    gpus: int | None = None
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    disk_bytes: int | None = None


class Placement(_Data, frozen=True):
    hosts: list[str] = []
    exclude: list[str] = []
    labels: dict[str, str] = {}
    spares: int = 0
    interface: str = "auto"


class Watchdog(_Data, frozen=True):
    """Limits in seconds; None = auto (learned)."""

    enabled: bool = True
    on_hang: Literal["restart", "notify", "stop"] = "restart"
    patience_s: float | None = None
    setup_s: float | None = 1800.0
    first_step_s: float | None = 1800.0
    step_s: float | None = None
    min_step_s: float = 2.0
    eval_s: float | None = None
    save_s: float | None = 1800.0
    exit_s: float | None = 60.0
    phases_s: dict[str, float] = {}
    log_pattern: str | None = None


class Rule(_Data, frozen=True):
    """First match wins; exactly one of the four match fields is set."""

    do: Literal["fail", "restart"]
    exit_code: int | None = None
    signal: str | None = None
    fault: str | None = None
    """`class` in the file."""
    regex: str | None = None


class Backoff(_Data, frozen=True):
    min_s: float
    max_s: float


DEFAULT_BACKOFF: Final = {"crash": Backoff(1.0, 60.0), "node": Backoff(0.0, 0.0)}


class Budgets(_Data, frozen=True):
    """None = unlimited."""

    crash: int | None = 5
    hang: int | None = 5
    node: int | None = None
    preemption: int | None = None
    oom: int | None = 2
    poison: int | None = 3
    membership: int | None = 5


class Restart(_Data, frozen=True):
    policy: Literal["on-failure", "never"] = "on-failure"
    max_restarts: int = 10
    budgets: Budgets = Budgets()
    max_without_progress: int = 2
    lease_s: float = 3.0
    fence: Literal["confirm", "lease"] = "confirm"
    backoff: dict[str, Backoff] = msgspec.field(default_factory=lambda: dict(DEFAULT_BACKOFF))
    """By fault class; a class not named takes crash's."""
    rules: list[Rule] = []


class Data(_Data, frozen=True):
    quarantine_after: int = 2
    max_quarantined: int = 10
    on_bad_loss: Literal["off", "skip", "stop"] = "off"
    bad_loss_factor: float | None = None
    """None: only a loss that is not finite is bad."""


class Keep(_Data, frozen=True):
    last: int = 3
    every_steps: int | None = 1000


class Checkpoint(_Data, frozen=True):
    """Exactly one of every_steps and every_s is set. `dir` as written: relative is under the run's folder."""

    dir: str = "checkpoints"
    every_steps: int | None = 500
    every_s: float | None = None
    initial: bool = True
    memory_every: str = "auto"
    keep: Keep = Keep()
    resume: str = "auto"
    """auto | never | a path, made absolute."""


class Preempt(_Data, frozen=True):
    signals: list[str] = msgspec.field(default_factory=lambda: ["TERM", "USR1"])
    grace_s: float = 600.0


class Notify(_Data, frozen=True):
    on: list[str]
    url_secret: str


class Logs(_Data, frozen=True):
    max_size_bytes: int = 1 << 30
    line_buffered: bool = False


class Plan(_Data, frozen=True):
    """What `zrun plan` is told; None: not said. Counts are numbers, rates bytes a second, fractions of 1."""

    params: int | None = None
    frozen: int | None = None
    model: str | None = None
    loss: str | None = None
    layers: int | None = None
    deltanet_layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_width: int | None = None
    inner: int | None = None
    mlp: Literal["gated", "plain"] | None = None
    dropout: bool | None = None
    vocabulary: int | None = None
    wrap: str | None = None
    world: int | None = None
    ranks_per_node: int | None = None
    memory_bytes: int | None = None
    headroom: float | None = None
    recipe: str | None = None
    optimizer: Literal["foreach", "fused", "loop"] | None = None
    ddp_buckets: Literal["copy", "view"] | None = None
    micro_batch: int | None = None
    accumulate: int | None = None
    sync: Literal["every", "last"] | None = None
    sequence: int | None = None
    checkpointing: Literal["none", "full"] | None = None
    attention: Literal["flash", "quadratic"] | None = None
    routing: Literal["flat", "hierarchical"] | None = None
    intra: float | None = None
    inter: float | None = None
    latency_intra_s: float | None = None
    latency_inter_s: float | None = None
    flops: float | None = None
    mfu: float | None = None
    storage: float | None = None
    staging: float | None = None
    failures: float | None = None
    """For 1000 node-days."""
    detection_s: float | None = None
    restart_s: float | None = None
    stall_s: float | None = None


class JobSpec(_Data, frozen=True):
    """Field names as in job.yaml, with `_s` and `_bytes` where a unit was; see docs/job-yaml.md."""

    name: str
    run: list[str]
    """Split like a shell line: script or `-m module`, and arguments."""
    version: int = 1
    nodes_min: int = 1
    nodes_max: int = 1
    nproc_per_node: int | Literal["auto", "gpu", "cpu"] = "auto"
    workdir: str = "."
    """Absolute after loading."""
    setup: str | None = None
    env: dict[str, str] = {}
    secrets: list[str] = []
    python: str | None = None
    """None: the python that runs zrun."""
    launcher: Launcher = "auto"
    seed: int = 0
    rng: Literal["derived", "stream"] = "derived"
    standby: Standby = Standby()
    resources: Resources = Resources()
    placement: Placement = Placement()
    watchdog: Watchdog = Watchdog()
    restart: Restart = Restart()
    data: Data = Data()
    checkpoint: Checkpoint = Checkpoint()
    preempt: Preempt = Preempt()
    notify: list[Notify] = []
    logs: Logs = Logs()
    max_duration_s: float | None = None
    stop_grace_s: float = 120.0
    plan: Plan = Plan()
    labels: dict[str, str] = {}
    allow_changed: list[str] = []
    """From `--allow-changed KEY`."""


def spec_from_dict(value: dict[str, Any]) -> JobSpec:
    """Raises msgspec.ValidationError for what no zrun of this version wrote."""
    return msgspec.convert(value, JobSpec)


def spec_to_dict(spec: JobSpec) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(spec)
    return built
