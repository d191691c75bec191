"""What is asked, complete: from the `plan` block and options, with every default filled in and its origin noted.

Knows nothing about files or torch; the model comes in from outside.
"""

from dataclasses import dataclass, field

from zrun.core.errors import UsageError
from zrun.plan.activations import Activations, Shape, estimated
from zrun.plan.checkpoint import Saving, Storage, saving
from zrun.plan.compute import Speed
from zrun.plan.ettr import Weather
from zrun.plan.incidents import Measured
from zrun.plan.memory import Habits
from zrun.plan.model import Model
from zrun.plan.recipe import Recipe, recipe
from zrun.plan.strategies import Layout, layout
from zrun.plan.wire import Links
from zrun.spec.job import Plan
from zrun.spec.plan import PUBLISHED

ASSUMED_DETECTION_S = 60.0
ASSUMED_RESTART_S = 300.0


@dataclass(frozen=True, slots=True)
class Question:
    """`wraps`: the same model with other units, to compare. `origins`: where each assumed number comes from."""

    model: Model
    wraps: dict[str, Model]
    recipe: Recipe
    place: Layout
    memory: int | None
    habits: Habits
    activations: Activations | None
    shape: Shape | None
    micro_batch: int
    sequence: int | None
    checkpointing: str
    routing: str
    links: Links
    speed: Speed
    storage: Storage
    saving: Saving
    weather: Weather | None
    """None: what a checkpoint costs is not known."""
    origins: dict[str, str] = field(default_factory=dict)
    configured_s: float | None = None
    """checkpoint.every of the job file, where it is a duration."""


def asked(
    plan: Plan, model: Model, wraps: dict[str, Model], counted: Activations | None, measured: Measured,
    configured_s: float | None = None,
) -> Question:  # fmt: skip
    """Raises UsageError where something needed is missing or contradicts."""
    if plan.world is None:
        raise UsageError("how many ranks?", "give --world, or nodes and nproc_per_node in the job file")
    made = recipe(plan.recipe or "mixed")
    shape = _shape(plan, made)
    checkpointing = plan.checkpointing or "none"
    place = layout(plan.world, plan.ranks_per_node or 8)
    storage = Storage(plan.storage, plan.staging)
    saved = saving(model, made, plan.world, storage)
    weather, origins = _weather(plan, place, saved, measured)
    return Question(
        model, wraps, made, place, plan.memory_bytes, _habits(plan),
        counted or (estimated(shape, checkpointing) if shape else None), shape,
        plan.micro_batch or 1, plan.sequence, checkpointing, plan.routing or "flat",
        Links(plan.intra, plan.inter, plan.latency_intra_s or 0.0, plan.latency_inter_s or 0.0),
        Speed(plan.flops, plan.mfu or 0.4), storage, saved, weather, origins, configured_s,
    )  # fmt: skip


def _habits(plan: Plan) -> Habits:
    return Habits(
        plan.accumulate or 1, plan.sync or "every", plan.optimizer or "foreach", plan.ddp_buckets or "copy",
        0.1 if plan.headroom is None else plan.headroom,
    )  # fmt: skip


def _shape(plan: Plan, made: Recipe) -> Shape | None:
    """None where the widths are not told: activations are then not guessed."""
    if plan.layers is None or plan.hidden is None or plan.heads is None or plan.sequence is None:
        return None
    if (plan.deltanet_layers or 0) > plan.layers:
        raise UsageError(
            f"{plan.deltanet_layers} Gated DeltaNet layers of {plan.layers}", "--layers counts all, of both kinds"
        )
    if plan.head_width is None and plan.hidden % plan.heads:
        raise UsageError(f"hidden {plan.hidden} does not divide into {plan.heads} heads", "give --head-width")
    return Shape(
        plan.layers, plan.hidden, plan.heads, plan.sequence, made.gather_bytes, plan.deltanet_layers or 0,
        plan.kv_heads or 0, plan.head_width or 0, plan.inner or 0, (plan.mlp or "gated") == "gated",
        bool(plan.dropout), plan.vocabulary or 0, (plan.attention or "flash") == "flash",
    )  # fmt: skip


def _weather(plan: Plan, place: Layout, saved: Saving, measured: Measured) -> tuple[Weather | None, dict[str, str]]:
    here = f"median of {measured.incidents} incidents of this installation"
    origins: dict[str, str] = {}
    detection = plan.detection_s
    if detection is None:
        detection = ASSUMED_DETECTION_S if measured.detection_s is None else measured.detection_s
        origins["detection_s"] = "assumed" if measured.detection_s is None else here
    restart = plan.restart_s
    if restart is None:
        # What was measured loaded other state than this; its own load comes on top.
        restart = ASSUMED_RESTART_S if measured.restart_s is None else measured.restart_s + (saved.load_s or 0.0)
        origins["restart_s"] = "assumed" if measured.restart_s is None else f"{here}, and this state's load"
    failures = plan.failures
    if failures is None:
        failures = PUBLISHED["rsc-1"]
        origins["failures"] = "published for RSC-1"
    stall = plan.stall_s
    if stall is None:
        stall, origins["stall_s"] = _stall(saved)
    if stall is None:
        return None, origins
    lag = max(0.0, (saved.save_s or 0.0) - stall)
    return Weather(place.nodes, failures, detection, restart, stall, lag), origins


def _stall(saved: Saving) -> tuple[float | None, str]:
    if saved.staging_s is not None:
        return saved.staging_s, "copy to host memory at the staging rate; the rest is in the background"
    if saved.save_s is not None:
        return saved.save_s, "the whole save, because no staging rate is given"
    return None, "not known: give --storage, --staging or --stall"
