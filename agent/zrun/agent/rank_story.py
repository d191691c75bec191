"""What is known of one rank of one attempt: its deck, its notes, its end. Plain data, no decisions about the job."""

from dataclasses import dataclass, field
from typing import Any

from zrun.core.deck import Flag, Phase
from zrun.core.deck_reader import DeckState


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
    ended_at: float | None = None
    ended_unix: float = 0.0
    exit_code: int | None = None
    signal: str | None = None
    last_lines: list[str] = field(default_factory=list)
    oom: bool = False
    """The kernel's counter of out-of-memory kills moved."""
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

    @property
    def alive(self) -> bool:
        return self.ended_at is None

    @property
    def booted(self) -> bool:
        return self.deck is not None and self.deck.pid != 0

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
        note = self.candidate
        if note is None or (self.deck is not None and self.deck.step > int(note.get("step") or 0)):
            return None
        return note
