"""The hang judge: looks at the newest row of every rank and says whom the job waits for.

It sees rows alone, never output, stacks or processes, and decides nothing: its words enter the machine as events.
Slow is not hung: two signs have to agree, no progress past the phase's limit and one more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from zrun.core.deck import Phase
from zrun.core.rows import RankRow, RowFlag
from zrun.core.standing import Standing
from zrun.machine.events import Suspected, Suspended
from zrun.machine.limits import WARM_UP, Learned, Limit, Limits, in_words
from zrun.machine.roll_call import IDLE_CPU, Seen, Sides, call_the_roll, collective_of, details, take_sides
from zrun.machine.signs import LIKELY, PROVED, confidence_of, kind_of, narrowed, second_signs
from zrun.machine.wording import span
from zrun.spec.job import Watchdog

STOPPED_S: Final = 0.5
"""On the agent's own virtual clock: a stop this long, while others run, is no accident of scheduling."""
NODE_STOPPED_S: Final = 2.5
"""The same where all ranks of a node are stopped: a scheduler suspends node after node."""
EXIT_WINDOW_S: Final = 5.0
STALE_S: Final = 2.5
"""A row older than this says nothing about now: its node may be silent, which is not a hang."""
_BACK_S: Final = 1.5
"""After a suspend, until all reports are new."""
_ALONE: Final = 1.5
"""Times the limit, if an unchanged step is the only second sign."""
_BUSY_S: Final = 3.0
"""A suspect whose files moved so long ago at most is busy: reports come once a second, reading has its pauses."""
_SLOW: Final = 3.0
"""Times the limit, in which others wait for a rank that still moves."""
_SLOW_S: Final = 10.0
"""At least so long."""
_OUTSIDE_STEPS: Final = {Phase.EVAL, Phase.SAVE, Phase.OWN}


@dataclass(slots=True)
class _Memory:
    """What one rank showed at the last look."""

    step: int = 0
    first: int = 0
    phase: Phase = Phase.BOOT
    phase_age_s: float = 0.0
    quiet_s: float = 0.0
    stopped: bool = False
    runs_since: float = -math.inf
    finished_at: float = math.inf
    files_moved_at: float = -math.inf
    own_phase: str = ""


@dataclass(frozen=True, slots=True)
class _Finding:
    said: Suspected
    culprits: frozenset[int]
    quiet_s: Mapping[int, float]
    """Of each culprit, when it was said."""

    def sharper_than(self, other: "_Finding") -> bool:
        return (self.said.provable and not other.said.provable) or self.culprits < other.culprits

    def changes(self, other: "_Finding") -> bool:
        """The same suspects, who have become busy or idle, or stand still now and were slow before."""
        same = self.culprits == other.culprits and self.said.provable is other.said.provable
        slowed = (self.said.kind == "slow") is not (other.said.kind == "slow")
        return same and (self.said.busy is not other.said.busy or slowed)


class HangJudge:
    """One for each attempt. Says each thing once, and takes it back when the suspects move again."""

    def __init__(self, watchdog: Watchdog, attempt: int, learned: Learned | None = None) -> None:
        self.limits = Limits(watchdog, learned)
        self._enabled = watchdog.enabled
        self._attempt = attempt
        self._ranks: dict[int, _Memory] = {}
        self._standing: _Finding | None = None
        self._said_at = 0.0
        self._suspended = False
        self._resumed_at = -math.inf

    def learned(self) -> Learned:
        """For the judge of the next attempt."""
        return self.limits.learned()

    @property
    def standing(self) -> Suspected | None:
        """What was said last and not taken back."""
        return self._standing.said if self._standing else None

    def look(
        self,
        rows: Mapping[int, RankRow],
        now: float,
        report_age: Mapping[int, float],
        nodes: Mapping[int, str],
        resumed_step: int | None = None,
        phase_names: Mapping[int, str] | None = None,
        standings: Mapping[int, Sequence[Standing]] | None = None,
    ) -> list[Suspected | Suspended]:
        """`rows`: the newest of every rank of the attempt, all of them; `report_age`: seconds since each came.

        `resumed_step`: the completed step the attempt began from, None while unknown. `phase_names`: of ranks in a
        phase of the script's own. `standings`: of ranks that stand still, on each of their groups.
        """
        if not rows or any(report_age.get(rank, 0.0) > STALE_S for rank in rows):
            return []
        if any(row.flags & (RowFlag.FAILED | RowFlag.LAST_WORDS) for row in rows.values()):
            return []  # a rank has ended or is about to: the others wait for a reason that is already being told
        self._note_runs(rows, now)
        names, standing = phase_names or {}, standings or {}
        running = [row for _, row in sorted(rows.items()) if not _over(row)]
        self._learn(running, resumed_step, names)
        seen = [
            self._see(row, nodes.get(row.rank, ""), names.get(row.rank, ""), standing.get(row.rank, ()), now)
            for row in running
        ]
        events = self._suspend(seen, now)
        if self._suspended:
            return events
        if self._enabled:
            finding = self._stopped(seen, now) or self._left_early(rows, seen, nodes, now)
            if finding is None and not (len(seen) < len(rows) and any(s.inside for s in seen)):
                finding = self._still(seen, now)  # one that has left is asked about first
            events += self._say(finding, {s.rank: s for s in seen}, now)
        return events

    def _note_runs(self, rows: Mapping[int, RankRow], now: float) -> None:
        for rank, row in rows.items():
            memory = self._ranks.setdefault(rank, _Memory())
            if memory.stopped and row.state != "T":
                memory.runs_since = now
            memory.stopped = row.state == "T"
            if RowFlag.IO_MOVING in row.flags:
                memory.files_moved_at = now
            if _over(row):
                memory.finished_at = min(memory.finished_at, now)

    def _learn(self, rows: Sequence[RankRow], resumed_step: int | None, names: Mapping[int, str]) -> None:
        """From the slowest rank of this look; what was a pause is no step time."""
        longest, index = 0.0, 0
        for row in rows:
            memory = self._ranks[row.rank]
            if row.step and not memory.first:
                exact = resumed_step is not None or RowFlag.SESSION not in row.flags
                memory.first = min(row.step, (resumed_step or 0) + 1) if exact else row.step
            if row.step > memory.step and row.step > memory.first:
                index = max(index, row.step - memory.first)
                longest = max(longest, row.step_s)
                if memory.phase is Phase.STEP and self._standing is None:
                    longest = max(longest, memory.quiet_s)
            own = names.get(row.rank, "")
            if (row.phase, own) != (memory.phase, memory.own_phase) and memory.phase in _OUTSIDE_STEPS:
                # its last report may be a beat old
                self.limits.saw_phase(memory.phase, memory.phase_age_s + 1.0, memory.own_phase)
            memory.step, memory.phase, memory.phase_age_s, memory.own_phase = row.step, row.phase, row.phase_age_s, own
        if longest > 0:
            self.limits.saw_step(longest, index)

    def _see(self, row: RankRow, node: str, own_phase: str, standings: Sequence[Standing], now: float) -> Seen:
        memory = self._ranks[row.rank]
        quiet = row.age_s
        if RowFlag.RECORDER in row.flags and row.coll_seq:
            quiet = min(quiet, row.coll_age_s)
        memory.quiet_s = min(quiet, now - memory.runs_since)
        warm = row.step < memory.first + WARM_UP
        return Seen(row, node, memory.quiet_s, self.limits.of(row.phase, warm, own_phase), own_phase, standings)

    def _suspend(self, seen: Sequence[Seen], now: float) -> list[Suspected | Suspended]:
        events: list[Suspected | Suspended] = []
        alive = [s for s in seen if RowFlag.ALIVE in s.row.flags]
        all_stopped = bool(alive) and all(s.row.state == "T" and s.row.stopped_s >= STOPPED_S for s in alive)
        if all_stopped and not self._suspended:
            self._suspended = True
            if self._standing is not None:
                events.append(self._take_back(now))
            events.append(Suspended(self._attempt, stopped=True))
        elif self._suspended and any(s.row.state != "T" for s in alive):
            self._suspended, self._resumed_at = False, now
            for memory in self._ranks.values():
                memory.runs_since = now
            events.append(Suspended(self._attempt, stopped=False))
        return events

    def _stopped(self, seen: Sequence[Seen], now: float) -> _Finding | None:
        """Some ranks are in state T while another runs: proof."""
        if now - self._resumed_at < _BACK_S:
            return None
        running_nodes = {s.node for s in seen if s.row.state != "T"}
        stopped = [
            s for s in seen
            if s.row.state == "T" and (
                (s.row.stopped_s >= STOPPED_S and (RowFlag.NODE_OTHERS_RUN in s.row.flags or s.node in running_nodes))
                or (s.row.stopped_s >= NODE_STOPPED_S and running_nodes)
            )
        ]  # fmt: skip
        if not stopped:
            return None
        rest = [s for s in seen if s not in stopped]
        frozen = {s.node for s in stopped} - running_nodes
        whole = frozen == {s.node for s in stopped} and len({s.node for s in seen}) > 1
        sides = Sides("node-frozen" if whole else "stopped", stopped, rest)
        waiting = [s for s in rest if s.inside]
        place = collective_of(sides) if waiting else None
        others = f"; {len(waiting)} of {len(seen)} ranks in {place}" if place else ""
        who = (
            f"node {', '.join(sorted(frozen))} is frozen: all its ranks ({span(s.rank for s in stopped)})"
            if whole
            else ""
        )
        text = f"{who or span(s.rank for s in stopped)} stopped by a signal{details(stopped)}{others}"
        longest = max(s.row.stopped_s for s in stopped)
        return self._finding(sides, text, place, provable=True, because=[
            f"in state T for {longest:.1f} s while other ranks run",
            "a stopped process takes no part in anything until it is continued",
        ])  # fmt: skip

    def _left_early(
        self, rows: Mapping[int, RankRow], seen: Sequence[Seen], nodes: Mapping[int, str], now: float
    ) -> _Finding | None:
        """A rank ended by itself with code 0, all others are in a collective and stay there: proof."""
        left = [row for row in rows.values() if _over(row)]
        if not left or not seen or not all(s.inside for s in seen):
            return None
        leaving = all(s.row.phase in {Phase.EXIT, Phase.DONE} for s in seen)
        window = max(EXIT_WINDOW_S, self.limits.of(Phase.EXIT).seconds) if leaving else EXIT_WINDOW_S
        since = now - max(self._ranks[row.rank].finished_at for row in left)
        if since < window or min(min(s.quiet_s, s.row.coll_age_s) for s in seen) < window:
            return None
        gone = [Seen(row, nodes.get(row.rank, ""), since, Limit("exit", window, "exit window")) for row in left]
        sides = Sides("early-exit", gone, seen)
        place = collective_of(sides)
        text = (
            f"{span(s.rank for s in gone)} ended with code 0 before the others{details(gone)}; "
            f"{len(seen)} of {len(rows)} ranks in {place}"
        )
        return self._finding(sides, text, place, provable=True, because=[
            f"{span(s.rank for s in gone)} ended by itself {since:.1f} s ago",
            f"{span(s.rank for s in seen)} has been in {place} for more than {window:.0f} s and cannot leave it alone",
        ])  # fmt: skip

    def _still(self, seen: Sequence[Seen], now: float) -> _Finding | None:
        """Nothing has moved for too long: no proof, but a name."""
        alive = [s for s in seen if s.row.state != "T"]
        if not any(s.over for s in alive) or len(alive) < len(seen):
            return None
        sides = narrowed(take_sides(seen))
        culprits = sides.culprits
        limit = max((s.limit for s in culprits), key=lambda limit: limit.seconds)
        quiet = min(s.quiet_s for s in culprits)
        if quiet < limit.seconds:
            return self._slow(sides, limit, len(seen))
        signs = second_signs(sides, limit)
        if not signs:
            if not all(s.row.step for s in culprits) or quiet < _ALONE * limit.seconds:
                return None
            signs = [f"step {culprits[0].row.step} unchanged"]
        because = [
            f"no progress for {quiet:.1f} s; the limit of this phase is {in_words(limit.seconds)} ({limit.source})"
        ]
        if not all(s.recorded for s in seen):
            because.append("collectives are not recorded for this script: only steps and ages are known")
        provable = sides.certain and all(s.row.cpu < IDLE_CPU for s in culprits)
        confidence = confidence_of(sides, seen, signs, provable=provable)
        reading = [s.rank for s in culprits if now - self._ranks[s.rank].files_moved_at < _BUSY_S]
        if reading:
            signs.append(f"{span(reading)} reads or writes files")
        working = [s.rank for s in culprits if RowFlag.AT_WORK in s.row.flags]
        if working:
            signs.append(f"{span(working)} saves or compiles, as its stack says")
        return self._finding(
            sides, call_the_roll(sides, len(seen)), collective_of(sides), provable=provable,
            because=because + signs, busy=bool(reading or working), confidence=confidence,
        )  # fmt: skip

    def _slow(self, sides: Sides, limit: Limit, total: int) -> _Finding | None:
        """They move, and others have waited for them for very long all the same: named, and never ended for it."""
        culprits = sides.culprits
        waited = min((s.quiet_s for s in sides.waiting), default=0.0)
        in_steps = all(s.row.phase is Phase.STEP for s in [*culprits, *sides.waiting])
        if sides.kind not in {"not-arrived", "behind"} or not in_steps or waited < max(_SLOW_S, _SLOW * limit.seconds):
            return None
        text = (
            f"{span(s.rank for s in sides.waiting)} of {total} ranks have waited {waited:.1f} s in "
            f"{collective_of(sides)}; {span(s.rank for s in culprits)} moves, but does not come{details(culprits)}"
        )
        sides = Sides("slow", culprits, sides.waiting)
        return self._finding(sides, text, collective_of(sides), provable=False, confidence=LIKELY, because=[
            f"{span(s.rank for s in culprits)} showed progress {min(s.quiet_s for s in culprits):.1f} s ago",
            "slow is not hung: it is not ended for this",
        ], busy=True)  # fmt: skip

    def _finding(self, sides: Sides, text: str, place: str | None, *, provable: bool, because: list[str],
                 busy: bool = False, confidence: str = PROVED) -> _Finding:  # fmt: skip
        first = sides.culprits[0]
        ranks = [s.rank for s in sides.culprits]
        said = Suspected(
            attempt=self._attempt, ranks=ranks, kind=kind_of(sides), provable=provable, roll_call=text, because=because,
            step=first.row.step or None, batch=str(first.row.batch) if first.row.batch else None, collective=place,
            node=first.node or None, blind_s=min(s.quiet_s for s in [*sides.culprits, *sides.waiting]), busy=busy,
            confidence=confidence,
        )  # fmt: skip
        return _Finding(said, frozenset(ranks), {s.rank: s.quiet_s for s in sides.culprits})

    def _say(self, finding: _Finding | None, seen: Mapping[int, Seen], now: float) -> list[Suspected | Suspended]:
        events: list[Suspected | Suspended] = []
        if self._standing is not None and self._moved(self._standing, seen):
            events.append(self._take_back(now))
        before = self._standing
        if finding is not None and (before is None or finding.sharper_than(before) or finding.changes(before)):
            self._standing, self._said_at = finding, now
            events.append(finding.said)
        return events

    def _moved(self, standing: _Finding, seen: Mapping[int, Seen]) -> bool:
        """Some suspect shows progress (or is continued, or those that waited for one that left are free again)."""
        if standing.said.kind == "early-exit":
            return any(not s.inside or s.quiet_s < EXIT_WINDOW_S for s in seen.values())
        suspects = [seen[rank] for rank in standing.culprits if rank in seen]
        if standing.said.kind in {"stopped", "node-frozen"}:
            return any(s.row.state != "T" for s in suspects)
        if standing.said.kind == "slow":
            return any(s.quiet_s < _SLOW_S for rank, s in seen.items() if rank not in standing.culprits)
        return any(s.quiet_s < standing.quiet_s[s.rank] and s.row.state != "T" for s in suspects)

    def _take_back(self, now: float) -> Suspected:
        assert self._standing is not None
        said, self._standing = self._standing.said, None
        pause = said.blind_s + (now - self._said_at)
        if said.kind not in {"stopped", "node-frozen", "early-exit", "slow"}:
            self.limits.saw_pause(pause)
        return Suspected(
            attempt=self._attempt, ranks=said.ranks, kind=said.kind, provable=False,
            roll_call=f"{span(said.ranks)} moved again after {pause:.1f} s", because=["progress was seen"],
            step=said.step, batch=said.batch, collective=said.collective, node=said.node, cleared=True, blind_s=pause,
        )  # fmt: skip


def _over(row: RankRow) -> bool:
    """Its script has ended well. A process that stays all the same is its agent's to end, and no hang."""
    return RowFlag.FINISHED in row.flags or row.phase is Phase.DONE
