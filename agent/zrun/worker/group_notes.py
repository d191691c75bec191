"""Tells the agent of which process groups this rank is a member, also of one that it has not used yet: a deadlock
across groups may come with the very first collective. The group of saves in the background is none of them. Knows
nothing about collectives.
"""

import contextlib
import sys
import zlib
from typing import Any

from zrun.core.notes import NoteKind
from zrun.core.standing import BACKGROUND
from zrun.worker.rank import ThisRank


class GroupNotes:
    """A sweeper: looks for new groups each time it is called, at the cost of comparing two lengths."""

    def __init__(self, rank: ThisRank) -> None:
        self._rank = rank
        self._told: set[str] = set()
        self._count = 0

    def sweep(self, _moved_on: bool) -> None:
        """Never raises: torch keeps this list for itself, and any version may keep it elsewhere."""
        module = sys.modules.get("torch.distributed.distributed_c10d")
        try:
            names = module._world.pg_names if module is not None else {}  # noqa: SLF001 - told nowhere else
            if len(names) == self._count:
                return
            for group, name in list(names.items()):
                if name not in self._told and group.group_desc != BACKGROUND:
                    code = zlib.crc32(name.encode())
                    self._rank.note(NoteKind.GROUP, code=code, name=name, timeout_s=_timeout_s(group))
                    self._told.add(name)
            self._count = len(names)
        except (AttributeError, RuntimeError):
            pass  # no such list, or it changed meanwhile: the next look sees it


def _timeout_s(group: Any) -> float:
    """After which it gives a collective up, 0.0 if it does not say; the shortest of its backends."""
    found: list[float] = []
    with contextlib.suppress(
        Exception
    ):  # inner parts of torch: whatever they raise, the note is worth less than training
        for device in group._device_types:  # noqa: SLF001 - told nowhere else
            options = getattr(group._get_backend(device), "options", None)  # noqa: SLF001
            if options is not None:
                found.append(options._timeout.total_seconds())  # noqa: SLF001
    return min(found, default=0.0)
