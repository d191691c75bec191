"""Reading a job file: text -> tree -> JobSpec, with every mistake of file and options reported at once.

Looks at no other file and starts nothing, unless asked whether this machine has what the job needs (here.py).
"""

import os.path
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from zrun.core import env as environment
from zrun.core.errors import SpecError
from zrun.core.place import place_of
from zrun.spec.fields import JOB, paths
from zrun.spec.here import check_machine, find
from zrun.spec.job import JobSpec
from zrun.spec.kinds import BAD, shape
from zrun.spec.nodes import BadYaml, Items, Node, Pairs, Scalar, parse
from zrun.spec.overrides import lay_over, variables
from zrun.spec.problem import Problem, Problems, Source, Span, cut

MAX_BYTES: Final = 1 << 20


def load_job(
    path: Path,
    *,
    overrides: Sequence[str] = (),
    env: Sequence[str] = (),
    args: Sequence[str] = (),
    allow_changed: Sequence[str] = (),
    caller_env: Mapping[str, str] | None = None,
    on_this_machine: bool = False,
) -> JobSpec:
    """The job of a file with `--set` overrides, `-e` variables and arguments after `--`.

    Raises SpecError with every mistake. `on_this_machine`: also that workdir, script, python and secrets are there.
    """
    caller = environment.snapshot() if caller_env is None else caller_env
    source = _source(path)
    problems = Problems(paths())
    root = _root(source, problems)
    if isinstance(root, Pairs):
        root = lay_over(root, overrides, JOB, problems)
    given = variables(env, caller, problems)
    folder = path.absolute().parent
    spec = _spec(root, folder, problems) if isinstance(root, Pairs) else None
    if spec is not None and isinstance(root, Pairs):
        spec = msgspec.structs.replace(
            spec, env=spec.env | given, run=[*spec.run, *args], allow_changed=list(allow_changed)
        )
        _check_together(spec, root, problems)
        if on_this_machine and not problems.count:
            check_machine(spec, root, caller, problems)
    if problems.count or spec is None:
        raise _refusal(path, problems)
    return spec


def _refusal(path: Path, problems: Problems) -> SpecError:
    count = problems.count
    message = f"{path}: {count} mistake{'' if count == 1 else 's'}"
    return SpecError(message, "`zrun schema` prints every field with its default", problems.rendered())


def _source(path: Path) -> Source:
    """The text of the file; raises SpecError where there is none."""
    name = cut(str(path))
    try:
        if not (stat.S_ISREG(mode := path.stat().st_mode) or stat.S_ISDIR(mode)):
            raise SpecError(f"{name}: not a file", "a pipe or a device is not read: write the job to a file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise SpecError(f"{name}: no such file", "`zrun init` writes one to start from") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"{name}: cannot be read: {reason}") from error
    if len(data) > MAX_BYTES:
        head = Source(name, data[:MAX_BYTES].decode("utf-8", "replace"))
        problem = Problem(Span(head, len(head.text), len(head.text)), "the file goes on after 1 MiB", "a job file")
        raise SpecError(f"{name}: too large", "", (problem.render(),))
    try:
        return Source(name, data.decode("utf-8").removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        head = Source(name, before + "\N{REPLACEMENT CHARACTER}")
        problem = Problem(Span(head, len(before), len(before) + 1), "not UTF-8", "text in UTF-8")
        raise SpecError(f"{name}: not a text", "", (problem.render(),)) from error


def _root(source: Source, problems: Problems) -> Node | None:
    try:
        root = parse(source)
    except BadYaml as bad:
        problems.found.append(bad.problem)
        return None
    if isinstance(root, Scalar) and root.empty:
        return Pairs(root.span)
    if not isinstance(root, Pairs):
        problems.add(root.span, f"{shape(root)} is not a job", expected="name: ... and run: ..., one a line")
        return None
    return root


def _spec(root: Pairs, folder: Path, problems: Problems) -> JobSpec | None:
    values = JOB.collect(root, "", problems)
    if values is BAD:
        return None
    spec = JobSpec(**values)
    workdir = folder / spec.workdir
    python = spec.python
    if python is not None and "/" in python:
        python = str(workdir / python)
    resume = spec.checkpoint.resume
    if resume not in {"auto", "never"}:
        resume = str(place_of(resume, folder))
    checkpoint = msgspec.structs.replace(spec.checkpoint, resume=resume)
    return msgspec.structs.replace(spec, workdir=_normal(workdir), python=python, checkpoint=checkpoint)


def _normal(path: Path) -> str:
    """Without `.` and `..`, but with symbolic links as written: a shared folder's name is the same on every node."""
    return os.path.normpath(path)


def _check_together(spec: JobSpec, root: Pairs, problems: Problems) -> None:
    """What is wrong only in view of another field."""
    for name in [name for name in spec.secrets if name in spec.env]:
        hint = "take it out of env: a secret's value comes from your environment"
        problems.add(find(root, "env", name), f"{name} is a secret and stands in env too", suggestion=hint)
    secrets = root.get("secrets")
    if isinstance(secrets, Items) and len(set(spec.secrets)) < len(spec.secrets):
        problems.add(secrets.span, "secrets names one variable twice", suggestion="keep one of the two")
