"""Where a rank's copies in memory lie: anonymous files that its node's keeper holds open, found under /proc by name.

Three a rank: a page for what is small, and two slots that take turns, so that a copy being made never costs the one
before it. Knows nothing about what lies in them.
"""

from dataclasses import dataclass
from pathlib import Path

from zrun.core import env
from zrun.core.memory_files import PAGE, SLOTS, rank_of
from zrun.state import memory_slot


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of one rank's files."""

    page: str
    slots: tuple[str, ...]

    def oldest_first(self, job: str) -> list[str]:
        """Slots in the order in which they may be overwritten."""
        held = {slot: memory_slot.read(slot) for slot in self.slots}

        def age(slot: str) -> tuple[int, int]:
            about = held[slot]
            return (int(about["attempt"]), int(about["step"])) if about and about["job"] == job else (-1, -1)

        return sorted(self.slots, key=age)


def on_this_node() -> dict[int, Places]:
    """rank -> its places; empty where no keeper holds any, or where its files cannot be looked at."""
    folder = env.get(env.MEMORY)
    found: dict[int, dict[str, str]] = {}
    try:
        entries = list(Path(folder).iterdir()) if folder else []
    except OSError:
        entries = []
    for entry in entries:
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        named = rank_of(target)
        if named is not None:
            found.setdefault(named[0], {})[named[1]] = str(entry)
    return {
        rank: Places(kinds[PAGE], tuple(kinds[slot] for slot in SLOTS))
        for rank, kinds in found.items()
        if {PAGE, *SLOTS} <= kinds.keys()
    }
