"""What crosses between ranks in one step: which collectives, how many bytes on which links, for how long at least.

Pure arithmetic over rings. Knows nothing about memory. Each formula's source is in docs/plan.md, "Wire".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from zrun.plan.model import Model
from zrun.plan.recipe import Recipe
from zrun.plan.strategies import Choice, Layout

DDP_BUCKET_BYTES: Final = 25 * 2**20
"""torch's default bucket_cap_mb."""
ROUNDS: Final = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "broadcast": 1}
"""How often a ring carries (n - 1) / n of the bytes past each rank (Thakur et al. 2005; Patarasuk and Yuan 2009)."""


@dataclass(frozen=True, slots=True)
class Ring:
    """A group of ranks: `local` on each of `nodes` nodes; `side_by_side` such groups share a node's network cards."""

    local: int
    nodes: int
    side_by_side: int

    @property
    def size(self) -> int:
        return self.local * self.nodes


@dataclass(frozen=True, slots=True)
class Collective:
    """One kind of collective of a step: `bytes` whole (gathered or before scattering), all calls of a step together."""

    op: str
    what: str
    bytes: float
    calls: int
    ring: Ring


@dataclass(frozen=True, slots=True)
class Links:
    """Bytes a second: one rank within its node, one whole node to others. None: not known."""

    intra: float | None = None
    inter: float | None = None
    latency_intra_s: float = 0.0
    latency_inter_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one collective, or of a whole step: bytes a rank sends (mean over a node), and the time floor."""

    intra: float
    inter: float
    seconds: float | None
    inter_s: float
    """The part of `seconds` in which the slow links are what is waited for."""


def group_ring(size: int, place: Layout) -> Ring:
    """Neighbouring ranks: a part of a node, or whole nodes."""
    local = min(size, place.per_node)
    return Ring(local, max(1, size // place.per_node), place.per_node // local)


def replica_ring(group: int, place: Layout) -> Ring:
    """The ranks that hold the same shard in different groups."""
    replicas = place.world // group
    local = min(max(1, place.per_node // group), replicas)
    return Ring(local, replicas // local, place.per_node // local)


def collectives(
    choice: Choice, model: Model, recipe: Recipe, place: Layout, accumulate: int, sync: str
) -> list[Collective]:
    """Of one optimizer step, `accumulate` backwards; sharded gradients cross after each unless `sync` is last."""
    parameters = model.params * recipe.gather_bytes
    gradients = model.trainable * recipe.reduce_bytes
    kind = choice.strategy
    everyone = group_ring(place.world, place)
    buckets = max(1, -int(-gradients // DDP_BUCKET_BYTES))
    if not kind.optimizer:
        return _sent([Collective("all_reduce", "gradients", gradients, buckets, everyone)])
    if not kind.parameters:
        reduces = accumulate if kind.gradients and sync == "every" else 1
        return _sent([
            Collective("reduce_scatter", "gradients", reduces * gradients, reduces * buckets, everyone),
            Collective("all_gather", "parameters", model.trainable * recipe.parameter_bytes, 1, everyone),
        ])  # fmt: skip
    return _sent(_sharded(choice, model, (parameters, gradients), place, accumulate, sync))


def _sharded(
    choice: Choice, model: Model, sizes: tuple[float, float], place: Layout, accumulate: int, sync: str
) -> list[Collective]:
    """FSDP's: gathered before the forward, again before the backward unless kept, gradients scattered after it."""
    parameters, gradients = sizes
    kind, group = choice.strategy, choice.shard_group
    units = len(model.units) + 1
    ring = group_ring(group, place)
    reduces = accumulate if sync == "every" else 1
    found = [Collective("all_gather", "parameters, forward", accumulate * parameters, accumulate * units, ring)]
    if kind.gathers_by_unit:
        again = group_ring(choice.secondary, place) if choice.secondary else ring
        # The root stays gathered from its forward on.
        share = 1 - model.root.params / model.params if model.units else 1.0
        calls = accumulate * max(1, units - 1)
        found.append(Collective("all_gather", "parameters, backward", accumulate * parameters * share, calls, again))
    found.append(Collective("reduce_scatter", "gradients", reduces * gradients, reduces * units, ring))
    if kind.grouped:
        # FSDP2 sums over replicas after each backward, MiCS once a step (its 2-hop gradient synchronisation).
        sums = 1 if kind.name == "mics" else reduces
        replicas = replica_ring(group, place)
        found.append(Collective("all_reduce", "gradient shards", sums * gradients / group, sums * units, replicas))
    return found


def _sent(found: Sequence[Collective]) -> list[Collective]:
    return [one for one in found if one.ring.size > 1 and one.bytes > 0]


def cost(one: Collective, links: Links, routing: str) -> Cost:
    """A flat ring sends one of `local` shares out of its node; hierarchical: between nodes, then within each."""
    ring, rounds = one.ring, ROUNDS[one.op]
    if routing == "hierarchical" and ring.local > 1 and ring.nodes > 1:
        intra = rounds * one.bytes * (ring.local - 1) / ring.local
        inter = rounds * one.bytes * (ring.nodes - 1) / ring.size
        hops = (rounds * (ring.local - 1), rounds * (ring.nodes - 1))
        in_s, out_s = _seconds(one, links, intra, inter * ring.local, hops)
        return Cost(intra, inter, None if in_s is None or out_s is None else in_s + out_s, out_s or 0.0)
    total = rounds * one.bytes * (ring.size - 1) / ring.size
    inter = total / ring.local if ring.nodes > 1 else 0.0
    intra = total - inter
    steps = rounds * (ring.size - 1)
    hops = (0, steps) if ring.nodes > 1 else (steps, 0)
    in_s, out_s = _seconds(one, links, total if ring.local > 1 else 0.0, total if ring.nodes > 1 else 0.0, hops)
    seconds = None if in_s is None or out_s is None else max(in_s, out_s)
    return Cost(intra, inter, seconds, out_s if out_s is not None and seconds == out_s else 0.0)


def _seconds(
    one: Collective, links: Links, past_rank: float, past_node: float, hops: tuple[int, int]
) -> tuple[float | None, float | None]:
    """(within nodes, between them); `past_node`: bytes one group puts on its node's cards, which all there share."""
    inside: float | None = 0.0
    between: float | None = 0.0
    if past_rank:
        inside = None if links.intra is None else past_rank / links.intra + one.calls * hops[0] * links.latency_intra_s
    if past_node:
        shared = past_node * one.ring.side_by_side
        between = None if links.inter is None else shared / links.inter + one.calls * hops[1] * links.latency_inter_s
    return inside, between


def summed(found: Sequence[Collective], links: Links, routing: str) -> Cost:
    """Of a whole step, one collective after another."""
    costs = [cost(one, links, routing) for one in found]
    known = [one.seconds for one in costs if one.seconds is not None]
    return Cost(
        sum(one.intra for one in costs), sum(one.inter for one in costs),
        sum(known) if len(known) == len(costs) else None, sum(one.inter_s for one in costs),
    )  # fmt: skip


def to_json(one: Collective, links: Links, routing: str) -> dict[str, Any]:
    spent = cost(one, links, routing)
    return {
        "op": one.op, "what": one.what, "calls": one.calls, "group": one.ring.size,
        "wire_bytes": {"intra": round(spent.intra), "inter": round(spent.inter)}, "seconds": spent.seconds,
    }  # fmt: skip
