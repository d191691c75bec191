"""`zrun launch FILE`: understand the job, find or make its run, start the supervisor, follow.

Decides which run it is (runs.py) and shows (follow.py); everything about the running job is decided elsewhere.
"""

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zrun.cli import inherited, registry, runs, screen
from zrun.cli.follow import Viewer
from zrun.cli.lookup import Target, outside_token, read_json, supervised
from zrun.cli.options import json_option
from zrun.cli.starting import ask_resume, start_supervisor, wait_for_end
from zrun.core import env
from zrun.core.errors import Exit, UsageError
from zrun.core.runfolder import RunFolder
from zrun.core.states import FINAL, JobState
from zrun.machine.ordering import in_job_file
from zrun.spec.job import JobSpec, spec_to_dict
from zrun.spec.load import load_job
from zrun.spec.write import to_yaml

if TYPE_CHECKING:
    from zrun.cli.client import Client

_LOCKED_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to launch; what is not about the job itself."""

    runs: Path
    fresh: bool
    detach: bool
    as_json: bool


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("-d", "--detach", is_flag=True, help="Do not follow; print the job's id.")
@click.option("-e", "--env", "variables", multiple=True, metavar="K[=V]", help="Set a variable; K alone copies yours.")
@click.option("--set", "overrides", multiple=True, metavar="a.b=c", help="Override a field of the file.")
@click.option("--fresh", is_flag=True, help="A new run, whatever ran before.")
@click.option("--allow-changed", multiple=True, metavar="KEY", help="Resume though KEY of the job has changed.")
@click.option(
    "--on", type=click.Choice(["local", "slurm", "ssh"]), default="local", show_default=True, help="Where to run."
)
@click.option(
    "--run-dir", type=click.Path(path_type=Path, file_okay=False), help="Folder of runs (else ./runs beside FILE)."
)
@click.option("--coordinator", metavar="URL", help="Hand the job to this coordinator.")
@click.option("--dry-run", is_flag=True, help="Print the job as understood and stop.")
@json_option
def launch(file: Path, arguments: tuple[str, ...], detach: bool, variables: tuple[str, ...],
           overrides: tuple[str, ...], fresh: bool, allow_changed: tuple[str, ...], on: str, run_dir: Path | None,
           coordinator: str | None, dry_run: bool, as_json: bool) -> int:  # fmt: skip
    """Run the job of FILE and follow it; go on with its last run if that was interrupted or preempted.

    Everything after -- is added to the script's arguments.
    """
    if on != "local":
        raise UsageError(f"--on {on} is not yet in this version", "leave it out to run on this machine")
    spec = load_job(
        file, overrides=overrides, env=variables, args=arguments, allow_changed=allow_changed, on_this_machine=True
    )
    if dry_run:
        screen.put_json(spec_to_dict(spec)) if as_json else screen.put(to_yaml(spec).rstrip())
        return Exit.DONE
    spec = inherited.by_inheritance(spec)
    inherited.tell(spec_to_dict(spec))
    for text in in_job_file(spec):
        screen.say(f"zrun: warning: {text}")
    wanted = Wanted((run_dir or file.absolute().parent / "runs").absolute(), fresh, detach, as_json)
    if address := coordinator or env.get(env.COORDINATOR):
        return _hand_over(spec, wanted, address)
    return _launch_here(spec, wanted)


def _launch_here(spec: JobSpec, wanted: Wanted) -> int:
    slurm_job = env.get("SLURM_JOB_ID")
    with ExitStack() as held:
        held.enter_context(runs.launch_lock(wanted.runs))
        choice = runs.choose(wanted.runs, spec.name, fresh=wanted.fresh, slurm_job=slurm_job)
        if choice.says:
            screen.say(f"zrun: {choice.says}")
        goes_on = choice.folder.job if choice.folder else None
        runs.check_checkpoints(spec.checkpoint, spec.name, goes_on, fresh=wanted.fresh, variables=spec.env)
        folder = choice.folder or runs.make_folder(wanted.runs, spec.name)
        if choice.folder is not None:
            prepare_again(folder, spec_to_dict(spec))
        runs.write_job(folder, spec_to_dict(spec), to_yaml(spec), slurm_job)
        if wanted.fresh:
            ask_resume(folder, {"fresh": True})  # read by the first coordinator of a run, too
        registry.remember(folder.job, spec.name, folder.root)
        screen.say(f"zrun: {folder.job}: {'goes on' if choice.folder else 'a new run'} in {folder.root}")
        if spec.nodes_min > 1:
            screen.say(f"zrun: nodes: {spec.nodes_min}; this machine is one, and each other joins with "
                       f"`zrun agent --embedded {folder.root} --node NAME` on this machine; other machines need "
                       f"`zrun coordinator` and `zrun launch --coordinator URL`")  # fmt: skip
        viewer = Viewer(
            Target(folder.job, spec.name, folder), owner=True, preempt_signals=signals_of(spec.preempt.signals),
            as_json=wanted.as_json, detach=wanted.detach, continued=choice.folder is not None,
            start=starter(folder, held.pop_all().close),
        )  # fmt: skip
    return viewer.run()


def prepare_again(folder: RunFolder, spec: dict[str, Any]) -> None:
    """A run that goes on: its last supervisor must be gone.

    The coordinator is told if the job was over, and of a job that is not the one it knows.
    """
    if not wait_for_end(folder):
        raise UsageError(f"the supervisor of {folder.job} does not end", f"see {folder.supervisor_log}")
    changed = spec != read_json(folder.spec_json)
    if changed or read_json(folder.verdict).get("state") in FINAL:
        ask_resume(folder, {"spec": spec} if changed else {})


def starter(folder: RunFolder, begun: Callable[[], None]) -> "Callable[[], subprocess.Popen[bytes]]":
    """Start the supervisor; `begun` is called when it holds its lock, so that another launch sees the run as live."""

    def start() -> "subprocess.Popen[bytes]":
        try:
            supervisor = start_supervisor(folder)
            deadline = time.monotonic() + _LOCKED_WITHIN_S
            while not supervised(folder) and supervisor.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            return supervisor
        finally:
            begun()

    return start


def signals_of(names: list[str]) -> frozenset[int]:
    """`TERM` always preempts; others where the job says so."""
    known = {name: number for name in names if (number := getattr(signal, f"SIG{name.removeprefix('SIG')}", None))}
    return frozenset({signal.SIGTERM, *known.values()})


def _hand_over(spec: JobSpec, wanted: Wanted, address: str) -> int:
    """A coordinator elsewhere runs it; Ctrl-C only detaches."""
    from zrun.cli.client import Client

    with Client(address, outside_token(), timeout_s=30.0) as client:
        earlier = None if wanted.fresh else next((j for j in client.jobs() if j["name"] == spec.name), None)
        if earlier and earlier["state"] not in FINAL:
            raise UsageError(f"{earlier['job']} is live ({earlier['state']}) at {address}", "stop it or give --fresh")
        goes_on = str(earlier["job"]) if earlier and earlier["state"] == JobState.PREEMPTED else None
        runs.check_checkpoints(spec.checkpoint, spec.name, goes_on, fresh=wanted.fresh)
        if earlier and goes_on:
            job, folder = goes_on, RunFolder(Path(str(earlier["run_dir"])))
            secrets = env.chosen(spec.secrets)
            client.tell(job, "resume", {"options": {"spec": spec_to_dict(spec)}, "secrets": secrets})
            screen.say(f"zrun: {job} was preempted; going on with it at {address}")
        else:
            folder = runs.make_folder(wanted.runs, spec.name)
            job = _submit(client, spec, folder, wanted)
            screen.say(f"zrun: {job}: handed to {address}")
    registry.remember(job, spec.name, folder.root, coordinator=address)
    here = folder if folder.root.is_dir() else None
    return Viewer(
        Target(job, spec.name, here, address), owner=False, as_json=wanted.as_json, detach=wanted.detach,
        continued=earlier is not None,
    ).run()  # fmt: skip


def _submit(client: "Client", spec: JobSpec, folder: RunFolder, wanted: Wanted) -> str:
    """Job file, environment and secrets go to the coordinator; if it refuses, nothing is left here."""
    environment, _ = env.without_launchers(env.snapshot())
    secrets = env.chosen(spec.secrets)
    environment = {name: value for name, value in environment.items() if name not in secrets}
    body = {"spec": spec_to_dict(spec), "run_dir": str(folder.root), "env": environment, "secrets": secrets,
            "fresh": wanted.fresh}  # fmt: skip
    try:
        runs.write_job(folder, spec_to_dict(spec), to_yaml(spec), "")
        return str(client.submit(body)["job"])
    except BaseException:
        _forget(folder)
        raise


def _forget(folder: RunFolder) -> None:
    for path in (folder.spec_json, folder.job_yaml, folder.token):
        path.unlink(missing_ok=True)
    folder.root.rmdir()
