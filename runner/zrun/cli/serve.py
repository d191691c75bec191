"""`zrun coordinator`, `zrun agent`, `zrun dashboard`: the plug board where the programs are put together.

The only place that knows coordinator, agent and page at once; starts nothing else.
"""

from pathlib import Path

import click

from zrun.cli import screen
from zrun.cli.lookup import find
from zrun.cli.options import coordinator_option, job_argument, json_option
from zrun.core import env
from zrun.core.errors import UnreachableError, UsageError
from zrun.core.states import FINAL

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.option("--dir", "directory", type=_FOLDER, help="Serve many jobs; journal and token lie here.")
@click.option("--embedded", type=_FOLDER, metavar="RUN_DIR", help="Serve the one job of this run's folder.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0 = any free one.")
@click.option("--allow-plain-http", is_flag=True, help="Listen beyond this machine without TLS, in a trusted network.")
def coordinator(directory: Path | None, embedded: Path | None, host: str, port: int, allow_plain_http: bool) -> int:
    """Run a coordinator; its address is in coordinator.json of its folder, its token in `token`."""
    if (directory is None) == (embedded is None):
        raise UsageError("say either --dir DIR (many jobs) or --embedded RUN_DIR (one job)")
    from zrun.coordinator.main import STOPPED_BY_SIGNAL, CoordinatorConfig, run_coordinator
    from zrun.dashboard.pages import OPEN_PATHS, dashboard_router

    config = CoordinatorConfig(
        dir=directory, embedded=embedded, host=host, port=port, allow_plain_http=allow_plain_http,
        open_paths=OPEN_PATHS,
    )  # fmt: skip
    code = run_coordinator(config, [dashboard_router()])
    return 0 if directory is not None and code == STOPPED_BY_SIGNAL else code  # only a supervisor wants to know


@click.command()
@click.option("--join", metavar="URL", help="The coordinator's address.")
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), help="Else ZRUN_TOKEN_FILE.")
@click.option("--node", help="This node's name; else its host name.")
@click.option("--embedded", type=_FOLDER, metavar="RUN_DIR", help="Serve the one job of this run's folder.")
@click.option(
    "--notice-file", type=click.Path(path_type=Path, dir_okay=False),
    help="One line in it says why ranks are killed here (an eviction); else ZRUN_NOTICE_FILE.",
)  # fmt: skip
def agent(
    join: str | None, token_file: Path | None, node: str | None, embedded: Path | None, notice_file: Path | None
) -> int:
    """Run an agent: this node takes the coordinator's orders until it is told to leave (TERM)."""
    if (join is None) == (embedded is None):
        raise UsageError("say either --join URL (a coordinator elsewhere) or --embedded RUN_DIR (one job)")
    named = token_file or (Path(path) if (path := env.get(env.TOKEN_FILE)) else None)
    if join is not None and named is None:
        raise UsageError(
            "a token is needed to join", "give --token-file FILE; `zrun token` prints a coordinator's token"
        )
    if named is not None and not named.is_file():
        raise UsageError(f"no token file {named}")
    from zrun.agent.main import AgentConfig, run_agent

    notice = notice_file or (Path(path) if (path := env.get(env.NOTICE_FILE)) else None)
    config = AgentConfig(
        url=join, run_dir=embedded, token_file=named if join else None, node=node or "", notice_file=notice
    )
    return run_agent(config)


@click.command()
@job_argument
@coordinator_option
@json_option
def dashboard(job: str | None, coordinator: str | None, as_json: bool) -> int:
    """Print the address of JOB's page; it logs in by itself, so keep it to yourself."""
    target = find(job, coordinator)
    try:
        client = target.live_client()
    except UnreachableError as error:
        if (state := target.written().get("state")) not in FINAL:
            raise
        hint = f"the page ends with the job; see `zrun describe {target.job}`"
        raise UnreachableError(f"{target.job} is over ({state})", hint) from error
    with client:
        screen.put_json({"address": client.address, "page": client.page}) if as_json else screen.put(client.page)
    return 0
