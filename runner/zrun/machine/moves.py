"""The stages a job goes through and the legal moves between them: one table, from which docs/states.md is written.

A stage is finer than the state a person sees (core/states.py); each stage shows as exactly one state. Knows nothing
about why a job moves.
"""

from enum import StrEnum
from typing import Final

from zrun.core.states import FINAL, JobState


class Stage(StrEnum):
    """What the machine itself tells apart; MEANING says what each is."""

    WAITING = "waiting"
    SETUP = "setup"
    STARTING = "starting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    SETTLING = "settling"
    ENDING = "ending"
    RETRYING = "retrying"
    RENEWING = "renewing"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    PREEMPTED = "preempted"


MEANING: Final[dict[Stage, str]] = {
    Stage.WAITING: "no attempt is ordered; nodes are missing",
    Stage.SETUP: "the job's setup commands run on at least one node",
    Stage.STARTING: "an attempt is ordered; not every rank has completed a step",
    Stage.RUNNING: "every rank has completed a step",
    Stage.SUSPENDED: "all ranks are stopped from outside; none is hung",
    Stage.SETTLING: "a fault was seen; evidence is written and echoes arrive, so that blame finds the first cause",
    Stage.ENDING: "everybody is ordered idle; waits until they are, or their leases are over",
    Stage.RETRYING: "the next attempt is decided; waits for the backoff and for nodes",
    Stage.RENEWING: "a new attempt was asked for; ranks save and stop first",
    Stage.STOPPING: "the end was asked for; ranks save and stop",
    Stage.SUCCEEDED: "every rank ended by itself with code 0",
    Stage.FAILED: "no restart: the reason says why",
    Stage.STOPPED: "ended because somebody asked for it, or because `max_duration` was over",
    Stage.PREEMPTED: "ended because the machine was wanted back; launching again continues it",
}

SHOWN: Final[dict[Stage, JobState]] = {
    Stage.WAITING: JobState.PENDING,
    Stage.SETUP: JobState.SETUP,
    Stage.STARTING: JobState.STARTING,
    Stage.RUNNING: JobState.RUNNING,
    Stage.SUSPENDED: JobState.SUSPENDED,
    Stage.SETTLING: JobState.RECOVERING,
    Stage.ENDING: JobState.RECOVERING,
    Stage.RETRYING: JobState.RECOVERING,
    Stage.RENEWING: JobState.RECOVERING,
    Stage.STOPPING: JobState.STOPPING,
    Stage.SUCCEEDED: JobState.SUCCEEDED,
    Stage.FAILED: JobState.FAILED,
    Stage.STOPPED: JobState.STOPPED,
    Stage.PREEMPTED: JobState.PREEMPTED,
}

OVER: Final = frozenset(stage for stage, state in SHOWN.items() if state in FINAL)
"""The job is final; only `resume` leads out."""
TRAINING: Final = frozenset({Stage.SETUP, Stage.STARTING, Stage.RUNNING, Stage.SUSPENDED})
"""An attempt is ordered and nothing is known to be wrong with it."""
ORDERED: Final = TRAINING | {Stage.SETTLING, Stage.ENDING, Stage.RENEWING, Stage.STOPPING}
"""Processes of the newest attempt may be alive."""

_FAULT: Final = {Stage.SETTLING: "a fault was seen", Stage.STOPPING: "the end is asked for",
                 Stage.RENEWING: "a new attempt is asked for",
                 Stage.SUCCEEDED: "every node reports finished"}  # fmt: skip

MOVES: Final[dict[Stage, dict[Stage, str]]] = {
    Stage.WAITING: {
        Stage.STARTING: "enough nodes are heard idle",
        Stage.STOPPED: "stop before any process exists",
        Stage.PREEMPTED: "preempt before any process exists",
    },
    Stage.STARTING: {
        Stage.SETUP: "a node runs the setup commands",
        Stage.RUNNING: "every rank has completed a step",
        Stage.SUSPENDED: "all ranks are stopped",
        **_FAULT,
    },
    Stage.SETUP: {
        Stage.STARTING: "set-up is done on every node",
        Stage.RUNNING: "every rank has completed a step",
        Stage.SUSPENDED: "all ranks are stopped",
        **_FAULT,
    },
    Stage.RUNNING: {
        Stage.SUSPENDED: "all ranks are stopped",
        **_FAULT,
    },
    Stage.SUSPENDED: {
        Stage.STARTING: "ranks run again, no step yet",
        Stage.RUNNING: "ranks run again",
        **_FAULT,
    },
    Stage.SETTLING: {
        Stage.ENDING: "every node has told its whole evidence, or the wait for it is over",
        Stage.STOPPING: "the end is asked for",
    },
    Stage.ENDING: {
        Stage.RETRYING: "everybody is idle or out of lease, and the budget allows a restart",
        Stage.FAILED: "everybody is idle or out of lease, and there is no restart",
        Stage.STOPPING: "the end is asked for",
    },
    Stage.RETRYING: {
        Stage.STARTING: "backoff is over and enough nodes are heard idle",
        Stage.STOPPED: "stop before the next attempt",
        Stage.PREEMPTED: "preempt before the next attempt",
    },
    Stage.RENEWING: {
        Stage.RETRYING: "everybody is idle or out of lease",
        Stage.STOPPING: "the end is asked for",
    },
    Stage.STOPPING: {
        Stage.STOPPED: "everybody is idle, finished or out of lease; stop was asked for",
        Stage.PREEMPTED: "everybody is idle, finished or out of lease; preempt was asked for",
    },
    Stage.SUCCEEDED: {Stage.WAITING: "resume"},
    Stage.FAILED: {Stage.WAITING: "resume"},
    Stage.STOPPED: {Stage.WAITING: "resume"},
    Stage.PREEMPTED: {Stage.WAITING: "resume"},
}


class IllegalMove(Exception):  # noqa: N818 - a bug in the machine, not an error a person can mend
    """The machine wanted a move that the table does not hold."""

    def __init__(self, old: Stage, new: Stage, story: list[str]) -> None:
        told = "\n  ".join(story)
        super().__init__(f"no move from {old} to {new}; the story so far:\n  {told}")


def states_page() -> str:
    """The text of docs/states.md."""
    rows = [f"| {stage} | {SHOWN[stage]} | {MEANING[stage]} |" for stage in Stage]
    moves = [f"| {old} | {new} | {why} |" for old, leads in MOVES.items() for new, why in leads.items()]
    edges = [f"    {old} --> {new}" for old, leads in MOVES.items() for new in leads if old not in OVER]
    ends = [f"    {end} --> [*]" for end in Stage if end in OVER]
    return "\n".join([
        "# The states of a job", "",
        "Written from the table in `runner/zrun/machine/moves.py` by `python -m zrun.machine.moves > docs/states.md`;",
        "a test compares the two. A person sees the state; the machine tells stages apart.", "",
        "| stage | state | meaning |", "|---|---|---|", *rows, "",
        "```mermaid", "stateDiagram-v2", "    [*] --> waiting", *edges, *ends,
        "```", "", "| from | to | when |", "|---|---|---|", *moves, "",
    ])  # fmt: skip


if __name__ == "__main__":
    print(states_page(), end="")
