"""The script's own random streams as part of the state (`rng: stream`): each rank's, as they stand between two steps.

Knows nothing about who draws from them.
"""

from typing import Any, Final

import torch

from zrun.state import rng
from zrun.state.blocks import Block, Copies, block_of
from zrun.state.source import Source
from zrun.state.values import decode, encode

_KEY: Final = "rng/streams"


class Streams:
    """This rank's. `seed`, `rank`: what they are seeded from where the checkpoint holds none for this rank."""

    def __init__(self, seed: int, rank: int) -> None:
        self._seed = seed
        self._rank = rank

    def save(self, blocks: list[Block], values: dict[str, Any]) -> None:
        loose: dict[str, torch.Tensor] = {}
        values[_KEY] = encode(rng.capture(), _KEY, loose)
        blocks += [block_of(name, tensor, Copies.OWN) for name, tensor in loose.items()]

    def resume(self, source: Source) -> list[str]:
        """The last thing in a restore: nothing may draw after it. What could not be put back, in words."""
        held = source.values.get(_KEY)
        if held is None:
            return ["the checkpoint holds no random streams (not saved under rng: stream): they go on as they are"]
        if not source.same_world:
            # Another rank's stream would be drawn from twice.
            rng.seed_step(self._seed, self._rank, source.manifest.step + 1)
            saved_by = f"random streams belong to the {source.manifest.world_size} ranks that saved them"
            return [f"{saved_by}: here each rank's are seeded anew from (seed, rank, step)"]
        return rng.apply(decode(held, source.whole))
