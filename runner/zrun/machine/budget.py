"""After a fault: another attempt or the end? Each answer comes with its reason in words.

`decide` only reads; `charge` writes down what was decided. Knows nothing about processes, nodes or orders.
"""

import re
from dataclasses import dataclass
from typing import Final

from zrun.core.failure import Failure, FailureKind
from zrun.core.states import FaultClass
from zrun.machine.blame import Verdict
from zrun.machine.echo import Weight, weigh
from zrun.machine.poison import Poison, judge
from zrun.machine.rules import first_match
from zrun.machine.sameness import OFTEN_SENT_BY_OTHERS
from zrun.machine.state import AttemptRecord, Incident, Job
from zrun.spec.job import DEFAULT_BACKOFF, Backoff, Restart

TYPOS: Final = frozenset({
    "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError", "NameError",
    "FileNotFoundError",
})  # fmt: skip
"""What a script that cannot work raises before its first step; FileNotFoundError only from the bootstrap."""
_NO_WAY_BACK: Final = re.compile(
    r"does not fit|none is valid|none valid|another (run|job)|there is no checkpoint in", re.IGNORECASE
)
"""What restoring says of checkpoints that are whole but not this job's, or of which no one is whole."""
_ALLOWABLE: Final = re.compile(r"--allow-changed ([^\s,;]+)")
UNCOUNTED: Final = frozenset({FaultClass.NODE, FaultClass.PREEMPTION, FaultClass.MEMBERSHIP})
"""Accidents around the job: they say nothing about whether it can work."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`charged` is the class whose budget pays; `quarantine` the batch to skip from now on."""

    restart: bool
    reason: str
    backoff_s: float = 0.0
    charged: FaultClass | None = None
    quarantine: str | None = None
    lift: tuple[str, ...] = ()


def decide(job: Job, attempt: AttemptRecord, incident: Incident) -> Decision:
    """The incident has its verdict; the attempt is over on every node."""
    verdict, spec = incident.verdict, job.spec
    if verdict is None or spec is None:
        raise AssertionError("no decision without a verdict")
    if spec.restart.policy == "never":
        return Decision(restart=False, reason="restart.policy is never")
    if incident.suspected is not None and verdict.fault is FaultClass.HANG and spec.watchdog.on_hang == "stop":
        return Decision(restart=False, reason="watchdog.on_hang is stop")
    rule = first_match(spec.restart.rules, verdict)
    if rule is not None and rule.do == "fail":
        return Decision(restart=False, reason=f"restart.rules say fail for {rule.what}")
    if rule is None:
        poison = judge(job, attempt, verdict)
        if poison is not None:
            return _poisoned(job, poison)
        hopeless = _hopeless(job, attempt, incident, verdict)
        if hopeless:
            return Decision(restart=False, reason=hopeless)
    return _afford(job, attempt, verdict.fault, f"restart.rules say restart for {rule.what}; " if rule else "")


def charge(job: Job, attempt: AttemptRecord, verdict: Verdict, decision: Decision) -> None:
    """Write down what the decision costs."""
    spent = job.spent
    spent.same_as = verdict.same_as
    if verdict.fault not in UNCOUNTED:
        went_on = progressed(attempt) or decision.quarantine is not None
        spent.without_progress = 0 if went_on else spent.without_progress + 1
    if decision.charged is not None:
        spent.by_class[decision.charged] = spent.by_class.get(decision.charged, 0) + 1
        if limit_of(job, decision.charged) is not None:
            spent.restarts += 1


def limit_of(job: Job, fault: FaultClass) -> int | None:
    """None: unlimited. A class without a budget of its own takes crash's."""
    budgets = job.spec.restart.budgets if job.spec is not None else Restart().budgets
    limit: int | None = getattr(budgets, fault.value, budgets.crash)
    return limit


def left(job: Job) -> dict[str, int]:
    """What is left of each limited budget, for eyes."""
    answer: dict[str, int] = {}
    for fault in FaultClass:
        limit = limit_of(job, fault)
        if limit is not None and fault is not FaultClass.SETUP:
            answer[fault.value] = max(0, limit - job.spent.by_class.get(fault, 0))
    return answer


def progressed(attempt: AttemptRecord) -> bool:
    """Did it go beyond every attempt before it?"""
    return attempt.completed > attempt.best_before


def _hopeless(job: Job, attempt: AttemptRecord, incident: Incident, verdict: Verdict) -> str:
    """Why another attempt would end the same way; empty if it might not."""
    if verdict.fault is FaultClass.SETUP:
        return "not retried: nothing ran yet, and the same commands would fail again"
    failure = verdict.failure
    if failure is not None and _not_restorable(failure):
        return f"not retried: {failure.message}; {_way_out(job, failure)}"
    if _never_began(job, attempt):
        if failure is not None and _is_typo(failure):
            return f"not retried: {_name(failure)} before the first step is the script's own"
        if failure is not None and _raised_by_all(job, attempt, incident, failure):
            return "not retried: every rank failed in the same way before the first step"
    if progressed(attempt) or verdict.fault in UNCOUNTED:
        return ""
    if verdict.same_as == job.spent.same_as and not _may_be_chance(verdict.failure):
        return f"deterministic: the same failure twice without progress between ({verdict.headline})"
    allowed = job.spec.restart.max_without_progress if job.spec is not None else 0
    if job.spent.without_progress + 1 > allowed:
        return f"{job.spent.without_progress + 1} attempts in a row without progress (max_without_progress {allowed})"
    return ""


def _never_began(job: Job, attempt: AttemptRecord) -> bool:
    return job.best_step == 0 and attempt.completed == 0 and all(a.started_at is None for a in job.attempts)


def _may_be_chance(failure: Failure | None) -> bool:
    """Signals come from outside, and an echo says nothing about its cause: twice the same proves nothing."""
    if failure is None:
        return False
    sent = failure.kind is FailureKind.SIGNALED and failure.signal in OFTEN_SENT_BY_OTHERS
    return sent or weigh(failure) is Weight.ECHO


def _is_typo(failure: Failure) -> bool:
    name = _name(failure)
    if failure.step or name not in TYPOS or failure.phase not in {None, "boot", "setup"}:
        return False
    return name != "FileNotFoundError" or failure.phase == "boot"


def _not_restorable(failure: Failure) -> bool:
    """The checkpoints there are cannot be gone on from, and the next attempt would find the same ones."""
    return _name(failure) == "CheckpointError" and bool(_NO_WAY_BACK.search(failure.message or ""))


def _way_out(job: Job, failure: Failure) -> str:
    told = "\n".join([failure.message or "", failure.traceback or "", *failure.last_lines])
    keys = sorted(set(_ALLOWABLE.findall(told))) or ["KEY"]
    if "does not fit" in (failure.message or ""):
        options = " ".join(f"--allow-changed {key}" for key in keys)
        return f"if the change is meant, zrun resume {options} {job.job}"
    return "name another checkpoint with checkpoint.resume, or begin anew with zrun launch --fresh"


def _raised_by_all(job: Job, attempt: AttemptRecord, incident: Incident, failure: Failure) -> bool:
    """The same end of the script itself on every rank, before any step."""
    if failure.kind not in {FailureKind.RAISED, FailureKind.EXITED} or failure.step:
        return False
    if failure.phase not in {None, "boot", "setup"}:
        return False
    nproc = job.spec.nproc_per_node if job.spec is not None else 0
    world = nproc * len(attempt.seats) if isinstance(nproc, int) else attempt.world
    same = {f.rank for f in incident.failures if _end_of(f) == _end_of(failure)}
    return world is not None and len(same) >= world


def _end_of(failure: Failure) -> tuple[str | None, str | None, int | None]:
    return failure.exception, failure.where, failure.exit_code


def _name(failure: Failure) -> str:
    return (failure.exception or "").rpartition(".")[2]


def _poisoned(job: Job, poison: Poison) -> Decision:
    if poison.lift or not poison.batch:
        return Decision(restart=False, reason=poison.reason, lift=poison.lift)
    spent, limit = job.spent.by_class.get(FaultClass.POISON, 0), limit_of(job, FaultClass.POISON)
    if limit is not None and spent >= limit:
        return Decision(restart=False, reason=f"{poison.reason}, but the poison budget of {limit} is spent")
    return Decision(restart=True, reason=poison.reason, charged=FaultClass.POISON, quarantine=poison.batch)


def _afford(job: Job, attempt: AttemptRecord, fault: FaultClass, said: str) -> Decision:
    spec, limit = job.spec, limit_of(job, fault)
    restart = spec.restart if spec is not None else Restart()
    used = job.spent.by_class.get(fault, 0)
    if limit is None:
        return Decision(True, f"{said}{fault} restarts are unlimited", _backoff(job, attempt, restart, fault), fault)
    if used >= limit:
        return Decision(restart=False, reason=f"the {fault} budget of {limit} is spent without progress")
    if job.spent.restarts >= restart.max_restarts:
        return Decision(restart=False, reason=f"max_restarts of {restart.max_restarts} is spent without progress")
    wait = _backoff(job, attempt, restart, fault)
    words = f"{said}{fault} restart {used + 1} of {limit}" + (f" in {wait:g} s" if wait else "")
    return Decision(True, words, wait, fault)


def _backoff(job: Job, attempt: AttemptRecord, restart: Restart, fault: FaultClass) -> float:
    """Nothing after progress; else doubled with each failure in a row, from min to max."""
    if progressed(attempt):
        return 0.0
    wait: Backoff = restart.backoff.get(fault) or restart.backoff.get("crash") or DEFAULT_BACKOFF["crash"]
    doubled = wait.min_s * 2.0 ** min(job.spent.without_progress, 30)
    return min(wait.max_s, doubled)
