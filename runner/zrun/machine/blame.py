"""Whose fault it was: the first cause among all the ways in which the ranks of one attempt ended.

Pure and without memory. It knows nothing about budgets, nor about what is done next.
The words of an echo are in echo.py, those of a verdict in wording.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zrun.core.failure import Failure, FailureKind
from zrun.core.states import FaultClass
from zrun.machine.echo import Weight, disk_full, disk_words, out_of_memory, says_disk_full, waited_in_vain, weigh
from zrun.machine.events import Suspected
from zrun.machine.sameness import OFTEN_SENT_BY_OTHERS, blanked, key_of
from zrun.machine.wording import (
    about_disks,
    about_followers,
    about_memory,
    headline_of,
    in_short,
    side_notes,
    span,
    span_of_nodes,
    why_first,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first cause, with reasons a person can check."""

    fault: FaultClass
    rank: int | None
    node: str | None
    failure: Failure | None
    headline: str
    because: tuple[str, ...]
    followed: tuple[int, ...]
    """Ranks that failed only as a consequence."""
    alike: tuple[int, ...]
    """Ranks that ended in the same way as the first cause, that one too."""
    same_as: str
    """Equal for two failures that are the same but for numbers: pids, addresses, steps."""


def blame(
    failures: Sequence[Failure], suspicion: Suspected | None = None, lost_nodes: Sequence[str] = (), *,
    ran_before: bool = False,
) -> Verdict:  # fmt: skip
    """`suspicion`: what the hang judge said of this attempt and did not take back; `ran_before`: the job made steps."""
    ordered = sorted(_newest_of_each(failures), key=lambda f: (weigh(f), f.at, f.rank))
    best = ordered[0] if ordered else None
    proof = best if best is not None and weigh(best) <= Weight.WEAK else None
    if suspicion is not None and not suspicion.cleared and not _explains(proof, suspicion, ordered):
        return _hung(suspicion, ordered)
    if proof is not None:
        return _first(proof, ordered, lost_nodes, ran_before=ran_before)
    if lost_nodes:
        return _node_lost(lost_nodes, ordered)
    if best is None or weigh(best) is Weight.OURS:
        return _no_trace(ordered)
    return _only_echoes(ordered)


def _newest_of_each(failures: Sequence[Failure]) -> list[Failure]:
    """One failure a rank and node: a later entry is better evidence about the same end."""
    return list({(f.rank, f.node): f for f in failures}.values())


def _explains(proof: Failure | None, suspicion: Suspected, failures: Sequence[Failure]) -> bool:
    """Is a failure a better answer than the suspicion?

    An exception under way in the suspect is, unless the script had caught it and stayed with it. So is what a node did
    to its ranks, another rank's own failure when the suspect only left early, and any cause while the suspicion was
    neither proved nor acted on.
    """
    if proof is None or proof.kind is FailureKind.HUNG:
        return False
    if proof.rank in suspicion.ranks and proof.noticed:
        return False
    if proof.kind is FailureKind.NODE or proof.rank in suspicion.ranks:
        return True
    if suspicion.kind == "early-exit" and weigh(proof) is Weight.CAUSE:
        return True
    acted = any(f.rank in suspicion.ranks and f.kind in {FailureKind.HUNG, FailureKind.ENDED_BY_US} for f in failures)
    return not (suspicion.provable or acted)


def _hung(suspicion: Suspected, failures: Sequence[Failure]) -> Verdict:
    ranks = sorted(suspicion.ranks)
    rank = ranks[0] if ranks else None
    own = next((f for f in failures if f.rank == rank), None)
    noticed = f"rank {own.rank} {own.noticed}" if own is not None and own.noticed else ""
    if own is not None and noticed:
        own = replace(own, kind=FailureKind.HUNG, where=suspicion.where or own.where)
    early = suspicion.kind == "early-exit"
    others = [f for f in failures if f.rank not in suspicion.ranks]
    return Verdict(
        fault=FaultClass.CRASH if early else FaultClass.HANG,
        rank=rank,
        node=suspicion.node or (own.node if own else None),
        failure=own,
        headline=suspicion.roll_call,
        because=(*suspicion.because, *filter(None, [noticed]), *about_followers(others, since=None)),
        followed=_ranks(others),
        alike=tuple(ranks),
        same_as=f"{suspicion.kind}|{span(ranks) if ranks else 'nobody'}|{blanked(suspicion.collective or '')}|"
        f"{suspicion.where or ''}",
    )


def _first(cause: Failure, ordered: Sequence[Failure], lost_nodes: Sequence[str], *, ran_before: bool) -> Verdict:
    key = key_of(cause)
    alike = [f for f in ordered if weigh(f) is weigh(cause) and key_of(f) == key]
    rest = [f for f in ordered if f not in alike]
    fault, why = _classify(cause, ran_before=ran_before)
    reasons = [why_first(cause, alike, rest), *why, *about_followers(rest, since=cause.at)]
    if lost_nodes:
        reasons.append(
            f"node {', '.join(lost_nodes)} was lost as well; the failure above was reported, so it comes first"
        )
    headline = headline_of(cause)
    if fault is FaultClass.DISK and not says_disk_full(headline):
        told = disk_words(cause) or next(iter(about_disks(cause)), "")
        headline += f": {in_short(told)}" if told else ""
    if len(alike) > 1 and cause.rank >= 0 and cause.kind is not FailureKind.NODE:
        headline = span(f.rank for f in alike) + headline[len(f"rank {cause.rank}") :]
    if len(alike) > 1 and cause.kind in {FailureKind.SETUP, FailureKind.LAUNCH} and cause.rank < 0:
        headline = span_of_nodes(alike) + headline[len(f"node {cause.node}") :]
    if cause.kind is FailureKind.SIGNALED and cause.signal in OFTEN_SENT_BY_OTHERS and len(alike) == 1:
        key = f"{key}|rank {cause.rank}"
    rank = cause.rank if cause.rank >= 0 and cause.kind is not FailureKind.NODE else None
    together = _ranks(alike) if rank is not None else ()
    return Verdict(fault, rank, cause.node, cause, headline, tuple(reasons), _ranks(rest), together, key)


def _node_lost(lost: Sequence[str], failures: Sequence[Failure]) -> Verdict:
    names = ", ".join(lost)
    first = f"node {names} fell silent and no rank reported a failure of its own"
    return Verdict(
        FaultClass.NODE, None, lost[0], None, f"node {names} was lost",
        (first, *about_followers(failures, since=None)), _ranks(failures), (), f"node lost|{names}",
    )  # fmt: skip


def _only_echoes(ordered: Sequence[Failure]) -> Verdict:
    """Nobody left a cause. Either all waited in vain for a rank that did not come, or a peer went without a trace."""
    echoes = [f for f in ordered if weigh(f) is Weight.ECHO]
    first = echoes[0]
    if not waited_in_vain(first):
        reasons = (
            f"every failure only says that a peer went away; {span([first.rank])} saw it first",
            "the peer itself left neither an exit code nor last words",
            *about_followers([f for f in ordered if f is not first], since=first.at),
        )
        return Verdict(
            FaultClass.CRASH, first.rank, first.node, first, headline_of(first), reasons,
            _ranks(f for f in ordered if f is not first), (first.rank,), key_of(first),
        )  # fmt: skip
    absent = [f for f in ordered if weigh(f) is Weight.OURS and f.collective is None]
    waiting = span(f.rank for f in echoes)
    where = f" in {first.collective}" if first.collective else ""
    if not absent:
        reasons = (f"{waiting} waited{where} until the collective's own time limit; nobody is known to have died",)
        return Verdict(
            FaultClass.HANG, first.rank, first.node, first, headline_of(first), reasons,
            _ranks(f for f in ordered if f is not first), (first.rank,), key_of(first),
        )  # fmt: skip
    culprit = absent[0]
    place = f" ({culprit.where})" if culprit.where else ""
    headline = f"{span(f.rank for f in absent)} not there{place}: {waiting} waited{where} until its own time limit"
    reasons = (
        f"{waiting} gave up waiting{where}",
        f"{span(f.rank for f in absent)} was alive and in no collective until zrun ended it",
    )
    rest = [f for f in ordered if f not in absent]
    return Verdict(
        FaultClass.HANG,
        culprit.rank,
        culprit.node,
        culprit,
        headline,
        reasons,
        _ranks(rest),
        _ranks(absent),
        f"not-arrived|{culprit.rank}",
    )


def _no_trace(failures: Sequence[Failure]) -> Verdict:
    return Verdict(
        FaultClass.CRASH, None, None, None, "the attempt ended without a trace of why",
        ("no rank left a failure of its own", *about_followers(failures, since=None)),
        _ranks(failures), (), "no trace",
    )  # fmt: skip


def _classify(cause: Failure, *, ran_before: bool) -> tuple[FaultClass, list[str]]:
    match cause.kind:
        case FailureKind.SETUP:
            return FaultClass.SETUP, ["the job's setup command failed, before any rank existed"]
        case FailureKind.LAUNCH if not ran_before:
            return FaultClass.SETUP, ["the ranks could not be started"]
        case FailureKind.LAUNCH:
            fault = FaultClass.DISK if disk_full(cause) else FaultClass.CRASH
            return fault, ["the ranks could not be started, but an earlier attempt has run here"]
        case FailureKind.HUNG:
            return FaultClass.HANG, []
        case FailureKind.NODE:
            return FaultClass.NODE, ["its ranks were well until then: the node failed them"]
        case FailureKind.PREEMPTED:
            return FaultClass.PREEMPTION, [f"a notice on node {cause.node} said so: {in_short(cause.message or '')}"]
        case FailureKind.EARLY:
            return FaultClass.CRASH, ["a rank that leaves early leaves the others waiting for it, whatever its code"]
        case _:
            pass
    if out_of_memory(cause):
        return FaultClass.OOM, [about_memory(cause)]
    if disk_full(cause):
        return FaultClass.DISK, about_disks(cause) or ["a disk or a quota is full"]
    return FaultClass.CRASH, [*side_notes(cause), *about_disks(cause)]


def _ranks(failures: Iterable[Failure]) -> tuple[int, ...]:
    return tuple(sorted({f.rank for f in failures if f.rank >= 0}))
