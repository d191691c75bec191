"""Which share of a job's time went into steps that were kept; knows nothing about why the rest was lost."""

from collections.abc import Sequence

from zrun.machine.state import AttemptRecord, Job


def goodput(job: Job, now: float, completed: int) -> float | None:
    """Between 0 and 1; None before the first step. `completed`: the newest step of the newest attempt, as rows tell.

    Time counts from the submission. Of an attempt counts what lies after its first step, in the proportion in which
    its steps did not have to be done again.
    """
    end = job.ended_at if job.ended_at is not None else now
    whole = end - job.submitted_at
    if whole <= 0 or all(a.started_at is None for a in job.attempts):
        return None
    kept = sum(_kept(job.attempts, index, end, completed) for index in range(len(job.attempts)))
    return round(min(1.0, max(0.0, kept / whole)), 4)


def _kept(attempts: Sequence[AttemptRecord], index: int, end: float, completed: int) -> float:
    attempt = attempts[index]
    if attempt.started_at is None:
        return 0.0
    last = index == len(attempts) - 1
    reached = max(attempt.completed, completed if last else 0)
    seconds = (attempt.ended_at if attempt.ended_at is not None else end) - attempt.started_at
    first = (attempt.first_step or 1) - 1
    done = reached - first
    if last or done <= 0:
        return max(0.0, seconds)
    after = next((a.resumed_step for a in attempts[index + 1 :] if a.resumed_step is not None), reached)
    return max(0.0, seconds) * max(0.0, min(1.0, (after - first) / done))
