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
    words = story.words or (story.fresh_candidate() if job_failing or not story.alive else None) or _of_thread(story)
    if words is not None and _before_us(story, float(words.get("at") or 0.0)) and not story.lingered:
        return _make(story, node, _kind_of_words(words, story), float(words["at"]), words, None)
    if story.early:
        at = story.left_unix or story.over_unix or story.ended_unix
        return _make(story, node, FailureKind.EARLY, at, {}, "exited with code 0 before the other ranks finished")
    if story.alive or story.lingered:
        return None
    kind, message = _kind_of_end(story, why)
    return None if kind is None else _make(story, node, kind, story.ended_unix, {}, message)


def _of_thread(story: RankStory) -> dict[str, Any] | None:
    """What ended a thread, where the process then gave itself up: a signal from outside is a cause of its own."""
    gave_up = not story.alive and not ended_by_us(story) and (story.exit_code or story.signal == "SIGABRT")
    note = story.of_this_step(story.thread) if gave_up else None
    return None if note is None else {**note, "exit_code": None}


def _noticed(story: RankStory, words: dict[str, Any]) -> str | None:
    """Why it may have stood still: an exception it still handles or has caught, or that ended one of its threads."""
    if words:
        return _told("was still handling", words) if story.catching and words is story.candidate else None
    if (note := story.of_this_step(story.thread)) is not None:
        return _told(f"had lost its thread {note.get('thread') or 'without a name'} to", note)
    note = story.of_this_step(story.caught)
    return None if note is None else _told("had caught", note)


def _told(how: str, note: dict[str, Any]) -> str:
    what = ": ".join(str(note[key]) for key in ("exception", "message") if note.get(key)) or "an exit"
    return f"{how} {what}" + (f" ({note['where']})" if note.get("where") else "")


def _before_us(story: RankStory, at: float) -> bool:
    return story.signalled_unix is None or at <= story.signalled_unix


def ended_by_us(story: RankStory) -> bool:
    """Its process ended after a signal of ours: signal and code of that end are ours, not the rank's."""
    return story.signalled_unix is not None and story.ended_at is not None and story.ended_unix >= story.signalled_unix


def _kind_of_words(words: dict[str, Any], story: RankStory) -> FailureKind:
    name = str(words.get("exception") or "")
    if name.endswith(OOM_NAMES) or story.oom or words.get("oom"):
        return FailureKind.OOM
    return FailureKind.RAISED if name else FailureKind.EXITED


def _kind_of_end(story: RankStory, why: str) -> tuple[FailureKind | None, str | None]:
    if story.exit_code == 0:
        return None, None
    if ended_by_us(story):
        how = story.signal or ("" if story.exit_code is None else f"code {story.exit_code}")
        return FailureKind.ENDED_BY_US, "ended by zrun" + (f" ({how})" if how else "") + (f": {why}" if why else "")
    if story.oom:
        whom = "" if story.signal else "a process of its own was "
        return FailureKind.OOM, f"{whom}killed by the kernel: out of memory"
    if story.signal is not None and story.notice:
        return FailureKind.PREEMPTED, story.notice
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
    if ended_by_us(story):
        code = signal = None
    if kind is FailureKind.EARLY:
        code, signal = 0, None  # also where its process was still about to end
    if code is None and signal is None and words:
        code = words.get("exit_code") or (1 if words.get("exception") else None)
    noticed = _noticed(story, words)
    return Failure(
        rank=story.rank, node=node, kind=kind, at=at, exit_code=code, signal=signal,
        exception=words.get("exception"), message=words.get("message") or message,
        where=(story.where if noticed else None) or words.get("where") or story.where,
        traceback=words.get("traceback") or story.after.stack or None,
        step=words.get("step") or (deck.step if deck and deck.step else None),
        batch=words.get("batch") or batch, phase=words.get("phase") or phase,
        collective=words.get("collective") or inside, pid=story.pid or None,
        noticed=noticed, last_lines=shortened(story.last_lines[-50:], LONGEST_LINE),
        peak_rss_bytes=story.after.peak_rss_bytes or None, memory_limit_bytes=story.after.memory_limit_bytes or None,
        full_disks=list(words.get("full_disks") or story.after.full_disks),
    )  # fmt: skip
