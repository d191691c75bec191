"""Where one rank stands on one process group: its newest collective there."""

from dataclasses import dataclass
from typing import Any, Final

from zrun.core.deck import OPS

BACKGROUND: Final = "zrun: saves in the background"
"""The description of the group on which another thread than the training one agrees. What ranks do there says nothing
about where their training stands, so it is not recorded."""
POINT_TO_POINT: Final = frozenset({"send", "recv", "recv_any_source"})
"""They pair two ranks of a group, so they do not count on it: ranks differ in them for good reasons."""


@dataclass(frozen=True, slots=True)
class Standing:
    """`sequence` counts from 1 on the group; `inside`: entered and not left; `bytes`: what the rank brought along."""

    group: int
    sequence: int
    op: str
    bytes: int
    inside: bool
    blocking: bool = False
    """Inside, and its caller can do nothing else until it is over; False also where that is not known."""

    def pack(self) -> list[int]:
        """For the wire: five numbers."""
        inside = 2 if self.inside and self.blocking else int(self.inside)
        return [self.group, self.sequence, OPS.index(self.op), self.bytes, inside]

    @classmethod
    def unpack(cls, told: Any) -> "Standing":
        """Raises ValueError for what no agent sends."""
        try:
            group, sequence, op, size, inside = map(int, told)
        except (TypeError, ValueError) as error:
            raise ValueError(f"no standing: {told!r}") from error
        if not 0 <= op < len(OPS):
            raise ValueError(f"unknown collective {op}")
        return cls(group, sequence, OPS[op], size, bool(inside), inside > 1)
