"""The beginning of an embedded coordinator: its one job comes from the run folder, its environment from its own.

Journals Submitted if the journal is empty, and the wish in resume.json once. Knows no network.
"""

import json
from typing import Any

import msgspec

from zrun.coordinator.commands import enter
from zrun.coordinator.fleet import Fleet
from zrun.core import env
from zrun.core.errors import UsageError
from zrun.core.runfolder import RunFolder
from zrun.machine.events import Command, Submitted
from zrun.spec.job import JobSpec, spec_from_dict, spec_to_dict

RESUME_FILE = "resume.json"


def begin_embedded(fleet: Fleet, folder: RunFolder) -> None:
    """Before the replay: the job's environment is ours without launchers and secrets."""
    spec, _ = read_spec(folder)
    given = env.snapshot()
    kept, dropped = env.without_launchers(given)
    secrets = {name: given[name] for name in spec.secrets if name in given}
    missing = [name for name in spec.secrets if name not in given]
    if missing:
        fleet.log.warning("secrets without a value", because=", ".join(missing), job=folder.job)
    if dropped:
        fleet.log.info("variables of launchers taken out of the job's environment", because=", ".join(dropped))
    fleet.notebook.hand(folder.job, {k: v for k, v in kept.items() if k not in secrets}, secrets)


def submit_embedded(fleet: Fleet, folder: RunFolder) -> int:
    """After the replay, once the journal takes events; gives the number of the last one journaled."""
    n = fleet.committed_n
    if not fleet.jobs:
        _, value = read_spec(folder)
        n = enter(fleet, Submitted(folder.job, value, str(folder.root), bool(_resume(folder).get("fresh"))))
    path = folder.root / RESUME_FILE
    if not path.exists():
        return n
    job = next(iter(fleet.jobs.values()))
    options = _resume(folder)
    if "spec" in options:
        read_spec(folder, options["spec"])
    if job.state.over or options.get("spec", spec_to_dict(job.spec)) != spec_to_dict(job.spec):
        return fleet.emit(job.id, Command("resume", who="launch", options=options))
    fleet.log.info("resume.json passed over", because=f"the job is {job.state.state}", job=job.id)
    return n


def forget_resume(folder: RunFolder) -> None:
    """Once the wish is on the disk."""
    (folder.root / RESUME_FILE).unlink(missing_ok=True)


def read_spec(folder: RunFolder, told: Any = None) -> tuple[JobSpec, dict[str, Any]]:
    """What spec.json holds, or `told` if that is given. Raises UsageError."""
    try:
        value = json.loads(folder.spec_json.read_text()) if told is None else told
        return spec_from_dict(value), value
    except OSError as error:
        raise UsageError(
            f"{folder.spec_json} cannot be read: {error.strerror}", "`zrun launch FILE` writes it"
        ) from error
    except (ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"{folder.spec_json} is no job: {error}", "`zrun launch FILE` writes it") from error


def _resume(folder: RunFolder) -> dict[str, Any]:
    try:
        value = json.loads((folder.root / RESUME_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
