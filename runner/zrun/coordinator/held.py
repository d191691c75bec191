"""A job as the coordinator holds it: its machine, what that was told, its papers, and what stays in memory alone.

Environment and secret values come from whoever submitted; secrets are never written. Decides nothing.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from zrun.coordinator.clock import MachineClock
from zrun.coordinator.inbox import Told
from zrun.coordinator.journal import Entry
from zrun.coordinator.learning import Learning
from zrun.coordinator.papers import Papers
from zrun.coordinator.scribe import Scribe
from zrun.coordinator.table import Table
from zrun.coordinator.views import Views
from zrun.coordinator.watch import Watch
from zrun.core.durable import write_bytes
from zrun.core.ids import JobId
from zrun.core.redact import Redactor
from zrun.core.runfolder import RunFolder
from zrun.machine.actions import Action, Record
from zrun.machine.events import Command, Submitted
from zrun.machine.job import JobMachine
from zrun.machine.state import Job
from zrun.spec.job import JobSpec, spec_from_dict, spec_to_dict
from zrun.wire.order import JobBrief
from zrun.wire.report import JobReport, NodeReport

ENV_FILE = "env.json"


@dataclass(slots=True)
class Handed:
    """What came with the job beside its spec. `secrets` live here and nowhere else."""

    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)


class HeldJob:
    """`clock_from` is the wall time (Unix s) from which max_duration counts."""

    def __init__(self, entry: Entry, submitted: Submitted, handed: Handed, scribe: Scribe, table: Table,
                 clock: MachineClock) -> None:  # fmt: skip
        self.id = submitted.job
        self.folder = RunFolder(Path(submitted.run_dir))
        self.handed = handed
        self.redactor = Redactor(handed.secrets.values())
        self.machine = JobMachine(JobId(self.id))
        self._submitted = spec_from_dict(submitted.spec)
        self.told = Told()
        self.watch = Watch(Learning(self.folder, scribe, self._submitted))
        self.clock_from = unix(entry.wall)
        self.views = Views(self.machine.job, self.clock_from, table, clock, self.watch)
        self.papers = Papers(self.folder, scribe, self.redactor, self.views.incident, self.views.verdict)

    @property
    def spec(self) -> JobSpec:
        """The job as the machine knows it: a resume may have changed it."""
        return self.machine.job.spec or self._submitted

    @property
    def missing_secrets(self) -> list[str]:
        """Names without a value: this process did not see the submission."""
        return [name for name in self.spec.secrets if name not in self.handed.secrets]

    def take_secrets(self, values: Mapping[str, str]) -> None:
        """Handed in again: kept in memory as the first ones were; the old values stay hidden too."""
        self.handed.secrets.update(values)
        self.redactor.learn(values.values())

    @property
    def state(self) -> Job:
        """What the machine knows; to be read only."""
        return self.machine.job

    def handle(self, entry: Entry, log: Any) -> list[Action]:
        """Let the machine decide. A bug in it costs this decision, is told loudly, and stops no other job."""
        self.told.note(entry.event, entry.at)
        if isinstance(entry.event, Command) and entry.event.what == "resume" and self.state.over:
            self.clock_from = unix(entry.wall)
        before, incidents = self.state.attempt, len(self.state.incidents)
        try:
            actions = self.machine.handle(entry.event, entry.n, entry.at)
        except Exception as error:  # whatever it is: training and the other jobs must go on
            log.exception("the job machine failed", job=self.id, because=str(error), n=entry.n)
            actions = [Record("own-failure", {"error": f"{type(error).__name__}: {error}"}, entry.n)]
        if self.state.attempt != before:
            self.told.forget_before(self.state.attempt)
        if (self.state.attempt, len(self.state.incidents)) != (before, incidents):
            self.views.walls[entry.at] = entry.wall
        return actions


class Notebook:
    """What was handed in with each job, until and while the job is held."""

    def __init__(self) -> None:
        self._handed: dict[str, Handed] = {}
        self._jobs: dict[str, HeldJob] = {}

    def hand(self, job: str, env: dict[str, str], secrets: dict[str, str]) -> None:
        """To be called before the job's Submitted is emitted or replayed."""
        self._handed[job] = Handed(env, secrets)

    def keep_env(self, job: str, run_dir: Path) -> None:
        """For the next life of this process, in ASCII: a value may be no UTF-8. Raises OSError."""
        write_bytes(run_dir / ENV_FILE, (json.dumps(self._handed[job].env, indent=2) + "\n").encode())

    def open(self, entry: Entry, scribe: Scribe, table: Table, clock: MachineClock) -> HeldJob:
        submitted = entry.event
        assert isinstance(submitted, Submitted)  # the caller matched it
        handed = self._handed.get(submitted.job) or Handed(_env_of(Path(submitted.run_dir)))
        held = HeldJob(entry, submitted, handed, scribe, table, clock)
        self._jobs[held.id] = held
        return held

    def brief(self, job: HeldJob) -> JobBrief:
        return JobBrief(
            job.id, str(job.folder.root), spec_to_dict(job.spec), dict(job.handed.env), dict(job.handed.secrets)
        ).parted()

    def redacted(self, report: NodeReport) -> NodeReport:
        """The report without secret values, before anything of it is kept."""
        jobs: dict[str, JobReport] = {}
        for name, said in report.jobs.items():
            held = self._jobs.get(name)
            if held is None or not held.redactor.active:
                jobs[name] = said
                continue
            clean = held.redactor.value
            jobs[name] = msgspec.structs.replace(
                said, failures=clean(said.failures), save_failures=clean(said.save_failures),
                metrics=clean(said.metrics), warnings=clean(said.warnings),
                left_behind=clean(said.left_behind), swept=clean(said.swept),
            )  # fmt: skip
        return msgspec.structs.replace(report, jobs=jobs)


def unix(wall: str) -> float:
    return datetime.fromisoformat(wall).timestamp()


def _env_of(run_dir: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = json.loads((run_dir / ENV_FILE).read_text())
        return {str(k): str(v) for k, v in found.items()}
    return {}
