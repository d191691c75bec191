"""`zrun drill FILE`: the user's own job undisturbed and disturbed, and what came of the faults.

Everything it does is in zrun.drill; this reads what was typed and shows what was found.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

import click

from zrun.cli import screen
from zrun.cli.options import json_option, seconds
from zrun.core import durable
from zrun.core.errors import Exit, UsageError
from zrun.core.states import JobState
from zrun.drill import faults as kinds
from zrun.drill import outcome, report, runs
from zrun.drill.compare import compare
from zrun.drill.runs import Asked, Ran
from zrun.spec.job import JobSpec
from zrun.spec.load import load_job

_REPORT: Final = "report.json"


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--fault", "faults", multiple=True, metavar="kind:rank=R,step=N",
              help=f"One of {', '.join(kinds.KINDS)}; several may be given, each comes once. Without rank the last, "
                   f"without step evenly over the run. Default: a kill and a raise. none: two undisturbed runs.",
              )  # fmt: skip
@click.option("-e", "--env", "variables", multiple=True, metavar="K[=V]", help="Set a variable; K alone copies yours.")
@click.option("--set", "overrides", multiple=True, metavar="a.b=c", help="Override a field of the file.")
@click.option("--within", metavar="DURATION", help="Stop a run that takes longer; the drill is then not passed.")
@json_option
def drill(file: Path, arguments: tuple[str, ...], faults: tuple[str, ...], variables: tuple[str, ...],
          overrides: tuple[str, ...], within: str | None, as_json: bool) -> int:  # fmt: skip
    r"""Break the job of FILE on purpose, and prove that nothing was lost.

    Runs it twice, undisturbed and with faults, in drills/ beside FILE, and compares every loss, sample and weight.
    Exit code 0: every fault was survived, and all that should be equal is.

    \b
    zrun drill job.yaml
    zrun drill job.yaml --fault kill:rank=1,step=20 --fault hang:rank=0,step=60 -- --steps 100
    """
    asked_faults = kinds.parse_all(faults)
    spec = load_job(file, overrides=overrides, env=variables, args=arguments, on_this_machine=True)
    _check(spec, asked_faults)
    within_s = seconds(within) if within is not None else None
    asked = Asked(file, spec, arguments, overrides, variables, within_s)
    found = _drilled(asked, asked_faults)
    durable.write_json(found.folder / _REPORT, report.as_json(found))
    if as_json:
        screen.put_json(report.as_json(found))
    else:
        _show(found)
    return Exit.DONE if found.passed else Exit.OWN_FAILURE


def _check(spec: JobSpec, faults: list[kinds.Fault]) -> None:
    """What can be known before anything runs."""
    if spec.nodes_min > 1:
        raise UsageError(
            f"a drill runs on this machine, and the job wants nodes: {spec.nodes_min}",
            "zrun drill FILE --set nodes=1, perhaps with a smaller nproc_per_node",
        )
    if isinstance(spec.nproc_per_node, int):
        kinds.check_ranks(faults, spec.nproc_per_node)


def _drilled(asked: Asked, faults: list[kinds.Fault]) -> report.Report:
    """Raises UsageError for a fault that the job as it ran has no place for."""
    folder = runs.make_folder(asked)
    screen.say(f"zrun: undisturbed, then disturbed, in {folder}")
    with _stopped_by_term(), _bar() as tell:
        calm = runs.undisturbed(asked, folder, tell)
        _refuse_unless_calm(calm)
        placed = kinds.placed(faults, calm.traced.world_size, calm.traced.last_step)
        placed = kinds.renumbered(placed)
        more = kinds.overrides(placed)
        for one in placed:
            screen.say(f"zrun: fault: {one}")
        disturbed = runs.disturbed(asked, folder, placed, more, tell)
    found = outcome.outcomes(placed, disturbed)
    left_out_from = outcome.left_out_from(found)
    compared = compare(calm.traced, disturbed.traced, None if left_out_from is None else left_out_from - 1)
    told = outcome.problems(calm, disturbed, found, compared)
    return report.Report(folder, calm, disturbed, found, compared, told, more, left_out_from)


def _refuse_unless_calm(calm: Ran) -> None:
    """A job that does not get through undisturbed says nothing about faults."""
    reason = str(calm.verdict.get("reason") or f"zrun launch ended with code {calm.code}")
    if calm.too_long:
        raise UndrilledError(
            f"undisturbed, the job was not over after {calm.seconds:.0f}s", "give it longer with --within"
        )
    if calm.state != JobState.SUCCEEDED:
        raise UndrilledError(f"undisturbed, the job is {calm.state}: {reason}", f"see {calm.log}")
    if calm.verdict.get("incidents"):
        raise UndrilledError(
            f"an incident came though nothing was disturbed: {calm.verdict['incidents'][0]['headline']}",
            f"see {calm.log}",
        )
    if not calm.traced.steps:
        raise UndrilledError(
            "undisturbed, the job made no step that could be seen: nothing can be appointed",
            "steps are seen by Session and by torch's optimizers",
        )


class UndrilledError(UsageError):
    """The job itself does not allow a drill."""

    exit_code = Exit.OWN_FAILURE


@contextmanager
def _stopped_by_term() -> Iterator[None]:
    """TERM ends the job that runs, too, as Ctrl-C does."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _bar() -> Iterator[Callable[[str, int], None]]:
    """A progress bar for each of the two runs on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("step {task.completed}"), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    most = [0]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def tell(name: str, step: int) -> None:
            if name not in tasks:  # how many steps there are is known once they have been made
                tasks[name] = progress.add_task(name, total=most[0] or None)
            most[0] = max(most[0], step)
            progress.update(tasks[name], completed=step)

        yield tell


def _show(found: report.Report) -> None:
    for line in report.heading(found, screen.span):
        screen.put(screen.clean(line))
    if found.outcomes:
        screen.put(screen.clean(screen.table(report.HEAD, report.rows(found))))
    for line in report.below(found):
        screen.put(screen.clean(line))
