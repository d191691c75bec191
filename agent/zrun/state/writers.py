"""Who writes what: every block once, spread evenly over the ranks that hold it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from zrun.state.blocks import Copies
from zrun.state.source import name_of_own


@dataclass(frozen=True, slots=True)
class Held:
    """One block as a rank describes it to the others. `whole`: dtype and shape; `place`: offsets and own shape."""

    name: str
    whole: str
    place: str
    bytes: int
    copies: str
    digest: str = ""


def assign(held: Sequence[Sequence[Held]]) -> list[dict[int, str]]:
    """For each rank: index of a block it writes -> name to write it under.

    Blocks known to be equal are written by the rank with the least to write so far. Where nothing keeps them equal and
    the digests differ, or even the shapes, each other rank's goes under a name of its own.
    """
    whole: dict[str, str] = {}
    shared: dict[tuple[str, str], list[tuple[int, int, Held]]] = {}
    plan: list[dict[int, str]] = [{} for _ in held]
    load = [0] * len(held)

    def give(rank: int, index: int, block: Held, name: str) -> None:
        plan[rank][index] = name
        load[rank] += block.bytes

    for rank, blocks in enumerate(held):
        for index, block in enumerate(blocks):
            if whole.setdefault(block.name, block.whole) != block.whole:
                give(rank, index, block, name_of_own(block.name, rank))
            else:
                shared.setdefault((block.name, block.place), []).append((rank, index, block))
    choices: list[list[tuple[int, int, Held]]] = []
    for group in shared.values():
        first = group[0][2]
        equal = [member for member in group if member[2].digest == first.digest]
        for rank, index, block in group:
            if block.digest != first.digest:
                give(rank, index, block, name_of_own(block.name, rank))
        choices.append(equal[:1] if first.copies == Copies.FIRST else equal)
    # Blocks that only one rank holds first: what is left is then spread so that all end up with about the same.
    for group in sorted(choices, key=lambda g: (len(g) > 1, -g[0][2].bytes, g[0][2].name)):
        rank, index, block = min(group, key=lambda member: (load[member[0]], member[0]))
        give(rank, index, block, block.name)
    return plan
