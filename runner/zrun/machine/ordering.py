"""Limits that stand in each other's way: which one has to be the longer, in words with both numbers. Pure.

A hang is named and ended by zrun only if nothing else ends the job before: the script's own collective timeout is the
usual rival, and what it says names no rank.
"""

from collections.abc import Sequence

from zrun.machine.limits import Limit, in_words
from zrun.spec.job import JobSpec, Watchdog


def against_collectives(watchdog: Watchdog, limits: Sequence[Limit], patience_s: float, timeout_s: float) -> str:
    """`timeout_s`: after which a process group of the script gives a collective up. "": the order is right."""
    if not timeout_s or not watchdog.enabled:
        return ""
    late = [limit for limit in limits if _counts(watchdog, limit) and limit.seconds + patience_s >= timeout_s]
    if not late:
        return ""
    longest = max(late, key=lambda limit: limit.seconds)
    told = "; ".join(f"{limit.name} {in_words(limit.seconds)} ({limit.source})" for limit in late)
    patience = "watchdog.patience" if watchdog.patience_s is not None else "watchdog.patience: auto"
    least = in_words(round(longest.seconds + patience_s + 30.0))
    return (
        f"the script's process groups give a collective up after {in_words(timeout_s)}, before zrun would end a hang: "
        f"{told}, and then {in_words(patience_s)} of patience ({patience}). Such a hang will look like a crash of the "
        f"ranks that wait. In order is: limit + patience < collective timeout; lower watchdog.{longest.name} or "
        f"watchdog.patience, or init_process_group(timeout=timedelta(seconds={least.removesuffix(' s')}))"
    )


def in_job_file(spec: JobSpec) -> list[str]:
    """What the job file alone shows."""
    watchdog, found = spec.watchdog, []
    step, first = watchdog.step_s, watchdog.first_step_s
    if step is not None and first is not None and step > first:
        found.append(f"watchdog.step ({in_words(step)}) is longer than watchdog.first_step ({in_words(first)}), which "
                     f"compiles and allocates besides: in order is step <= first_step")  # fmt: skip
    if step is not None and watchdog.min_step_s > step and watchdog.min_step_s != Watchdog().min_step_s:
        found.append(f"watchdog.min_step ({in_words(watchdog.min_step_s)}) does nothing beside watchdog.step "
                     f"({in_words(step)}), which is stated: leave one of them out")  # fmt: skip
    whole = spec.max_duration_s
    if whole is not None:
        stated = [(f"watchdog.{name}", s) for name, s in _stated(watchdog) if s >= whole]
        found += [f"{name} ({in_words(s)}) is never reached: max_duration ({in_words(whole)}) ends the job before"
                  for name, s in stated]  # fmt: skip
    if spec.stop_grace_s > spec.preempt.grace_s and spec.stop_grace_s != JobSpec("", []).stop_grace_s:
        found.append(f"stop_grace ({in_words(spec.stop_grace_s)}) is longer than preempt.grace "
                     f"({in_words(spec.preempt.grace_s)}): a save that needs more than preempt.grace is lost at a "
                     f"preemption; in order is stop_grace <= preempt.grace")  # fmt: skip
    return found


def _stated(watchdog: Watchdog) -> list[tuple[str, float]]:
    """What somebody wrote into the file; a default that is repeated there counts as not written."""
    usual = Watchdog()
    named = {"setup": (watchdog.setup_s, usual.setup_s), "first_step": (watchdog.first_step_s, usual.first_step_s),
             "step": (watchdog.step_s, None), "eval": (watchdog.eval_s, None), "save": (watchdog.save_s, usual.save_s),
             "patience": (watchdog.patience_s, None)}  # fmt: skip
    found = [(name, given) for name, (given, usually) in named.items() if given is not None and given != usually]
    return found + [(f"phases.{name}", seconds) for name, seconds in watchdog.phases_s.items()]


def _counts(watchdog: Watchdog, limit: Limit) -> bool:
    """Limits of steps once they are known, and others only if somebody stated them: no defaults are complained of."""
    stated = {name.removeprefix("phases.") for name, _ in _stated(watchdog)} - {"setup", "patience"}
    learned = limit.name == "step" and limit.source.startswith(("learned:", "watchdog."))
    return limit.name in stated or learned
