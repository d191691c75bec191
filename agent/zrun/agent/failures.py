"""One rank's end as a Failure: exit status, last words, deck and last lines merged; pure.

The first cause wins: what a rank said before we signalled it stays its own failure, whatever killed it afterwards.
Knows nothing about other ranks, nor about whose fault anything was.
"""

from typing import Any, Final

from zrun.agent.rank_story import RankStory
from zrun.core.failure import Failure, FailureKind
from zrun.core.words import shortened

OOM_NAMES: Final = ("OutOfMemoryError", "MemoryError")
LONGEST_LINE: Final = 4_000
"""Characters of each of the last lines; the log has them whole."""


def failure_of(story: RankStory, node: str, *, job_failing: bool, why: str) -> Failure | None:
    """None: alive and well, or ended as it should. `job_failing`: an exception in flight now counts as its end."""
    words = story.words or (story.fresh_candidate() if job_failing or not story.alive else None)
    if words is not None and _before_us(story, float(words.get("at") or 0.0)) and not story.lingered:
        return _make(story, node, _kind_of_words(words, story), float(words["at"]), words, None)
    if story.early:
        at = story.left_unix or story.over_unix or story.ended_unix
        return _make(story, node, FailureKind.EARLY, at, {}, "exited with code 0 before the other ranks finished")
    if story.alive or story.lingered:
        return None
    kind, message = _kind_of_end(story, why)
    return None if kind is None else _make(story, node, kind, story.ended_unix, {}, message)


def _before_us(story: RankStory, at: float) -> bool:
    return story.signalled_unix is None or at <= story.signalled_unix


def _by_us(story: RankStory) -> bool:
    """Its process ended after a signal of ours: signal and code of that end are ours, not the rank's."""
    return story.signalled_unix is not None and story.ended_at is not None and story.ended_unix >= story.signalled_unix


def _kind_of_words(words: dict[str, Any], story: RankStory) -> FailureKind:
    name = str(words.get("exception") or "")
    if name.endswith(OOM_NAMES) or story.oom:
        return FailureKind.OOM
    return FailureKind.RAISED if name else FailureKind.EXITED


def _kind_of_end(story: RankStory, why: str) -> tuple[FailureKind | None, str | None]:
    if story.exit_code == 0:
        return None, None
    if _by_us(story):
        how = story.signal or ("" if story.exit_code is None else f"code {story.exit_code}")
        return FailureKind.ENDED_BY_US, "ended by zrun" + (f" ({how})" if how else "") + (f": {why}" if why else "")
    if story.oom:
        return FailureKind.OOM, "killed by the kernel: out of memory"
    if story.signal is not None:
        return FailureKind.SIGNALED, f"killed by {story.signal}, not by zrun"
    if story.exit_code is None:
        return FailureKind.EXITED, "ended; its exit status was lost"
    return FailureKind.EXITED, None


def _make(
    story: RankStory, node: str, kind: FailureKind, at: float, words: dict[str, Any], message: str | None
) -> Failure:
    deck = story.deck
    inside = f"{deck.coll_op} #{deck.coll_seq}" if deck is not None and deck.in_collective else None
    batch = str(deck.batch) if deck is not None and deck.batch is not None else None
    phase = None if deck is None else (deck.phase_name or deck.phase.label)
    code, signal = story.exit_code, story.signal
    if _by_us(story):
        code = signal = None
    if kind is FailureKind.EARLY:
        code, signal = 0, None  # also where its process was still about to end
    if code is None and signal is None and words:
        code = words.get("exit_code") or (1 if words.get("exception") else None)
    return Failure(
        rank=story.rank, node=node, kind=kind, at=at, exit_code=code, signal=signal,
        exception=words.get("exception"), message=words.get("message") or message,
        where=words.get("where") or story.where,
        traceback=words.get("traceback"), step=words.get("step") or (deck.step if deck and deck.step else None),
        batch=words.get("batch") or batch, phase=words.get("phase") or phase,
        collective=words.get("collective") or inside, pid=story.pid or None,
        last_lines=shortened(story.last_lines[-50:], LONGEST_LINE),
    )  # fmt: skip
