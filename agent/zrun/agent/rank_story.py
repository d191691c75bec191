"""What is known of one rank of one attempt: its deck, its notes, its end. Plain data, no decisions about the job."""

from dataclasses import dataclass, field
from typing import Any, Final

from zrun.core.deck import Flag, Phase
from zrun.core.deck_reader import DeckState
from zrun.core.notes import NoteKind

STILL_S: Final = 0.75
"""The watcher thread of a rank looks around ten times as often."""


@dataclass(frozen=True, slots=True)
class PostMortem:
    """What was found when its process was over."""

    peak_rss_bytes: int = 0
    memory_limit_bytes: int = 0
    """Of its cgroup, 0 = none."""
    full_disks: tuple[str, ...] = ()
    """Places without room, in words."""
    stack: str = ""
    """What faulthandler wrote at the signal it died of."""
    where: str | None = None
    """The user's own line in that."""


NOTHING_FOUND: Final = PostMortem()


@dataclass(slots=True)
class RankStory:
    """Times named `_at` are machine time (monotonic seconds), `_unix` wall clock for people and for ordering."""

    rank: int
    pid: int = 0
    deck: DeckState | None = None
    words: dict[str, Any] | None = None
    """The final last-words note."""
    candidate: dict[str, Any] | None = None
    """An exception seen in flight; may still be handled by the script."""
    leaving_at: float | None = None
    """When it was first said that the candidate will certainly leave the script."""
    catching: bool = False
    """The candidate is in an except clause, which may go on from there."""
    caught: dict[str, Any] | None = None
    """The last words of an exception that was then handled."""
    thread: dict[str, Any] | None = None
    """The exception that ended another thread than its main one."""
    groups: set[int] = field(default_factory=set)
    """The process groups it is a member of."""
    told_end: bool = False
    """Its own log says how it ended."""
    ended_at: float | None = None
    ended_unix: float = 0.0
    exit_code: int | None = None
    signal: str | None = None
    last_lines: list[str] = field(default_factory=list)
    oom: bool = False
    """The kernel killed it for want of memory."""
    after: PostMortem = NOTHING_FOUND
    notice: str = ""
    """What somebody outside said of why it was killed."""
    signalled_unix: float | None = None
    """When we first sent it a signal that ends; what it does later is a consequence."""
    where: str | None = None
    """The user's own line in its newest stack, if one was taken."""
    early: bool = False
    """It left with code 0 while others needed it."""
    over_unix: float | None = None
    """When its script ended with code 0; its process may take a while longer."""
    lingered: bool = False
    """Its script was over, its process was not; ended by us, and no failure."""
    finished_at: float | None = None
    stopped_at: int | None = None
    holds: bool = False
    """It can be asked for its state."""
    holding_bytes: int = 0
    """So many it is copying into memory."""
    held: dict[str, Any] | None = None
    """What it answered: a step, or a problem."""

    @property
    def alive(self) -> bool:
        return self.ended_at is None

    @property
    def booted(self) -> bool:
        return self.deck is not None and self.deck.pid != 0

    @property
    def spoken(self) -> dict[str, Any] | None:
        """The exception that is ending it, as it told it."""
        return self.words or (None if self.catching else self.fresh_candidate())

    def answers(self, now: float) -> bool:
        """Did its watcher thread have the interpreter just now? Else nothing that is asked of it comes."""
        return self.alive and self.deck is not None and self.deck.beat_at >= now - STILL_S

    @property
    def flags(self) -> Flag:
        return self.deck.flags if self.deck else Flag(0)

    @property
    def phase(self) -> Phase:
        return self.deck.phase if self.deck else Phase.BOOT

    @property
    def finished(self) -> bool:
        """Ended by itself with code 0, or so nearly that only its process is left."""
        return self.lingered or (self.ended_at is not None and self.exit_code == 0 and not self.early)

    @property
    def left_unix(self) -> float | None:
        """When it left the others with code 0; None: it did not."""
        if self.ended_at is not None and self.exit_code != 0:
            return None
        return self.over_unix if self.ended_at is None else min(self.ended_unix, self.over_unix or self.ended_unix)

    def fresh_candidate(self) -> dict[str, Any] | None:
        """The exception in flight, unless the rank has begun a later step since: then it was handled."""
        return self.of_this_step(self.candidate)

    def of_this_step(self, note: dict[str, Any] | None) -> dict[str, Any] | None:
        """None: the rank has begun a later step since."""
        if note is None or (self.deck is not None and self.deck.step > int(note.get("step") or 0)):
            return None
        return note

    def take_words(self, note: dict[str, Any]) -> None:
        """Final words stay; what is said later of the same exception keeps its first moment."""
        if note.get("final"):
            if self.words is None or not self.words.get("final"):
                self.words = note
            return
        if self.candidate is None or self.candidate.get("at") != note.get("at"):
            self.leaving_at, self.catching = None, False
        self.candidate = note

    def take_hold(self, note: dict[str, Any]) -> None:
        kind = note["kind"]
        if kind == NoteKind.HELD:
            self.held = note
        elif kind == NoteKind.HOLDING:
            self.holding_bytes = int(note.get("bytes") or 0)
        else:
            self.holds = True

    def handled(self) -> None:
        """The exception in flight was caught."""
        self.caught, self.candidate, self.leaving_at, self.catching = self.candidate, None, None, False
