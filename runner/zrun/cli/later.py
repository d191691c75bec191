"""Commands that SURFACE promises and this version does not have: they say so and end with exit code 2."""

from typing import NoReturn

import click

from zrun.core.errors import UsageError

_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}


def not_yet(name: str) -> click.Command:
    """A command that accepts anything and refuses."""

    @click.command(name, context_settings=_ANYTHING, help="Not yet in this version.")
    @click.argument("_arguments", nargs=-1, type=click.UNPROCESSED)
    def refuse(_arguments: tuple[str, ...]) -> NoReturn:
        raise UsageError(f"`zrun {name}` is not yet in this version")

    return refuse


top = not_yet("top")
render = not_yet("render")
doctor = not_yet("doctor")
