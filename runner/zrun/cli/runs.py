"""One run, many launches: which run of a name a launch continues, refuses or leaves behind for a new one.

Looks at the runs folder and says why; starts nothing. Knows nothing about what is in a job file.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zrun.cli.lookup import address_in, answering, read_json, supervised
from zrun.cli.store_check import lying_in
from zrun.core import durable, env, manifest, private
from zrun.core.errors import UsageError
from zrun.core.ids import new_job_id
from zrun.core.place import ObjectPath, place_of
from zrun.core.runfolder import RunFolder
from zrun.core.states import FINAL, JobState

if TYPE_CHECKING:
    from zrun.spec.job import Checkpoint

SLURM_FILE: Final = "slurm-job-id"


@dataclass(frozen=True, slots=True)
class Choice:
    """`folder` None: begin a new run. `says`: what the person is told first."""

    folder: RunFolder | None
    says: str


def runs_of(runs: Path, name: str) -> list[RunFolder]:
    """The runs of this name, the one launched last first."""
    found: list[tuple[int, RunFolder]] = []
    for entry in runs.iterdir() if runs.is_dir() else ():
        folder = RunFolder(entry)
        if read_json(folder.spec_json).get("name") == name:
            found.append((folder.spec_json.stat().st_mtime_ns, folder))
    return [folder for _, folder in sorted(found, key=lambda f: f[0], reverse=True)]


def choose(runs: Path, name: str, *, fresh: bool, slurm_job: str) -> Choice:
    """Raises UsageError if a run of this name is live."""
    earlier = runs_of(runs, name)
    if fresh or not earlier:
        return Choice(None, "")
    requeued = [run for run in earlier if slurm_job and _slurm_of(run) == slurm_job]
    newest = (requeued or earlier)[0]
    state = str(read_json(newest.verdict).get("state") or "")
    if state in FINAL and state != JobState.PREEMPTED:
        return Choice(
            None, f"the last run of {name}, {newest.job}, is {state}; `zrun resume {newest.job}` would continue it"
        )
    if state not in FINAL and (supervised(newest) or answering(newest)):
        raise UsageError(
            f"{newest.job} is live ({state or 'starting'}) at {address_in(newest) or 'an address not known yet'}",
            f"follow it with `zrun logs -f {newest.job}`, stop it with `zrun stop {newest.job}`, or give --fresh",
        )
    was = "was preempted" if state == JobState.PREEMPTED else "was interrupted"
    return Choice(newest, f"{newest.job} {was}; going on with it")


def _slurm_of(folder: RunFolder) -> str:
    try:
        return (folder.root / SLURM_FILE).read_text().strip()
    except OSError:
        return ""


def make_folder(runs: Path, name: str) -> RunFolder:
    """A new run's folder with its token. Raises UsageError if it cannot be made."""
    folder = RunFolder(runs / new_job_id(name))
    try:
        private.make_folder(runs)
        folder.root.mkdir(mode=0o700)
        durable.create_exclusive(folder.token, secrets.token_hex(32).encode() + b"\n")
    except OSError as error:
        raise _unwritable(runs, error) from error
    return folder


def write_job(folder: RunFolder, spec: dict[str, Any], yaml: str, slurm_job: str) -> None:
    """job.yaml for people, spec.json for programs (last: its time says when the run was launched)."""
    try:
        durable.write_bytes(folder.job_yaml, yaml.encode())
        if slurm_job:
            durable.write_bytes(folder.root / SLURM_FILE, f"{slurm_job}\n".encode())
        durable.write_json(folder.spec_json, spec)
    except OSError as error:
        raise _unwritable(folder.root, error) from error


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot write to {error.filename or folder}: {error.strerror}", "give a folder for runs with --run-dir"
    )


@contextmanager
def launch_lock(runs: Path) -> Iterator[None]:
    """Two launches of one folder decide one after the other. Held on the folder itself."""
    try:
        private.make_folder(runs)
        handle = os.open(runs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unwritable(runs, error) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def continued(runs: Path, name: str) -> str | None:
    """The id of the run that a launch would go on with, a live one too; None if it would begin a new one."""
    try:
        folder = choose(runs, name, fresh=False, slurm_job="").folder
    except UsageError:
        folder = runs_of(runs, name)[0]  # it is live
    return folder.job if folder else None


def check_checkpoints(
    checkpoint: "Checkpoint", name: str, job: str | None, *, fresh: bool, variables: Mapping[str, str] | None = None
) -> None:
    """Refuse a checkpoint folder outside the run's with another run's checkpoints, unless asked for or put aside; and
    an object store that does not answer, or may not be written, with the job's `variables` (None: it is not asked).

    `job`: the run that goes on, None for a new one. The ranks would refuse too, but only once they are up.
    """
    directory = place_of(checkpoint.dir)
    if isinstance(directory, Path) and not directory.is_absolute():
        return
    wanted = fresh or checkpoint.resume not in {"auto", "never"}
    if isinstance(directory, ObjectPath):
        found = lying_in(directory, variables) if variables is not None else []
    else:
        found = [] if wanted else _lying_in(directory)
    if wanted:
        return
    made = [one for one in found if one["job"] != job]
    others = sorted({one["name"] for one in made if one["name"] != name})
    ways = f"choose another folder, or `checkpoint: {{resume: {directory}}}` to begin from them, or --fresh"
    if others:
        raise UsageError(f"checkpoint.dir {directory} holds checkpoints of {', '.join(others)}, not of {name}", ways)
    if made and checkpoint.resume == "auto":
        newest = max(made, key=lambda one: str(one["saved_at"]))["job"]
        raise UsageError(
            f"checkpoint.dir {directory} holds checkpoints of {newest}, another run of {name}",
            f"`zrun resume {newest}` goes on with it; else {ways}",
        )


def _lying_in(directory: Path) -> list[dict[str, Any]]:
    try:
        found = manifest.scan(directory)
    except OSError as error:
        raise UsageError(f"checkpoint.dir {directory} cannot be read: {error.strerror}") from error
    made = [one.manifest for one in found if one.manifest]
    return [{"job": one.job, "name": one.name, "saved_at": one.saved_at} for one in made]


def check_secrets(names: list[str]) -> None:
    """Refuse to start programs that would hand on a secret without a value: it is taken from their environment."""
    missing = [name for name in names if name not in env.snapshot()]
    if missing:
        raise UsageError(
            f"secret {', '.join(missing)} is not set in your environment",
            "; ".join(f"export {name}=..." for name in missing),
        )
