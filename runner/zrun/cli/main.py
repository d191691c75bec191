"""The `zrun` command: finds the subcommand, turns errors into one clear text and an exit code.

Subcommands are imported only when they are called, so that `zrun status` starts at once. Knows nothing about jobs.
"""

import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from zrun.cli import first_process, screen
from zrun.cli.commands import ALIASES, COMMANDS, GROUPS
from zrun.core.errors import Exit, SpecError, ZrunError


class LazyCommands(click.Group):
    """A group whose members are named in a table and imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        entry = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        return entry.load() if entry else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        widest = max(map(len, COMMANDS))
        for title, entries in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), entry.help) for name, entry in entries.items()])


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"zrun {version('zrun')}")
        ctx.exit()


@click.group(
    cls=LazyCommands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version."
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run a distributed PyTorch job and keep it alive: see what broke, why, and go on where it was.

    JOB is a job's id, a unique beginning of it, or its name (the newest); none means the newest job.

    --json prints one JSON value; `logs --json`, `events --json` and `status --watch --json` one JSON object a line.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the console script's entry. Returns the exit code of SURFACE, "Commands"."""
    screen.mend_streams()
    try:
        return first_process.guard(lambda: _run(arguments))
    finally:
        screen.silence_broken()


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result: Any = cli.main(args=arguments, prog_name="zrun", standalone_mode=False)
        return int(result or 0)
    except ZrunError as error:
        return _tell(error)
    except click.ClickException as error:
        with suppress(BrokenPipeError):
            error.show()
        return Exit.WRONG_USE
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except SystemExit:
        # The reader of a pipe left (`zrun logs | head`): click makes an exit of its own of that. Nothing went wrong.
        if not hasattr(sys.stdout, "wrapped"):  # what click leaves behind where a pipe broke
            raise
        return Exit.DONE
    except OSError as error:
        where = f"{str(error.filename)[:200]}: " if error.filename else ""
        screen.say(f"zrun: {where}{error.strerror or error}")
        return Exit.OWN_FAILURE
    except Exception:  # the outermost frame: whatever comes here is a bug, and is said to be one
        traceback.print_exc()
        print("zrun: this is a bug in zrun, not in your job; please report it with the lines above", file=sys.stderr)
        return Exit.OWN_FAILURE


def _tell(error: ZrunError) -> int:
    if isinstance(error, SpecError) and error.problems:
        for problem in error.problems:
            screen.say(problem)
    screen.say(f"zrun: {error}")
    if error.hint:
        screen.say(f"  {error.hint}")
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
