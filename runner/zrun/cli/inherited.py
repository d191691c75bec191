"""What a job inherits from the shell it is launched from, where that is not what a person would guess: said once.

Names that a launcher owns are left out, sizes that disagree with the job file lose, a narrow CPU mask stays.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from zrun.cli import screen
from zrun.core import env
from zrun.core.errors import UsageError
from zrun.spec.job import JobSpec

_SHOWN: Final = 12


def tell(spec: Mapping[str, Any]) -> None:
    """One line for each thing a person should know; nothing if there is none. `spec`: as in spec.json."""
    given = env.snapshot()
    nodes, nproc = (spec.get("nodes_min", 1), spec.get("nodes_max", 1)), spec.get("nproc_per_node")
    for text in (*_left_out(given), *_disagreeing(given, nodes, nproc), *_bound(nproc)):
        screen.say(f"zrun: {text}", "yellow")


def by_inheritance(spec: JobSpec) -> JobSpec:
    """A value of `-e` that is no UTF-8 cannot stand in a job's file: the job inherits it from us instead.

    Raises UsageError for an argument, a path or a name that is none.
    """
    others = {name: value for name, value in spec.env.items() if not env.is_text(value)}
    for name, value in others.items():
        env.put(name, value)
    spec = msgspec.structs.replace(spec, env={name: value for name, value in spec.env.items() if name not in others})
    for what, texts in {"run": spec.run, "workdir": [spec.workdir], "env": spec.env}.items():
        for text in texts:
            if not env.is_text(text):
                raise UsageError(
                    f"{what}: {screen.one_line(text, 80)} is no UTF-8", "hand it over in a file or a variable"
                )
    return spec


def _left_out(given: Mapping[str, str]) -> Iterator[str]:
    _, dropped = env.without_launchers(given)
    names = [name for name in dropped if not name.startswith("ZRUN_")]  # ours: for this command, or of a job around it
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield f"left out of the ranks' environment, for zrun says who they are: {', '.join(names[:_SHOWN])}{more}"


def _disagreeing(given: Mapping[str, str], nodes: tuple[int, int], nproc: Any) -> Iterator[str]:
    if not isinstance(nproc, int):
        return
    worlds = [count * nproc for count in nodes]
    wrong = [f"{name}={given[name]}" for name in env.WORLD_SIZES
             if given.get(name, "").isdigit() and not worlds[0] <= int(given[name]) <= worlds[1]]  # fmt: skip
    if wrong:
        ranks = " to ".join(str(count) for count in sorted(set(worlds))) + (" rank" if worlds[1] == 1 else " ranks")
        yield f"warning: {', '.join(wrong)} in your environment, but the job has {ranks}: what the job says counts"


def _bound(nproc: Any) -> Iterator[str]:
    """As under torchrun, ranks keep the CPU mask of the shell: which cores are meant is the user's to say."""
    here, machine = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    if isinstance(nproc, int) and here < min(nproc, machine):
        yield (f"warning: this shell may use {here} of {machine} CPUs (taskset, a scheduler's binding), "
               f"and so may all {nproc} ranks together")  # fmt: skip
