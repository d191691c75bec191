"""A verdict in words: one line for the cause, and a reason for each kind of consequence. Decides nothing."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from zrun.core.failure import Failure, FailureKind
from zrun.machine.echo import Weight, loader_gone, short_type, text_of, weigh
from zrun.machine.sameness import OFTEN_SENT_BY_OTHERS

_HEADLINE: Final = 1000
_NATIVE_WORDS: Final = re.compile(r"what\(\): +(\S.*)")
"""What C++ prints of the exception that nobody caught."""


def span(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-3`, `ranks 0, 2-3`."""
    numbers = sorted(set(ranks))
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {text}"


def side_notes(cause: Failure) -> list[str]:
    text = text_of(cause)
    if native := _NATIVE_WORDS.search("\n".join(cause.last_lines)) if cause.signal == "SIGABRT" else None:
        unequal = ["the ranks did not reduce or send equal sizes: the peer it waited with may be the one that is wrong"]
        return [f'it said "{native[1][:240]}"', *(unequal if "collective mismatch" in native[1] else [])]
    if loader_gone(cause):
        return ["one of its DataLoader workers went away without a word: killed, most likely"]
    if "DataLoader worker" in text and ("killed by signal" in text or "exited unexpectedly" in text):
        return ["one of its DataLoader workers died; the rank itself was well"]
    if cause.exit_code is not None and 128 < cause.exit_code < 160 and not cause.exception:
        return [
            f"code {cause.exit_code} is how a shell reports that a child was killed by signal {cause.exit_code - 128}"
        ]
    if cause.kind is FailureKind.SIGNALED and cause.signal in OFTEN_SENT_BY_OTHERS:
        return [f"{cause.signal} was not sent by zrun"]
    return []


def about_disks(cause: Failure) -> list[str]:
    return [f"disk full on {place}" for place in cause.full_disks]


def about_memory(cause: Failure) -> str:
    """Who ended it, what it held and what it may hold."""
    by_kernel = cause.kind is FailureKind.OOM and (not cause.exception or "SIGKILL" in (cause.message or ""))
    by_kernel = by_kernel or "killed by signal: Killed" in (cause.message or "")
    said = "the kernel killed it for memory" if by_kernel else "it ran out of memory"
    if "DataLoader worker" in (cause.message or "") or loader_gone(cause):
        said = "the kernel killed one of its DataLoader workers for memory"
    held = [f"peak {mebibytes(cause.peak_rss_bytes)} resident"] if cause.peak_rss_bytes else []
    held += [f"limit of its cgroup {mebibytes(cause.memory_limit_bytes)}"] if cause.memory_limit_bytes else []
    return f"{said} ({', '.join(held)})" if held else said


def mebibytes(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"


def headline_of(failure: Failure) -> str:
    if failure.kind in {FailureKind.SETUP, FailureKind.LAUNCH} and failure.rank < 0:
        return in_short(f"node {failure.node}: {failure.headline().partition(': ')[2]}")
    if failure.kind is FailureKind.NODE:
        said = in_short(failure.message or "its agent did not keep its ranks alive")
        return said if failure.node in said else f"node {failure.node}: {said}"
    if failure.kind is FailureKind.EARLY:
        step = f" (step {failure.step})" if failure.step else ""
        return f"rank {failure.rank} ended with code 0 before the others{step}"
    if failure.kind is FailureKind.OOM and not failure.exception:
        step = f" (step {failure.step})" if failure.step else ""
        return f"rank {failure.rank}: killed by the kernel, out of memory{step}"
    return in_short(failure.headline())


def span_of_nodes(failures: Iterable[Failure]) -> str:
    """`node b`, `nodes b, c`."""
    names = sorted({failure.node or "" for failure in failures})
    return f"node{'s' if len(names) > 1 else ''} {', '.join(names)}"


def in_short(text: str) -> str:
    """The first line, and not more of it than a person reads."""
    first_line, _, more = text.partition("\n")
    if len(first_line) > _HEADLINE:
        first_line, more = first_line[:_HEADLINE].rstrip(), "more"
    return first_line + (" …" if more else "")


def why_first(cause: Failure, alike: Sequence[Failure], rest: Sequence[Failure]) -> str:
    of_a_node = cause.rank < 0 or cause.kind is FailureKind.NODE
    who = span_of_nodes(alike) if of_a_node else span(f.rank for f in alike)
    what = "failed its ranks" if cause.kind is FailureKind.NODE else what_it_did(cause)
    if not rest:
        return f"{who} {what}" + ("; all alike" if len(alike) > 1 else "; nobody else failed")
    rivals = [f for f in rest if weigh(f) is weigh(cause)]
    if rivals:
        return (
            f"{who} {what}, {min(f.at for f in rivals) - cause.at:.2f} s before the next failure that could be a cause"
        )
    return f"{who} {what}; no other failure could be a cause"


def what_it_did(failure: Failure) -> str:
    match failure.kind:
        case FailureKind.RAISED:
            return f"raised {short_type(failure) or 'an exception'}"
        case FailureKind.EXITED:
            return f"exited with code {failure.exit_code}"
        case FailureKind.SIGNALED:
            return f"was killed by {failure.signal}"
        case FailureKind.EARLY:
            return "ended with code 0 while others went on"
        case FailureKind.OOM:
            return "ran out of memory"
        case FailureKind.SETUP | FailureKind.LAUNCH:
            return "could not be made ready"
        case FailureKind.HUNG:
            return "hung"
        case FailureKind.PREEMPTED:
            return f"was taken away ({failure.message}) by {failure.signal}"
        case FailureKind.NODE:
            return "was ended by its node's keeper"
        case FailureKind.ENDED_BY_US:
            return "was ended by zrun"


def about_followers(rest: Sequence[Failure], since: float | None) -> list[str]:
    """One reason for each kind of consequence, in order of weight."""
    reasons: list[str] = []
    for weight in Weight:
        group = [f for f in rest if weigh(f) is weight]
        if not group:
            continue
        who = span(f.rank for f in group)
        first = min(group, key=lambda f: f.at)
        later = f", {first.at - since:.2f} s later" if since is not None and first.at > since else ""
        match weight:
            case Weight.OURS:
                reasons.append(f"{who}: ended by zrun because of it")
            case Weight.ECHO:
                reasons.append(f"{who}: only a consequence, {_quote(first)}{later}")
            case _:
                reasons.append(f"{who}: {what_it_did(first)}{later}")
    return reasons


def _quote(failure: Failure) -> str:
    lines = [line.strip() for line in text_of(failure).splitlines() if line.strip()]
    said = lines[0] if failure.exception and lines else (lines[-1] if lines else failure.signal or "")
    return f'"{said[:117] + "…" if len(said) > 118 else said}"'
