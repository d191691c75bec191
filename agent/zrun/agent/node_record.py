"""What is known of one attempt on one node: its plan, its ranks' stories, how far starting and ending have come."""

from dataclasses import dataclass, field
from typing import Any, Final

from zrun.agent.node_events import RankExited
from zrun.agent.rank_story import RankStory
from zrun.agent.stop_step import StopAsk
from zrun.core.deck import Flag, StopKind
from zrun.core.failure import Failure
from zrun.core.notes import NoteKind
from zrun.wire.order import Ending, LaunchPlan
from zrun.wire.report import CheckpointInfo

CHECKPOINTS_TOLD: Final = 8
PRUNED_TOLD: Final = 64
WARNINGS_TOLD: Final = 20


@dataclass(slots=True)
class AttemptRecord:
    """Times are machine time (monotonic seconds)."""

    attempt: int = 0
    plan: LaunchPlan | None = None
    stories: dict[int, RankStory] = field(default_factory=dict)
    """Of every rank that this launch is to have, from the launch on."""
    setup_running: bool = False
    setup_until: float | None = None
    """None: without limit, or already told to end."""
    folder_asked: bool = False
    folder_shared: bool = False
    """checkpoint.dir is the same folder here as on the first node; not asked if there is no other node."""
    launches: int = 0
    torchrun: bool = False
    """Ordered to be started, and not known to have ended."""
    port: int = 0
    """Where the store of this attempt listens, if it does so here and for other nodes, too."""
    relaunching: bool = False
    """What was started for a port that is no longer the store's is ended first."""
    lost_launch: Failure | None = None
    """A launch that cannot talk to the store; a failure at `lost_until`, unless the store moves."""
    lost_until: float = 0.0
    node_failure: Failure | None = None
    """Of the launch or the set-up, not of a rank."""
    cut_off: str = ""
    """Why this node ended the attempt by itself."""
    notice: str = ""
    """What somebody outside said of why ranks die here."""
    failed_at: float | None = None
    ending: Ending | None = None
    ending_since: float = 0.0
    ending_until: float = 0.0
    termed_at: float | None = None
    kill_at: float = 0.0
    killing: bool = False
    swept: bool = False
    lingering_asked: bool = False
    lingering_seen: bool = False
    ask: StopAsk | None = None
    recorder_asked: bool = False
    sequence: int = 0
    saving: bool = False
    saved_at: int | None = None
    resumed_step: int | None = None
    resumed_from: str | None = None
    resumed_tier: str = ""
    skipped: list[dict[str, str]] = field(default_factory=list)
    total_steps: int = 0
    checkpoints: list[CheckpointInfo] = field(default_factory=list)
    pruned: list[int] = field(default_factory=list)
    save_failures: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    collective_timeout_s: float = 0.0
    running_since: float | None = None
    hold_until: float | None = None
    """Ranks were asked for their state; until then they may begin to copy it."""

    def story(self, rank: int) -> RankStory:
        return self.stories.setdefault(rank, RankStory(rank))

    @property
    def living(self) -> list[RankStory]:
        """Ranks with a process."""
        return [story for story in self.stories.values() if story.alive and story.pid]

    @property
    def all_seen(self) -> bool:
        return bool(self.stories) and all(story.pid or not story.alive for story in self.stories.values())

    @property
    def all_booted(self) -> bool:
        return bool(self.stories) and all(story.booted for story in self.stories.values())

    @property
    def all_ended(self) -> bool:
        """Also if torchrun ended before it had started every rank."""
        if not self.launches or self.living or self.relaunching or self.lost_launch is not None:
            return False
        return not self.torchrun or (bool(self.stories) and all(not s.alive for s in self.stories.values()))

    @property
    def stopped_at(self) -> int | None:
        """The common step at which every rank obeyed a stop request."""
        steps = {story.stopped_at for story in self.stories.values()}
        return steps.pop() if len(steps) == 1 else None

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings = [*self.warnings, text][-WARNINGS_TOLD:]

    def rank_exited(self, event: RankExited, now: float) -> None:
        story = self.story(event.rank)
        if not story.alive or story.pid != event.pid:
            return  # of an earlier launch
        story.ended_at, story.ended_unix = now, event.unix
        story.exit_code, story.signal, story.oom = event.exit_code, event.signal, event.oom
        story.last_lines, story.notice = event.last_lines, self.notice
        story.after, story.where = event.after, event.after.where or story.where
        if event.signal and Flag.FINISHED in story.flags and story.signalled_unix is None and not event.oom:
            # C++ libraries may abort while the interpreter is taken down; the script's work was done by then.
            story.lingered = True
            self.warn(
                f"rank {event.rank}: {event.signal} in the interpreter's teardown, after its script had ended well"
            )

    def take_notice(self, text: str) -> None:
        """It speaks of the ranks that die of somebody else's signal, before and after it."""
        self.notice = text
        for story in self.stories.values():
            story.notice = text

    def take_note(self, rank: int, note: dict[str, Any], now: float) -> None:
        """Unknown kinds are left to a later version."""
        story = self.story(rank)
        match note.get("kind"):
            case NoteKind.LAST_WORDS:
                story.take_words(note)
            case NoteKind.LEAVING if story.candidate is not None and story.leaving_at is None:
                story.leaving_at, story.catching = now, False
            case NoteKind.CAUGHT:
                story.leaving_at, story.catching = None, True
            case NoteKind.HANDLED:
                story.handled()
            case NoteKind.THREAD_ENDED:
                story.thread = note
            case NoteKind.SESSION:
                self._take_session(note)
            case NoteKind.CHECKPOINT:
                self._take_checkpoint(note)
            case NoteKind.SAVE_FAILED:
                kept = {key: note.get(key) for key in ("step", "error", "path", "disk_full")}
                self.save_failures = [*self.save_failures, {**kept, "rank": rank}][-WARNINGS_TOLD:]
            case NoteKind.FINISHED if not note.get("exit_code"):
                story.over_unix = float(note["at"])
            case NoteKind.HOLDS | NoteKind.HOLDING | NoteKind.HELD:
                story.take_hold(note)
            case NoteKind.STOPPED_AT:
                story.stopped_at = int(note["step"])
            case NoteKind.GROUP:
                story.groups.add(int(note.get("code") or 0))
                self._take_timeout(float(note.get("timeout_s") or 0.0))
            case NoteKind.WARNING:
                self.warn(f"rank {rank}: {note.get('message')}")

    def _take_timeout(self, seconds: float) -> None:
        """Of a process group: the shortest one counts."""
        if seconds > 0.0:
            self.collective_timeout_s = min(seconds, self.collective_timeout_s or seconds)

    def _take_session(self, note: dict[str, Any]) -> None:
        if self.resumed_step is None:
            self.resumed_step = int(note.get("resumed_step") or 0)
            self.resumed_from, self.resumed_tier = note.get("checkpoint"), str(note.get("tier") or "")
            self.skipped = [{"path": str(s.get("path")), "reason": str(s.get("reason"))}
                            for s in note.get("skipped") or []]  # fmt: skip
        self.total_steps = int(note.get("total_steps") or self.total_steps)

    def _take_checkpoint(self, note: dict[str, Any]) -> None:
        step = int(note["step"])
        saved = CheckpointInfo(
            step=step, batch=str(note.get("batch") or ""), path=str(note.get("path") or ""),
            bytes=int(note.get("bytes") or 0), seconds=float(note.get("seconds") or 0.0),
        )  # fmt: skip
        gone = [int(old) for old in note.get("pruned") or [] if int(old) != step]
        self.pruned = [*(old for old in self.pruned if old != step and old not in gone), *gone][-PRUNED_TOLD:]
        here = [info for info in self.checkpoints if info.step != step and info.step not in gone]
        self.checkpoints = [*here, saved][-CHECKPOINTS_TOLD:]
        if self.ask is not None and self.ask.kind == StopKind.SAVE and self.ask.step == step:
            self.saved_at, self.saving = step, False
