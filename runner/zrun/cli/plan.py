"""`zrun plan`: what fits, what it costs on the wire and what failures will take, before anything is paid for.

The options are the fields of the file's `plan` block (spec/plan.py). The formulas are in zrun.plan; this gathers what
they need: file, model, earlier incidents, measured links.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
from msgspec.structs import replace

from zrun.cli import registry, runs, screen
from zrun.cli.options import json_option
from zrun.core import env
from zrun.core.errors import SpecError, UsageError
from zrun.core.place import Place as CheckpointPlace
from zrun.core.place import place_of
from zrun.core.runfolder import RunFolder
from zrun.plan import measuring, table
from zrun.plan.answer import answer
from zrun.plan.incidents import measured
from zrun.plan.question import asked
from zrun.plan.source import Place, sized
from zrun.spec.job import JobSpec, Plan
from zrun.spec.load import load_job
from zrun.spec.plan import PLAN, option, read_options
from zrun.spec.problem import Problems

_MOST_MEASURED: Final = 8


def _field_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for one in reversed(PLAN.fields):
        function = click.option(option(one.name), one.name, metavar="…", help=one.doc)(function)
    return function


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@_field_options
@click.option(
    "--measure", is_flag=True, help="Time collectives between ranks of this machine first, and keep the result."
)
@click.option("--measure-wrap", is_flag=True, help="Run a few real steps for each way to wrap the model first.")
@click.option("--set", "overrides", multiple=True, metavar="a.b=c", help="Override a field of the file.")
@json_option
def plan(
    file: Path | None,
    measure: bool,
    measure_wrap: bool,
    overrides: tuple[str, ...],
    as_json: bool,
    **options: str | None,
) -> int:
    r"""Say what each way to spread a model over ranks needs and costs, for FILE or for what the options tell.

    \b
    zrun plan --params 27B --world 64 --memory 80GB
    zrun plan job.yaml --measure
    """
    told, spec = _told({name: text for name, text in options.items() if text is not None}, file, overrides)
    place = _place(file, spec)
    origins: dict[str, str] = {}
    told = _with_links(told, place, measure, origins)
    size = sized(told, place)
    verdicts = (RunFolder(entry.folder).verdict for entry in registry.known() if not entry.coordinator)
    every_s = spec.checkpoint.every_s if spec else None
    question = asked(told, size.model, size.wraps, size.counted, measured(verdicts), every_s)
    found = answer(question)
    found["origins"] |= origins
    found["measured_wraps"] = _measured_wraps(told, place) if measure_wrap else None
    if as_json:
        screen.put_json(found)
    else:
        _show(found)
    return 0


def _told(given: dict[str, str], file: Path | None, overrides: tuple[str, ...]) -> tuple[Plan, JobSpec | None]:
    """The file's block with the options over it. Raises SpecError with every mistake of either."""
    if file is None and overrides:
        raise UsageError("--set overrides a field of a job file, and none is given", "zrun plan job.yaml --set a.b=c")
    problems = Problems()
    values = read_options(given, problems)
    if problems.count:
        raise SpecError("zrun plan: the options cannot be read", "`zrun plan --help` lists them", problems.rendered())
    if file is None:
        if not {"params", "model"} & set(values):
            raise UsageError(
                "nothing to plan for", "zrun plan --params 27B --world 64 --memory 80GB, or zrun plan job.yaml"
            )
        return Plan(**values), None
    spec = load_job(file, overrides=overrides)
    block = spec.plan
    each = spec.nproc_per_node if isinstance(spec.nproc_per_node, int) else block.ranks_per_node
    block = replace(
        block, ranks_per_node=block.ranks_per_node or each,
        world=block.world or (spec.nodes_max * each if each else None),
    )  # fmt: skip
    for one, other in (
        ("params", "model"),
        ("model", "params"),
    ):  # what is typed replaces the file's other way to say it
        if one in values and other not in values:
            block = replace(block, **{other: None})
    return replace(block, **values), spec


def _place(file: Path | None, spec: JobSpec | None) -> Place:
    """Where a callable is imported, and with what; the launcher's variables stay out."""
    mine, _ = env.without_launchers(env.snapshot())
    if file is None or spec is None:
        return Place(str(Path.cwd()), sys.executable, mine)
    return Place(spec.workdir, spec.python or sys.executable, {**mine, **spec.env}, _checkpoints(file, spec))


def _checkpoints(file: Path, spec: JobSpec) -> Iterator[CheckpointPlace]:
    """Where earlier attempts of this job saved, newest first."""
    for folder in runs.runs_of(file.absolute().parent / "runs", spec.name):
        yield place_of(spec.checkpoint.dir, folder.root)


def _with_links(told: Plan, place: Place, measure: bool, origins: dict[str, str]) -> Plan:
    """What was measured fills in what is not told."""
    path = registry.state_folder() / "links.json"
    if measure:
        ranks = _local_ranks(told)
        screen.say(f"zrun: timing collectives between {ranks} local ranks, about half a minute")
        one = measuring.measure(ranks, place.python, place.workdir, place.env)
        measuring.keep(path, one)
        screen.say(f"zrun: kept in {path}; links between nodes are not measured, give --inter for them")
    else:
        one_kept = measuring.kept(path)
        if one_kept is None:
            return told
        one = one_kept
    if told.intra is None:
        origins["intra"] = f"{table.gb(one.intra)} GB/s, {one.origin}"
        told = replace(told, intra=one.intra)
        if told.latency_intra_s is None:
            told = replace(told, latency_intra_s=one.latency_intra_s)
            origins["latency_intra"] = f"{one.latency_intra_s * 1e6:.0f} us a hop, from the same"
    return told


def _local_ranks(told: Plan) -> int:
    return max(2, min(told.ranks_per_node or 2, told.world or 2, os.cpu_count() or 2, _MOST_MEASURED))


def _measured_wraps(told: Plan, place: Place) -> dict[str, Any]:
    if told.model is None or told.loss is None:
        raise UsageError(
            "--measure-wrap trains the model for a few steps",
            "give --model MODULE:CALLABLE and --loss MODULE:CALLABLE, which takes the model and a micro-batch size",
        )
    ranks = _local_ranks(told)
    screen.say(f"zrun: a few steps for each way to wrap {told.model}, on {ranks} local ranks")
    return measuring.wraps(told.model, told.loss, told.micro_batch or 1, ranks, place.python, place.workdir, place.env)


def _show(found: dict[str, Any]) -> None:
    for line in table.heading(found):
        screen.put(line)
    screen.put("")
    screen.put(screen.table(table.HEAD, table.rows(found, screen.span)))
    screen.put("")
    for line in table.below(found, screen.span):
        screen.put(screen.clean(line))
