"""The keeper's anonymous files, in which ranks keep copies of their state: they outlive ranks, and end with the keeper.

Standard library only; never looks into them. Made when ranks are started, empty: they cost nothing before a rank
writes.
"""

import os
from collections.abc import Iterable

from zrun.core.memory_files import KINDS, file_name


class MemoryFiles:
    """Of one job on this node."""

    def __init__(self) -> None:
        self._handles: dict[str, int] = {}

    def make(self, ranks: Iterable[int]) -> None:
        """Those that are not there yet. Raises OSError."""
        for name in (file_name(rank, kind) for rank in ranks for kind in KINDS):
            if name not in self._handles:
                self._handles[name] = os.memfd_create(name, os.MFD_CLOEXEC)

    def close(self) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()
