"""How a keeper waits for the lock of an earlier one: what it says of the wait, and when a stopped holder is ended.

A keeper that was stopped (SIGSTOP, a debugger) ends nothing and lets go of nothing; its agent is dead, or we would not
wait. Standard library only.
"""

from typing import Final

from zrun.agent import proc_table
from zrun.agent.child_watch import kill
from zrun.agent.keeper_lock import KeeperLock

SAY_EVERY_S: Final = 5.0
STOPPED_S: Final = 3.0
"""Stopped for so long without a break; nobody pauses a keeper for its own good."""


class LockQueue:
    """Times are the waiting keeper's own clock."""

    def __init__(self, lock: KeeperLock) -> None:
        self._lock = lock
        self._said: float | None = None
        self._stopped_since: float | None = None

    def news(self, now: float) -> str:
        """Who holds it, in words, when that is worth saying (again); ends a holder that is stopped."""
        holder = self._lock.read().keeper
        found = proc_table.stat(holder.pid)
        stopped = found is not None and found.started == holder.started and found.state in "Tt"
        if not stopped:
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        elif now >= self._stopped_since + STOPPED_S:
            kill([holder])
        if self._said is not None and now < self._said + SAY_EVERY_S:
            return ""
        self._said = now
        return proc_table.describe(holder) if found is not None else "an unknown process"
