"""One event being handled: what the parts of the job machine do their work with.

A turn changes the job and collects actions. It knows the table of legal moves, nothing about why a part wants one.
"""

from collections import deque
from typing import Any

from zrun.core.states import FaultClass
from zrun.machine.actions import Action, CloseIncident, Finish, OpenIncident, Record, UpdateIncident
from zrun.machine.moves import MOVES, IllegalMove, Stage
from zrun.machine.state import Incident, Job
from zrun.spec.job import JobSpec


class Turn:
    """`now` is machine time in seconds, `number` the event's number in the journal."""

    def __init__(self, job: Job, number: int, now: float, story: deque[str]) -> None:
        self.job = job
        self.number = number
        self.now = now
        self.actions: list[Action] = []
        self._story = story

    @property
    def spec(self) -> JobSpec:
        """Only asked for after Submitted."""
        if self.job.spec is None:
            raise AssertionError("no job was submitted")
        return self.job.spec

    def move(self, stage: Stage, reason: str) -> None:
        """Raises IllegalMove, with the story so far, for a move the table does not hold."""
        if stage not in MOVES[self.job.stage]:
            raise IllegalMove(self.job.stage, stage, list(self._story))
        self._story.append(f"  {self.job.stage} -> {stage}: {reason}")
        self.job.stage = stage
        self.job.reason = reason

    def say(self, reason: str) -> None:
        """The stage stays, its reason changes."""
        self.job.reason = reason

    def record(self, what: str, /, **fields: Any) -> None:
        self.actions.append(Record(what, fields, self.number))

    def wake_at(self, name: str, at: float) -> None:
        self.job.timers[name] = at

    def wake_in(self, name: str, seconds: float) -> None:
        self.job.timers[name] = self.now + seconds

    def forget(self, *names: str) -> None:
        for name in names:
            self.job.timers.pop(name, None)

    def open_incident(self, fault: FaultClass, headline: str, *, suspicion: bool = False) -> Incident:
        """An incident still open is closed first: what it waited for did not come."""
        before = self.job.open_incident
        number = len(self.job.incidents) + 1
        if before is not None:
            self.close_incident(f"attempt {self.job.attempt} did not get going either: see incident {number}")
        incident = Incident(number, self.job.attempt, fault, self.now, headline, suspicion=suspicion)
        self.job.incidents.append(incident)
        self.actions.append(OpenIncident(number, incident.attempt, fault, headline, suspicion, self.number))
        return incident

    def update_incident(self, incident: Incident) -> None:
        self.actions.append(UpdateIncident(incident.number, self.number))

    def close_incident(self, resolution: str) -> Incident | None:
        """Closes the open one, if there is one."""
        incident = self.job.open_incident
        if incident is not None:
            incident.resolution = resolution
            incident.closed_at = self.now
            self.actions.append(CloseIncident(incident.number, resolution, self.number))
        return incident

    def finish(self, stage: Stage, reason: str) -> None:
        """The job is over; `timed_out` is taken from the job. What could not be ended is said to the end."""
        reason = "; ".join([reason, *self.job.stuck])
        self.move(stage, reason)
        self.close_incident(f"the job ended {stage.upper()}: {reason}")
        self.job.timers.clear()
        self.job.wish = None
        self.job.ended_at = self.now
        self.actions.append(Finish(self.job.state, reason, self.job.timed_out, self.number))
