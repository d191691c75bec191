"""Which nodes get the seats of the next attempt: a pure choice among heard nodes, with its reason.

A node that another job holds is told to this job as gone, so it is not chosen. Knows nothing about attempts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zrun.machine.state import Member
from zrun.spec.job import JobSpec
from zrun.wire.report import Doing


@dataclass(frozen=True, slots=True)
class Seating:
    """`nodes` in the order of their node ranks; empty if there are too few, and `reason` says what is missing."""

    nodes: tuple[str, ...]
    reason: str


def choose(nodes: Iterable[Member], spec: JobSpec, prefer: Sequence[str] = ()) -> Seating:
    """`prefer`: the seats of the attempt before; a node keeps its rank where it can."""
    good: list[str] = []
    why_not: list[str] = []
    for node in nodes:
        obstacle = _obstacle(node, spec)
        if obstacle:
            why_not.append(f"{node.name} {obstacle}")
        else:
            good.append(node.name)
    if len(good) < spec.nodes_min:
        return Seating((), _missing(len(good), spec.nodes_min, why_not))
    again = [name for name in prefer if name in good]
    others = sorted(name for name in good if name not in again)
    chosen = tuple((again + others)[: max(spec.nodes_min, spec.nodes_max)])
    return Seating(chosen, f"on {', '.join(chosen)}")


def _obstacle(node: Member, spec: JobSpec) -> str:
    hosts = spec.placement.hosts
    if hosts and node.name not in hosts:
        return "is not among placement.hosts"
    if node.name in spec.placement.exclude:
        return "is in placement.exclude"
    if node.gone:
        return f"is gone: {node.gone}"
    if node.silent:
        return "is silent"
    if not node.fresh:
        return "was not heard since the coordinator began"
    if node.leaving_in_s is not None:
        return "is about to leave"
    if node.stuck:
        return f"has a process that outlived its end and may hold GPUs and ports: {', '.join(node.stuck)}"
    if node.doing is not Doing.IDLE:
        return f"is still {node.doing.value}"
    return ""


def _missing(have: int, need: int, why_not: list[str]) -> str:
    if need == 1 and not why_not:
        return "waiting for its agent"
    lack = need - have
    text = f"waiting for {lack} more node{'s' if lack > 1 else ''}: {have} of {need} ready"
    return f"{text} ({'; '.join(why_not)})" if why_not else f"{text}, no other is known"
