"""What an expression in a function's bytecode names, as far as that can be known without running anything.

Names, attributes and tuples of them; of a call, what is called. Everything else is UNKNOWN. Attributes are looked up
without the object's help, so no code of the script's runs.
"""

import dis
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

UNKNOWN: Final = object()
JUMPS: Final = frozenset({*dis.hasjrel, *dis.hasjabs, *getattr(dis, "hasjump", ())})

_GLOBALS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_LOCALS: Final = frozenset({"LOAD_NAME", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_DEREF"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_CALLS: Final = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX"})


class Names(NamedTuple):
    """Where a function finds its names. `here` is asked for only if a local one is needed."""

    around: Mapping[str, Any]
    builtin: Mapping[str, Any]
    here: Callable[[], Mapping[str, Any]]

    @classmethod
    def of_frame(cls, frame: FrameType) -> "Names":
        return cls(frame.f_globals, frame.f_builtins, lambda: frame.f_locals)

    @classmethod
    def of_globals(cls, around: Mapping[str, Any]) -> "Names":
        """For code that is not running: its local names are unknown."""
        builtin = around.get("__builtins__", {})
        return cls(around, builtin if isinstance(builtin, Mapping) else vars(builtin), dict)

    def load(self, instruction: dis.Instruction) -> Any:
        """The value one loading instruction pushes."""
        name = instruction.argval
        if instruction.opname == "LOAD_CONST" or (
            instruction.opname == "LOAD_COMMON_CONSTANT" and isinstance(name, type)
        ):
            return name
        if not isinstance(name, str):
            return UNKNOWN
        if instruction.opname in _LOCALS and (here := self.here()) and name in here:
            return here[name]
        if instruction.opname in _GLOBALS:
            return self.around.get(name, self.builtin.get(name, UNKNOWN))
        return UNKNOWN


def attribute(value: Any, name: str) -> Any:
    """Without __getattr__, properties and the like."""
    if value is UNKNOWN:
        return UNKNOWN
    if isinstance(value, ModuleType):
        return vars(value).get(name, UNKNOWN)
    found = inspect.getattr_static(value, name, UNKNOWN)
    return found.__func__ if isinstance(found, staticmethod | classmethod) else found


def ending_at(code: Sequence[dis.Instruction], last: int, names: Names) -> Any:
    """The value of the expression whose last instruction is number `last`: a name, attributes of it, or a tuple."""
    return _ending_at(code, last, names)[0]


def _ending_at(code: Sequence[dis.Instruction], last: int, names: Names) -> tuple[Any, int]:
    """The value, and the number of the expression's first instruction (of no meaning with UNKNOWN)."""
    if last < 0:
        return UNKNOWN, last
    instruction = code[last]
    if instruction.opname in _ATTRIBUTES:
        base, first = _ending_at(code, last - 1, names)
        return attribute(base, str(instruction.argval)), first
    if instruction.opname == "BUILD_TUPLE":
        parts: list[Any] = []
        first = last
        for _ in range(instruction.arg or 0):
            part, first = _ending_at(code, first - 1, names)
            if part is UNKNOWN:
                return UNKNOWN, first
            parts.append(part)
        return tuple(reversed(parts)), first
    return names.load(instruction), last


def called_at(code: Sequence[dis.Instruction], last: int, names: Names) -> Any:
    """What the call that is instruction number `last` calls; UNKNOWN too if it is no call."""
    first = _first_of_call(code, last)
    if first is None:
        return UNKNOWN
    if code[first].opname == "PUSH_NULL":
        first += 1
    value = names.load(code[first])
    for instruction in code[first + 1 : last]:
        if instruction.opname not in _ATTRIBUTES:
            break
        value = attribute(value, str(instruction.argval))
    return value


def _first_of_call(code: Sequence[dis.Instruction], last: int) -> int | None:
    """Walk back until all that the call takes from the stack has been put there; not across a jump."""
    if not 0 <= last < len(code) or code[last].opname not in _CALLS:
        return None
    missing = 1
    for number in range(last, -1, -1):
        instruction = code[number]
        if instruction.opcode in JUMPS:
            return None
        missing -= dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if missing <= 0:
            return number if missing == 0 else None
    return None
