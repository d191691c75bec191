"""`zrun completion SHELL`: the script that teaches a shell zrun's commands, options and jobs."""

import click

from zrun.cli import screen


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script; for example `source <(zrun completion bash)`."""
    from click.shell_completion import get_completion_class

    from zrun.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None
    screen.put(found(cli, {}, "zrun", "_ZRUN_COMPLETE").source())
    return 0
