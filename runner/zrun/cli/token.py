"""`zrun token`: print the access token of a run or of a coordinator's folder; make one where there is none."""

import secrets
from pathlib import Path

import click

from zrun.cli import screen
from zrun.cli.lookup import find, outside_token, token_in
from zrun.cli.options import job_argument, json_option
from zrun.core import durable
from zrun.core.errors import NotFoundError


@click.command()
@job_argument
@click.option("--dir", "directory", type=click.Path(path_type=Path, file_okay=False),
              help="Of the coordinator whose folder this is; made if missing.")  # fmt: skip
@json_option
def token(job: str | None, directory: Path | None, as_json: bool) -> int:
    """Print the token that opens JOB's coordinator (or, with --dir, a standalone coordinator's)."""
    if directory is not None:
        made = make_token(directory)
        screen.put_json({"dir": str(directory), "token": made}) if as_json else screen.put(made)
        return 0
    target = find(job)
    found = outside_token() if target.coordinator else token_in(target.folder) if target.folder else ""
    if not found:
        raise NotFoundError(f"no token is known for {target.job}")
    screen.put_json({"job": target.job, "token": found}) if as_json else screen.put(found)
    return 0


def make_token(directory: Path) -> str:
    """The token in `directory`, made with mode 0600 if there is none."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / "token"
    try:
        durable.create_exclusive(path, secrets.token_hex(32).encode() + b"\n")
    except FileExistsError:
        pass  # made before; that one counts
    return path.read_text().strip()
