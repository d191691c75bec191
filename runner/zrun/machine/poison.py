"""Is a batch to blame? The same batch on the same rank, in a step before its optimizer step, often enough.

If the failure then moves on to another batch before the step of the skipped one is done, it was the code after all.
Knows nothing about budgets.
"""

from dataclasses import dataclass
from typing import Final

from zrun.core.errors import BadLossError
from zrun.core.failure import Failure, FailureKind
from zrun.machine.blame import Verdict
from zrun.machine.state import AttemptRecord, Job

_BAD_LOSS: Final = f"{BadLossError.__module__}.{BadLossError.__qualname__}"
"""As a rank's last words name it."""


@dataclass(frozen=True, slots=True)
class Poison:
    """`batch` is to be skipped from now on; `lift` are the ones that were skipped wrongly."""

    reason: str
    batch: str | None = None
    lift: tuple[str, ...] = ()


def judge(job: Job, attempt: AttemptRecord, verdict: Verdict) -> Poison | None:
    """None: the batch is not the question. Only reads."""
    failure, spec = verdict.failure, job.spec
    bad_loss = failure is not None and failure.exception == _BAD_LOSS
    if bad_loss and spec is not None and spec.data.on_bad_loss == "stop":
        return Poison("data.on_bad_loss is stop")
    if failure is None or spec is None or not in_a_step(job, attempt, failure):
        return None
    if failure.batch in job.quarantined:
        return None
    spent = job.spent
    if spent.poison_frame == frame_of(failure) and not _went_past_it(job, failure):
        reason = (
            f"it is the code, not the data: the same failure ({frame_of(failure)}) came on {failure.batch} after "
            f"{', '.join(job.quarantined)} was skipped; the quarantine is lifted"
        )
        return Poison(reason, lift=tuple(job.quarantined))
    after = spec.data.quarantine_after
    strikes = spent.batch_strikes.get(strike_key(failure), 0) + 1
    if not bad_loss and (after == 0 or strikes < after):
        return None
    what = f"batch {failure.batch} ended {strikes} attempts on rank {failure.rank}"
    if bad_loss:
        what = f"batch {failure.batch} gave a bad loss (data.on_bad_loss)"
    if len(job.quarantined) >= spec.data.max_quarantined:
        return Poison(f"{what}, but {len(job.quarantined)} batches are quarantined already (data.max_quarantined)")
    return Poison(f"{what}: it is skipped from now on", batch=failure.batch)


def in_a_step(job: Job, attempt: AttemptRecord, failure: Failure) -> bool:
    """An exception inside a step whose optimizer step was not done; failures in eval, save and set-up never count."""
    if failure.kind is not FailureKind.RAISED or not failure.batch or not failure.step:
        return False
    if failure.phase not in {"step", "first_step"}:
        return False
    node = job.nodes.get(failure.node)
    done = node.step if node is not None and node.attempt == attempt.number else attempt.completed
    return done < failure.step


def _went_past_it(job: Job, failure: Failure) -> bool:
    """Was the step of the quarantined batch done since, with another batch? Its number stays when a batch is skipped.

    A rank that fails in a later step has done it; so has any attempt since that was known to be beyond it.
    """
    step, since = job.spent.poison_step, job.spent.poison_attempt
    return (failure.step or 0) > step or any(a.number > since and a.completed >= step for a in job.attempts)


def strike_key(failure: Failure) -> str:
    return f"{failure.batch}@{failure.rank}"


def frame_of(failure: Failure) -> str:
    return f"{failure.exception} at {failure.where}"
