"""Which faults a drill can bring about, `kind:rank=R,step=N` as people write them, and where unsaid ones come.

Pure. Knows nothing about how a fault comes about (zrun.worker.drill, outside.py) nor how a job survives it.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from zrun.core.appointments import Appointment
from zrun.core.errors import UsageError

NONE: Final = "none"
"""Instead of a kind: two undisturbed runs, to see whether the script itself does the same twice."""
_OPTION: Final = re.compile(r"(rank|step)=(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Kind:
    """`classes`: of the incident it must become, none if it must become no incident; `outside`: not from in a rank."""

    name: str
    classes: tuple[str, ...] = ()
    outside: bool = False
    of_a_rank: bool = True


KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind("kill", ("crash",)),
        Kind("exit", ("crash",)),
        Kind("raise", ("crash",)),
        Kind("hang", ("hang",)),
        Kind("spin", ("hang",)),
        Kind("stop", ("hang",)),
        Kind("oom", ("oom",)),
        Kind("slow"),
        Kind("poison", ("crash", "poison")),
        Kind("corrupt-checkpoint", ("crash",), outside=True),
        Kind("disk-full"),
        Kind("node-loss", ("node",), outside=True, of_a_rank=False),
        Kind("cut-off", ("node",), outside=True, of_a_rank=False),
        Kind("coordinator-kill", outside=True, of_a_rank=False),
        Kind("preempt", outside=True, of_a_rank=False),
    )
}


@dataclass(frozen=True, slots=True)
class Fault:
    """As it was asked for: None where nothing was said."""

    kind: Kind
    rank: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A fault with all that was unsaid filled in."""

    number: int
    kind: Kind
    rank: int | None
    step: int

    def __str__(self) -> str:
        return f"{self.kind.name} {'' if self.rank is None else f'rank={self.rank} '}step={self.step}"


DEFAULT: Final = (Fault(KINDS["kill"]), Fault(KINDS["raise"]))


def parse(text: str) -> Fault:
    """One `--fault`. Raises UsageError that names what is wrong and what would be right."""
    name, colon, rest = text.strip().partition(":")
    kind = KINDS.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, KINDS, n=1)
        raise UsageError(
            f"--fault {text}: there is no fault {name!r}",
            f"did you mean {near[0]}?" if near else f"there are {', '.join(KINDS)}",
        )
    if name == "cut-off":
        raise UsageError(
            f"--fault {text}: cutting a node off needs several machines, and a drill runs on this one",
            "node-loss ends the agent of this machine, which a job notices in the same way",
        )
    given: dict[str, int] = {}
    for part in rest.split(",") if colon else ():
        option = _OPTION.fullmatch(part.strip())
        if option is None or option[1] in given:
            raise UsageError(f"--fault {text}: {part.strip()!r} is not understood", f"for example {_example(kind)}")
        given[option[1]] = int(option[2])
    if "rank" in given and not kind.of_a_rank:
        raise UsageError(f"--fault {text}: {name} befalls no single rank", f"for example {_example(kind)}")
    if given.get("step") == 0:
        raise UsageError(f"--fault {text}: steps count from 1", f"for example {_example(kind)}")
    return Fault(kind, given.get("rank"), given.get("step"))


def _example(kind: Kind) -> str:
    return f"{kind.name}:{'rank=1,' if kind.of_a_rank else ''}step=20"


def parse_all(texts: Sequence[str]) -> list[Fault]:
    """All `--fault`; without any a kill and a raise. Raises UsageError."""
    if NONE in texts:
        if len(texts) > 1:
            raise UsageError("--fault none goes with no other fault", "leave one of them out")
        return []
    return [parse(text) for text in texts] or list(DEFAULT)


def check_ranks(faults: Sequence[Fault], ranks: int) -> None:
    """Raises UsageError for a rank that the job does not have."""
    for one in faults:
        if one.rank is not None and one.rank >= ranks:
            raise UsageError(
                f"--fault {one.kind.name}: there is no rank {one.rank}", f"the job has ranks 0 to {ranks - 1}"
            )


def placed(faults: Sequence[Fault], ranks: int, steps: int) -> list[Placed]:
    """Where each comes in a job of so many ranks and steps: unsaid ones on the last rank, evenly over the steps.

    Raises UsageError for a step that the job does not have.
    """
    check_ranks(faults, ranks)
    found: list[Placed] = []
    for index, one in enumerate(faults):
        step = one.step if one.step is not None else max(1, steps * (index + 1) // (len(faults) + 1))
        if step > steps:
            raise UsageError(
                f"--fault {one.kind.name}: there is no step {step}", f"undisturbed, the job has made {steps} steps"
            )
        rank = None if not one.kind.of_a_rank else ranks - 1 if one.rank is None else one.rank
        found.append(Placed(index, one.kind, rank, step))
    return found


def appointments(faults: Sequence[Placed]) -> tuple[Appointment, ...]:
    """Those that come from within a rank."""
    return tuple(
        Appointment(one.number, one.kind.name, one.rank, one.step)
        for one in faults
        if not one.kind.outside and one.rank is not None
    )


def overrides(faults: Sequence[Placed]) -> list[str]:
    """`--set` that a fault needs so that it is what it says."""
    corrupts = any(one.kind.name == "corrupt-checkpoint" for one in faults)
    return ["checkpoint.memory_every=off"] if corrupts else []


def renumbered(faults: Sequence[Placed]) -> list[Placed]:
    """In the order of their steps."""
    ordered = sorted(faults, key=lambda one: one.step)
    return [replace(one, number=number) for number, one in enumerate(ordered)]
