"""One job on this node as a JobReport: the machine's state and what the decks say, nothing added."""

from collections.abc import Iterable

from zrun.agent.attempt import Attempt
from zrun.agent.node_state import NodeState
from zrun.agent.rank_story import RankStory
from zrun.core.deck import Phase
from zrun.core.rows import pack_rows
from zrun.wire.report import JobReport


def job_report(state: NodeState, attempt: Attempt | None, now: float, standbys: list[int]) -> JobReport:
    """`now` is monotonic seconds; `standbys`: memory of each that is ready."""
    record = state.record
    first = record.stories[min(record.stories)].deck if record.stories else None
    rows = attempt.decks.rows(record.stories, now) if attempt is not None else []
    return JobReport(
        doing=state.doing, attempt=record.attempt, seen=state.seen, rows=pack_rows(rows),
        failures=[failure.to_dict() for failure in state.failures()], settled=state.settled,
        checkpoints=record.checkpoints, save_failures=record.save_failures, resumed_step=record.resumed_step,
        resumed_from=record.resumed_from, resumed_tier=record.resumed_tier, skipped=record.skipped,
        collected=state.collected, term_seen=state.term_seen, stopped_at=record.stopped_at, saved_at=record.saved_at,
        total_steps=first.total_steps if first and first.total_steps else record.total_steps,
        metrics=first.metrics if first else {}, warnings=record.warnings, left_behind=state.left_behind,
        swept=state.removed, pruned=record.pruned, phase_names=_phase_names(record.stories.values()),
        master_port=record.port, standings=_standings(state, attempt, now),
        collective_timeout_s=record.collective_timeout_s, standbys=standbys,
    )  # fmt: skip


def _phase_names(stories: Iterable[RankStory]) -> dict[str, str]:
    """Rows have no room for names of a script's own."""
    return {
        str(story.rank): story.deck.phase_name
        for story in stories
        if story.deck is not None and story.deck.phase is Phase.OWN and story.deck.phase_name
    }


def _standings(state: NodeState, attempt: Attempt | None, now: float) -> dict[str, list[list[int]]]:
    found = attempt.decks.standings(state.record.stories, now) if attempt is not None else {}
    return {str(rank): [one.pack() for one in standings] for rank, standings in found.items()}


def essence(state: NodeState) -> tuple[object, ...]:
    """What has to be reported at once when it changes; steps and ages are not of it."""
    record = state.record
    return (
        state.doing, record.attempt, state.seen, state.collected, record.port, state.term_seen, state.settled,
        record.stopped_at, record.saved_at, record.resumed_step,
        len(record.checkpoints) and record.checkpoints[-1].step, len(record.save_failures), len(record.warnings),
        tuple(state.left_behind), len(state.removed),
        tuple((f.rank, f.kind, f.exit_code, f.signal, f.exception) for f in state.failures()),
        all(story.deck is not None and story.deck.completed > 0 for story in record.stories.values()),
    )  # fmt: skip
