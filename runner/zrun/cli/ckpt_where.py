"""Which checkpoints a `zrun ckpt` command speaks of, and how far it has come with them; changes nothing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from zrun.cli.lookup import find, read_json
from zrun.cli.options import complete_job
from zrun.core import env, manifest, storage
from zrun.core.errors import NotFoundError, UsageError
from zrun.core.manifest import Found
from zrun.core.place import Place, is_url, place_of

where_argument = click.argument("where", metavar="[JOB|DIR]", required=False, shell_complete=complete_job)


def directory_of(where: str | None) -> Place:
    """A folder or URL as it is given, else where the checkpoints of a job are. Raises NotFoundError, UsageError."""
    if where is not None and is_url(where):
        place = _url(where)
        return place.parent if storage.of(place).exists(place / manifest.MANIFEST) else place
    if where is not None and (Path(where).is_dir() or "/" in where):
        path = Path(where)
        if not path.is_dir():
            raise NotFoundError(f"no folder {where}")
        if (path / "spec.json").is_file():
            return _of_run(path)
        # One checkpoint itself: look at the folder it lies in.
        return path.parent if (path / manifest.MANIFEST).is_file() else path
    target = find(where)
    if target.folder is None:
        raise UsageError(f"the folder of {target.job} is not on this machine", "name the checkpoint folder itself")
    return _of_run(target.folder.root)


def _url(text: str) -> Place:
    try:
        return place_of(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _of_run(root: Path) -> Place:
    place = place_of(str(_settings(root).get("dir") or "checkpoints"), root)
    if not isinstance(place, Path):  # the job's own variables may name its store (AWS_ENDPOINT_URL, AWS_PROFILE)
        for name, value in dict(read_json(root / "spec.json").get("env") or {}).items():
            if not env.get(name):
                env.put(name, str(value))
    return place


def _settings(root: Path) -> dict[str, Any]:
    """`checkpoint` of the run's job as it is written."""
    found = read_json(root / "spec.json").get("checkpoint")
    return found if isinstance(found, dict) else {}


def keep_of(where: str | None) -> dict[str, Any] | None:
    """`checkpoint.keep` of the job that `where` means, {} for its defaults; None for a folder of no known run."""
    if where is not None and is_url(where):
        return None
    if where is not None and (Path(where).is_dir() or "/" in where):
        root = next(
            (r for r in (Path(where), *Path(where).absolute().parents[:2]) if (r / "spec.json").is_file()), None
        )
    else:
        folder = find(where).folder
        root = folder.root if folder is not None else None
    return None if root is None else dict(_settings(root).get("keep") or {})


def the_one(directory: Place, where: str | None, step: int | None) -> Found:
    """The checkpoint of `step`, else the one that `where` itself is, else the newest good one."""
    found = manifest.scan(directory)
    if step is None and where is not None:
        named = [f for f in found if f.path.name == where.rstrip("/").rpartition("/")[2]]
        step = named[0].step if named else None
    if step is None:
        good = [f for f in found if f.state == "complete"]
        if not good:
            raise NotFoundError(f"no complete checkpoint in {directory}", "`zrun ckpt ls` says why")
        return good[0]
    return of_step(directory, found, step)


def of_step(directory: Place, found: list[Found], step: int) -> Found:
    """Raises NotFoundError."""
    one = next((f for f in found if f.step == step), None)
    if one is None:
        raise NotFoundError(f"no checkpoint of step {step} in {directory}", "`zrun ckpt ls` shows all")
    return one


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
