"""How one rank ended badly, as a value; decides nothing about whose fault it was."""

from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from zrun.core.words import encodable


class FailureKind(StrEnum):
    """What was seen of the rank's end."""

    RAISED = "raised"
    """An exception left the script (or was in flight when the rank died)."""
    EXITED = "exited"
    """Exit with a code that is not 0 and no exception."""
    SIGNALED = "signaled"
    """Killed by a signal that zrun did not send."""
    EARLY = "early-exit"
    """Exit 0 while the other ranks went on."""
    OOM = "oom"
    """Killed by the kernel for memory, or out-of-memory raised."""
    PREEMPTED = "preempted"
    """Killed by a signal that zrun did not send, and a notice on its node says why."""
    SETUP = "setup"
    """The job's `setup` commands failed on this node."""
    LAUNCH = "launch"
    """The workers could not be started at all (no python, address in use after all tries)."""
    NODE = "node"
    """The node's own agent stood still: its keeper ended the workers."""
    HUNG = "hung"
    """Named by the hang verdict."""
    ENDED_BY_US = "ended-by-us"
    """Ended by zrun as a consequence; never a cause."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One rank's end. Times: `at` is Unix seconds of the raise or death, on the node's clock."""

    rank: int
    node: str
    kind: FailureKind
    at: float
    exit_code: int | None = None
    signal: str | None = None
    exception: str | None = None
    """Qualified type name of the root exception of the chain, for example `ValueError`."""
    message: str | None = None
    where: str | None = None
    """file:line of the innermost frame of the user's own code."""
    traceback: str | None = None
    """The whole chain, root first."""
    step: int | None = None
    batch: str | None = None
    phase: str | None = None
    collective: str | None = None
    """For example `all_reduce #17`, if the rank was inside one."""
    pid: int | None = None
    peak_rss_bytes: int | None = None
    """The most resident memory its process was seen with."""
    memory_limit_bytes: int | None = None
    """Of its cgroup."""
    full_disks: list[str] = field(default_factory=list)
    """Disks of the run, its checkpoints or its shared memory that had no room then, in words."""
    noticed: str | None = None
    """`had caught ValueError: bad sample (data.py:10)`: an exception of this step that need not have ended the rank."""
    last_lines: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        value: dict[str, Any] = encodable(asdict(self))
        return value

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Failure":
        """Unknown keys are ignored. Raises KeyError, ValueError, TypeError on nonsense."""
        known = {f.name: value[f.name] for f in fields(cls) if f.name in value}
        known["kind"] = FailureKind(known["kind"])
        return cls(**known)

    def headline(self) -> str:
        """One line: `rank 1: ValueError: bad sample (data.py:10, step 61, batch e0-s000061-…)`."""
        if self.rank < 0 and self.message:  # of the launch or the set-up, not of a rank
            what = self.message
        elif self.exception:
            what = f"{self.exception}: {self.message}" if self.message else self.exception
        elif self.kind is FailureKind.PREEMPTED:
            what = f"{self.message}: killed by {self.signal}"
        elif self.signal:
            what = f"killed by {self.signal}"
        elif self.exit_code is not None:
            what = f"exited with code {self.exit_code}"
            if self.kind is FailureKind.EXITED and self.message:  # sys.exit("why")
                what += f": {self.message}"
        else:
            what = self.message or self.kind.value
        places = [p for p in (self.where, f"step {self.step}" if self.step else None,
                              f"batch {self.batch}" if self.batch else None) if p]  # fmt: skip
        who = f"rank {self.rank}" if self.rank >= 0 else f"node {self.node}"
        return f"{who}: {what}" + (f" ({', '.join(places)})" if places else "")
