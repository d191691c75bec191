"""`zrun completion SHELL`: the script that teaches a shell zrun's commands, options and jobs."""

import click

from zrun.cli import screen
from zrun.cli.options import json_option


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion(shell: str, as_json: bool) -> int:
    """Print the completion script; for example `source <(zrun completion bash)`."""
    from click.shell_completion import get_completion_class

    from zrun.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None
    script = found(cli, {}, "zrun", "_ZRUN_COMPLETE").source()
    screen.put_json({"shell": shell, "script": script}) if as_json else screen.put(script)
    return 0
