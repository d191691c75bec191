"""What people and programs may ask of a job: journaled first, answered after.

Checks that the wish makes sense now; what it leads to is the machine's decision. Knows no HTTP.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from zrun.coordinator.fleet import Fleet
from zrun.coordinator.held import HeldJob
from zrun.core.durable import write_json
from zrun.core.errors import UsageError
from zrun.core.ids import JOB_ID
from zrun.core.private import make_folder
from zrun.core.runfolder import RunFolder
from zrun.machine.events import Command, Submitted
from zrun.spec.job import JobSpec, spec_from_dict, spec_to_dict

FOR_FINAL: Final = frozenset({"resume"})
"""Every other command is for a job that is not over."""
_ENV_NAME: Final = re.compile(r"[^=\0]+")


class ConflictError(UsageError):
    """Right in itself, but not in the state the job is in."""


@dataclass(slots=True)
class Wanted:
    """A job to be run, as it came in."""

    spec: dict[str, Any]
    run_dir: str
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    fresh: bool = False


class Commands:
    """Embedded, one job is served: nothing else is taken in, and a final one is resumed by a new launch."""

    def __init__(self, fleet: Fleet, *, embedded: bool) -> None:
        self.fleet = fleet
        self.embedded = embedded

    async def tell(self, job: HeldJob, what: str, who: str, *, within_s: float | None = None,
                   options: dict[str, Any] | None = None, secrets: Mapping[str, str] | None = None) -> int:  # fmt: skip
        """The number of the journaled event. Raises ConflictError, UsageError.

        `secrets`: values for a job that goes on; one that is live takes those it lacks, for its next attempt.
        """
        if what in FOR_FINAL and not job.state.over and set(secrets or ()) & set(job.missing_secrets):
            return await self._complete(job, secrets or {})
        if job.state.over and (what not in FOR_FINAL or self.embedded):
            raise ConflictError(f"{job.id} is {job.state.state}: {job.state.reason}", f"zrun resume {job.id}")
        if not job.state.over and what in FOR_FINAL:
            raise ConflictError(f"{job.id} is {job.state.state}", f"zrun restart {job.id} begins a new attempt")
        spec = _understood(options["spec"]) if options and "spec" in options else job.spec
        if what in FOR_FINAL:
            given = _fitting(secrets or {}, spec)
            _nothing_missing(spec, {**job.handed.secrets, **given})
            job.take_secrets(given)
        n = self.fleet.emit(job.id, Command(what, who, within_s, options or {}))
        await self.fleet.until_committed(n)
        return n

    async def _complete(self, job: HeldJob, secrets: Mapping[str, str]) -> int:
        """Values that this process does not have (it was started again) go on to the agents of a live job."""
        job.take_secrets(_fitting(secrets, job.spec))
        for node, link in list(self.fleet.links.items()):
            link.briefed.discard(job.id)
            self.fleet.send_order(node)
        return self.fleet.committed_n

    async def submit(self, wanted: Wanted) -> HeldJob:
        """Raises UsageError for a job that cannot be taken in; nothing is left of it then."""
        if self.embedded:
            raise ConflictError("this coordinator serves one job", "start one with `zrun coordinator --dir DIR`")
        spec = _checked_spec(wanted)
        folder = _checked_folder(wanted.run_dir)
        job = str(folder.job)
        if job in self.fleet.jobs:
            raise ConflictError(f"{job} was submitted already", f"zrun status {job}")
        await asyncio.to_thread(_write_folder, folder, spec)
        self.fleet.notebook.hand(job, wanted.env, wanted.secrets)
        await asyncio.to_thread(self.fleet.notebook.keep_env, job, folder.root)
        n = enter(self.fleet, Submitted(job, spec_to_dict(spec), str(folder.root), wanted.fresh))
        await self.fleet.until_committed(n)
        return self.fleet.jobs[job]


def enter(fleet: Fleet, submitted: Submitted) -> int:
    """Journal the job and tell it of the nodes that are here."""
    n = fleet.emit(submitted.job, submitted)
    for seen in list(fleet.table.nodes.values()):
        if seen.report is not None:
            fleet.fold(seen)
    return n


def _understood(told: Any) -> JobSpec:
    try:
        return spec_from_dict(told)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise UsageError(f"the job's spec is not understood: {error}", "submit it with `zrun launch FILE`") from error


def _checked_spec(wanted: Wanted) -> JobSpec:
    spec = _understood(wanted.spec)
    _check_variables(wanted.env)
    _check_variables(wanted.secrets)
    _nothing_missing(spec, wanted.secrets)
    return spec


def _check_variables(given: Mapping[str, str]) -> None:
    for name, value in given.items():
        if not _ENV_NAME.fullmatch(name) or "\0" in value:
            raise UsageError(f"{name!r} cannot be an environment variable")


def _fitting(secrets: Mapping[str, str], spec: JobSpec) -> dict[str, str]:
    """Values under names that are secrets of the job; any other would become a variable that nobody sees."""
    _check_variables(secrets)
    unknown = [name for name in secrets if name not in spec.secrets]
    if unknown:
        raise UsageError(f"{', '.join(unknown)}: no secret of this job", "its names stand under secrets: in job.yaml")
    return dict(secrets)


def _nothing_missing(spec: JobSpec, secrets: Mapping[str, str]) -> None:
    missing = [name for name in spec.secrets if name not in secrets]
    if missing:
        raise UsageError(
            f"no value came for the secret {', '.join(missing)}",
            "set it in the environment of the launch or resume; over HTTP it goes into `secrets`",
        )


def _checked_folder(run_dir: str) -> RunFolder:
    if "\0" in run_dir or not run_dir.startswith("/"):
        raise UsageError("run_dir has to be an absolute path")
    root = Path(run_dir)
    if ".." in root.parts:
        raise UsageError("run_dir must not contain ..")
    if not JOB_ID.fullmatch(root.name):
        raise UsageError(
            f"the run's folder has to be named like a job id, not {root.name!r}", "for example gpt2-7f3a91"
        )
    return RunFolder(root)


def _write_folder(folder: RunFolder, spec: JobSpec) -> None:
    try:
        make_folder(folder.root)
        if not folder.spec_json.exists():
            write_json(folder.spec_json, spec_to_dict(spec))
    except OSError as error:
        raise UsageError(f"the run's folder {folder.root} cannot be written: {error.strerror}") from error
