"""What became of each fault: was it noticed as what it was, how long did it take, what did it cost, does anything speak
against "survived".

Pure: it reads two runs that are over. Times of recovery and steps lost are counted from the ranks' own traces, not from
what the job says of itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from zrun.core.states import FaultClass, JobState
from zrun.drill.compare import Compared
from zrun.drill.faults import Placed
from zrun.drill.runs import Ran

_TOLD_AFTER: Final = 55
"""Steps of a slow rank after which it must have been told."""
_FINISHED: Final = "finished"
_NEVER_CAME: Final = {
    "poison": "no batch of that number was read (a poisoned batch needs a Loader)",
    "disk-full": "no save was requested at or after that step, or that rank had nothing to write",
    "corrupt-checkpoint": "no checkpoint of that step or a later one was committed",
}


@dataclass(slots=True)
class Outcome:
    """`problem`: why this fault was not survived; empty if it was. Times from the fault on."""

    fault: Placed
    came: dict[str, Any]
    incidents: list[dict[str, Any]] = field(default_factory=list)
    detected_s: float | None = None
    recovered_s: float | None = None
    steps_lost: int | None = None
    resumed_from: dict[str, Any] | None = None
    told: str = ""
    problem: str = ""


def outcomes(faults: Sequence[Placed], ran: Ran) -> list[Outcome]:
    """In the order in which they came."""
    found = [Outcome(one, ran.came.get(one.number, {})) for one in faults]
    found.sort(key=lambda one: float(one.came.get("at") or 1e18))
    taken: set[int] = set()
    for one in found:
        if not one.came:
            one.problem = f"it never came: {_NEVER_CAME.get(one.fault.kind.name, 'the job ended before')}"
            continue
        one.incidents = _incidents_of(one, ran, taken)
        taken |= {int(incident["id"]) for incident in one.incidents}
        _judge(one, ran)
    return found


def problems(calm: Ran, ran: Ran, found: Sequence[Outcome], compared: Compared) -> list[str]:
    """Everything for which the drill is not passed."""
    told: list[str] = []
    if ran.too_long:
        told.append(f"the disturbed run was not over after {ran.seconds:.0f}s (undisturbed {calm.seconds:.0f}s)")
    elif ran.state != JobState.SUCCEEDED:
        told.append(f"the disturbed run is {ran.state}: {ran.verdict.get('reason') or f'exit code {ran.code}'}")
    told += [f"{one.fault}: {one.problem}" for one in found if one.problem]
    explained = {int(incident["id"]) for one in found for incident in one.incidents}
    told += [
        f"incident {one['id']}, which no fault explains: {one['headline']}"
        for one in _incidents(ran)
        if int(one["id"]) not in explained and not one["suspicion"]
    ]
    if compared.first is not None:
        told.append(f"first difference: {compared.first}")
    return told


def left_out_from(found: Sequence[Outcome]) -> int | None:
    """The first step from which on the samples must differ, because a poisoned batch was left out."""
    return min((one.fault.step for one in found if one.fault.kind.name == "poison" and one.came), default=None)


def _incidents(ran: Ran) -> list[dict[str, Any]]:
    return list(ran.verdict.get("incidents") or [])


def _incidents_of(one: Outcome, ran: Ran, taken: set[int]) -> list[dict[str, Any]]:
    """What the job made of this fault: the incident of its attempt; of a poisoned batch all that name it."""
    left = [incident for incident in _incidents(ran) if int(incident["id"]) not in taken]
    if batch := one.came.get("batch"):
        return [incident for incident in left if incident.get("batch") == batch]
    here = [incident for incident in left if incident.get("attempt") == one.came["attempt"]]
    if not one.fault.kind.classes:
        return [i for i in here if one.fault.kind.name == "preempt" and i["class"] == FaultClass.PREEMPTION]
    here.sort(key=lambda incident: (bool(incident["suspicion"]), int(incident["id"])))
    return here[:1]


def _judge(one: Outcome, ran: Ran) -> None:
    kind = one.fault.kind
    if kind.name in _BESIDE:
        one.steps_lost = 0
        _BESIDE[kind.name](one, ran)
        return
    if kind.classes and not one.incidents:
        one.problem = "nothing was noticed of it"
    elif kind.classes:
        _as_named(one)
    _afterwards(one, ran)


def _as_named(one: Outcome) -> None:
    incident, fault = one.incidents[0], one.fault
    one.told = str(incident["headline"])
    one.detected_s = incident.get("detected_s")
    if one.detected_s is None and incident.get("at"):
        one.detected_s = max(0.0, datetime.fromisoformat(incident["at"]).timestamp() - float(one.came["at"]))
    wrong = [i["class"] for i in one.incidents if i["class"] not in fault.kind.classes]
    blamed = {incident.get("rank"), *(incident.get("ranks") or [])}
    if incident["suspicion"] and "hang" not in fault.kind.classes:
        one.problem = f"it was only suspected: {one.told}"
    elif wrong:
        one.problem = f"told as {wrong[0]}, and not as {fault.kind.classes[0]}: {one.told}"
    elif fault.rank is not None and fault.rank not in blamed:
        one.problem = f"another rank was blamed: {one.told}"


def _afterwards(one: Outcome, ran: Ran) -> None:
    """The attempt after the last one that this fault ended."""
    ended = [int(incident["attempt"]) for incident in one.incidents] or [int(one.came["attempt"])]
    following = max(ended) + 1
    record: dict[str, Any] = next((a for a in ran.verdict.get("attempts") or [] if a["attempt"] == following), {})
    one.resumed_from = record.get("resumed_from")
    first = ran.traced.first_step(following)
    if first is None and record.get("outcome") == _FINISHED:  # it came when all was done but the last save
        one.steps_lost, one.told = 0, one.told or f"attempt {following} had no step left to make"
        return
    if first is None:
        one.problem = one.problem or "no step was made after it"
        return
    one.recovered_s = max(0.0, first.at - float(one.came["at"]))
    if ran.traced.session:  # else each attempt may count its steps from 1
        one.steps_lost = sum(_lost(ran, attempt) for attempt in ended)
    if not one.told:
        ended_as = next((a.get("outcome") for a in ran.verdict.get("attempts") or [] if a["attempt"] == ended[-1]), "")
        one.told = f"attempt {ended[-1]} {ended_as or 'ended'}, attempt {following} went on"
    damaged = one.came.get("checkpoint")
    if damaged is not None and (one.resumed_from or {}).get("step") == damaged:
        one.problem = one.problem or f"the damaged checkpoint of step {damaged} was taken"


def _lost(ran: Ran, attempt: int) -> int:
    """Steps that every rank had completed in that attempt and that the next one did again."""
    first = ran.traced.first_step(attempt + 1)
    return max(0, ran.traced.done_by_all(attempt) - (first.step - 1)) if first is not None else 0


def _coordinator_killed(one: Outcome, ran: Ran) -> None:
    after = [s for s in ran.traced.steps if s.at > float(one.came["at"]) and s.attempt == one.came["attempt"]]
    one.told = f"training went on in attempt {one.came['attempt']}"
    if not after:
        one.told, one.problem = "", "no step was made after it in that attempt"


def _slow(one: Outcome, ran: Ran) -> None:
    rank, attempt = one.fault.rank, one.came["attempt"]
    told = next((str(e.get("text")) for e in _remarks(ran, "straggler") if rank in e.get("ranks", ())), "")
    after = [s for s in ran.traced.steps if s.rank == rank and s.attempt == attempt and s.step >= int(one.came["step"])]
    if told:
        one.told = told
    elif len(after) >= _TOLD_AFTER:
        one.problem = f"it was slow for {len(after)} steps and was never told as a straggler"
    else:
        one.told = f"too short to tell ({len(after)} steps)"


def _disk_full(one: Outcome, ran: Ran) -> None:
    failed = [e for e in ran.events if e.get("decision") == "save-failed" and e.get("attempt") == one.came["attempt"]]
    if failed:
        one.told = f"save of step {failed[0].get('step')} failed: {failed[0].get('error')}"
    else:
        one.problem = "nobody told of the save that failed"


_BESIDE: Final = {"coordinator-kill": _coordinator_killed, "slow": _slow, "disk-full": _disk_full}
"""Faults beside which training goes on."""


def _remarks(ran: Ran, what: str) -> Iterator[dict[str, Any]]:
    return (event for event in ran.events if event.get("remark") == what)
