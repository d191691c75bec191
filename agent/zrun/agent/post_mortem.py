"""What can be learnt of a rank's end once it is over, and soon is gone: its memory, its last stack, full disks.

Looks and tells; whose fault anything was is judged elsewhere.
"""

from pathlib import Path
from typing import Any, Final

from zrun.agent import evidence
from zrun.agent.attempt import Attempt
from zrun.agent.disks import full_disks
from zrun.agent.launch import users_code
from zrun.agent.node_events import RankExited
from zrun.agent.rank_story import PostMortem, RankStory
from zrun.core.redact import Redactor
from zrun.core.user_code import shown
from zrun.core.words import shortened
from zrun.spec.job import JobSpec

LONGEST_STACK: Final = 64 << 10
_DUMPS: Final = {"SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "SIGILL"}
"""At these faulthandler writes the stack."""


def rank_exited(
    attempt: Attempt, story: RankStory | None, line: dict[str, Any], last_lines: list[str], spec: JobSpec,
    hidden: Redactor,
) -> RankExited:  # fmt: skip
    """`line`: what the keeper saw of the end; `last_lines`: what the rank printed last."""
    rank, code, signal, at = line["rank"], line["exit_code"], line["signal"], line["at"]
    by_us = story is not None and story.signalled_unix is not None
    oom = not by_us and attempt.memory.took(rank, code, signal, at)
    peak, limit = attempt.memory.of(rank)
    full = [] if by_us or code == 0 else full_disks(attempt.disks)
    stack, where = _stack(attempt, rank, spec) if signal in _DUMPS and not by_us else ("", None)
    after = PostMortem(peak, limit, tuple(full), hidden.text(shortened(stack, LONGEST_STACK)), where)
    return RankExited(rank, line["pid"], code, signal, at, last_lines, oom, after)


def _stack(attempt: Attempt, rank: int, spec: JobSpec) -> tuple[str, str | None]:
    text = evidence.fatal_stack(attempt.where.attempt_dir / f"rank-{rank}.stacks")
    place = users_code(spec).in_stack(text) if text else None
    return text, shown(place, Path(spec.workdir)) if place is not None else None
