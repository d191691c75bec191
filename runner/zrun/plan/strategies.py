"""Which ways there are to spread a model over ranks, as one literal table: what each shards, and over how many.

Knows nothing about bytes or links. Sources are in docs/plan.md, "Strategies".
"""

from dataclasses import dataclass
from typing import Final

from zrun.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Strategy:
    """Sharded between steps: optimizer, gradients, parameters. `grouped`: within groups smaller than the world."""

    name: str
    optimizer: bool
    gradients: bool
    parameters: bool
    grouped: bool = False
    gathers_by_unit: bool = False
    """Parameters are whole for one unit at a time only."""


STRATEGIES: Final = {
    one.name: one
    for one in (
        Strategy("ddp", optimizer=False, gradients=False, parameters=False),
        Strategy("zero1", optimizer=True, gradients=False, parameters=False),
        Strategy("zero2", optimizer=True, gradients=True, parameters=False),
        Strategy("zero3", optimizer=True, gradients=True, parameters=True, gathers_by_unit=True),
        Strategy("fsdp-noreshard", optimizer=True, gradients=True, parameters=True),
        Strategy("hsdp", optimizer=True, gradients=True, parameters=True, grouped=True, gathers_by_unit=True),
        Strategy("hpz", optimizer=True, gradients=True, parameters=True, gathers_by_unit=True),
        Strategy("mics", optimizer=True, gradients=True, parameters=True, grouped=True, gathers_by_unit=True),
    )
}


@dataclass(frozen=True, slots=True)
class Layout:
    """All ranks, and how many of them share a node; ranks of a node are neighbours."""

    world: int
    per_node: int

    @property
    def nodes(self) -> int:
        return self.world // self.per_node


@dataclass(frozen=True, slots=True)
class Choice:
    """One row of the table. `shard_group`: ranks among which state is sharded; 1 where nothing is."""

    strategy: Strategy
    shard_group: int
    secondary: int = 0
    """hpz: ranks that hold one more whole copy of the parameters among them."""

    @property
    def label(self) -> str:
        if self.secondary:
            return f"{self.strategy.name} /{self.secondary}"
        return f"{self.strategy.name} {self.shard_group}" if self.strategy.grouped else self.strategy.name


def layout(world: int, per_node: int) -> Layout:
    """Raises UsageError where the ranks do not fill their nodes."""
    if world <= per_node:
        return Layout(world, world)
    if world % per_node:
        raise UsageError(
            f"{world} ranks do not fill nodes of {per_node}",
            "give --ranks-per-node, or a world that is a multiple of it",
        )
    return Layout(world, per_node)


def shard_groups(place: Layout) -> list[int]:
    """The sensible groups: whole parts of a node, or whole nodes, smaller than the world and larger than one rank."""
    divisors = [size for size in range(2, place.world) if place.world % size == 0]
    return [size for size in divisors if place.per_node % size == 0 or size % place.per_node == 0]


def choices(place: Layout) -> list[Choice]:
    """Every row of the table, in the order of docs/plan.md."""
    groups = shard_groups(place)
    found: list[Choice] = []
    for one in STRATEGIES.values():
        if one.grouped:
            found += [Choice(one, size) for size in groups]
        elif one.name == "hpz":
            # A secondary copy over all ranks would be the primary one.
            found += [Choice(one, place.world, size) for size in groups if size <= place.per_node]
        else:
            found.append(Choice(one, place.world if one.optimizer else 1))
    return found
