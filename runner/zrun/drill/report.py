"""What a drill has found, for a person in about ten lines and as one JSON value for programs. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from zrun.drill.compare import NOT_LOOKED_AT, Compared
from zrun.drill.outcome import Outcome
from zrun.drill.runs import Ran

HEAD: Final = ("fault", "named", "back", "lost", "resumed from", "told as")
_TOLD: Final = 90
Span = Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class Report:
    """`problems` empty: passed. `overrides`: what was set that the job file does not say."""

    folder: Path
    calm: Ran
    disturbed: Ran
    outcomes: Sequence[Outcome]
    compared: Compared
    problems: Sequence[str]
    overrides: Sequence[str]
    left_out_from: int | None
    """The step from which on a poisoned batch was left out."""

    @property
    def passed(self) -> bool:
        return not self.problems


def heading(report: Report, span: Span) -> list[str]:
    calm, disturbed = report.calm, report.disturbed
    first = f"{calm.traced.last_step} steps on {calm.traced.world_size} ranks, undisturbed {span(calm.seconds)}"
    lines = [f"{first}, disturbed {span(disturbed.seconds)}; {report.folder}"]
    if report.overrides:
        lines.append(f"for this drill: {', '.join(report.overrides)} (so that the checkpoint is read, and not memory)")
    return lines


def rows(report: Report) -> list[list[str]]:
    """Under HEAD."""
    return [
        [
            str(one.fault), _seconds(one.detected_s), _seconds(one.recovered_s),
            "-" if one.steps_lost is None else str(one.steps_lost), _resumed(one),
            _cut(one.told or (f"NOT SURVIVED: {one.problem}" if one.problem else "-")),
        ]
        for one in report.outcomes
    ]  # fmt: skip


def below(report: Report) -> list[str]:
    """Whether the runs are equal, then the verdict and what stands against it."""
    compared = report.compared
    lines = [" · ".join(f"{what} {outcome}" for what, outcome in compared.outcome.items()) + _counts(compared)]
    reasons: dict[str, list[str]] = {}
    for what, why in compared.why_not.items():
        reasons.setdefault(why, []).append(what)
    if NOT_LOOKED_AT in compared.outcome.values() and compared.why_not:
        lines += [f"{', '.join(whats)} not looked at: {why}" for why, whats in reasons.items()]
    if report.left_out_from is not None:
        lines.append(
            f"the poisoned batch is left out, as it should be: from step {report.left_out_from} on the runs train on "
            f"other batches, and exactness is claimed only before it"
        )
    if compared.others:
        lines.append(f"not counted, for they are no losses: {', '.join(compared.others)} differ")
    if report.passed:
        return [*lines, "PASSED: every fault was survived" if report.outcomes else "PASSED: the script repeats itself"]
    lines += ["NOT PASSED", *(f"  {text}" for text in report.problems)]
    if hint := _hint(report):
        lines.append(f"  {hint}")
    return [*lines, f"  what was printed: {report.disturbed.log}"]


def _hint(report: Report) -> str:
    first = report.compared.first
    if first is None or not report.outcomes:
        return ""
    if all(not one.came or first.step < int(one.came["step"]) for one in report.outcomes):
        return "that is before the first fault: the script does not do the same twice (`--fault none` shows it alone)"
    return "`--fault none` tells whether two undisturbed runs are equal"


def _counts(compared: Compared) -> str:
    again = f", {compared.again} times a rank did one again" if compared.again else ""
    return f"  ({compared.steps} steps{again})"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}s" if value < 10 else f"{value:.0f}s"


def _resumed(one: Outcome) -> str:
    if one.resumed_from is None:
        return "-"
    return f"{one.resumed_from['tier']}, step {one.resumed_from['step']}"


def _cut(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _TOLD else flat[: _TOLD - 1] + "…"


def as_json(report: Report) -> dict[str, Any]:
    compared = report.compared
    return {
        "passed": report.passed,
        "problems": list(report.problems),
        "folder": str(report.folder),
        "overrides": list(report.overrides),
        "runs": {ran.name: _run(ran) for ran in (report.calm, report.disturbed)},
        "faults": [_fault(one) for one in report.outcomes],
        "equal": {
            **compared.outcome,
            "why_not": compared.why_not,
            "steps": compared.steps,
            "again": compared.again,
            "first_difference": asdict(compared.first) if compared.first is not None else None,
            "other_metrics_differ": list(compared.others),
            "left_out_from": report.left_out_from,
        },
    }


def _run(ran: Ran) -> dict[str, Any]:
    return {
        "state": ran.state, "reason": ran.verdict.get("reason"), "exit_code": ran.code,
        "seconds": round(ran.seconds, 3), "steps": ran.traced.last_step, "ranks": ran.traced.world_size,
        "attempts": len(ran.verdict.get("attempts") or []), "log": str(ran.log),
        "run": str(ran.run.root) if ran.run is not None else None,
    }  # fmt: skip


def _fault(one: Outcome) -> dict[str, Any]:
    fault = one.fault
    return {
        "kind": fault.kind.name, "rank": fault.rank, "step": fault.step, "came": one.came or None,
        "survived": not one.problem, "problem": one.problem or None, "told": one.told or None,
        "detected_s": None if one.detected_s is None else round(one.detected_s, 3),
        "recovered_s": None if one.recovered_s is None else round(one.recovered_s, 3),
        "steps_lost": one.steps_lost, "resumed_from": one.resumed_from,
        "incidents": [i["id"] for i in one.incidents],
        "said_by_the_job": [{k: i.get(k) for k in ("class", "rank", "detected_s", "recovered_s", "steps_lost")}
                            for i in one.incidents],
    }  # fmt: skip
