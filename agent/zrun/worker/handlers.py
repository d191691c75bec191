"""What becomes of an exception in one function: does every way on lead out of it, or may it be caught here?

Read from the bytecode of 3.11 to 3.14, nothing is run. Whatever is not understood counts as "may be caught". What the
script does in a `finally` could always raise something else, or kill the process: that is an exception leaving as well.
"""

import builtins
import dis
import io
import os
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from enum import Enum
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from zrun.worker.exception_table import guarded_ranges, handler_of
from zrun.worker.named_values import JUMPS, UNKNOWN, Names, called_at, ending_at


class Leaves(Enum):
    """How an exception leaves a function."""

    MAY_NOT = "it may be caught"
    ITSELF = "it leaves"
    ANOTHER = "it, or one raised in its place, leaves"


_RAISES: Final = frozenset({"RERAISE", "RAISE_VARARGS"})
_GOES_ELSEWHERE: Final = frozenset({
    "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP", "JUMP_NO_INTERRUPT",
})  # fmt: skip
_UNSURE: Final = frozenset({
    "RETURN_VALUE", "RETURN_CONST", "CHECK_EG_MATCH", "PREP_RERAISE_STAR", "END_ASYNC_FOR", "CLEANUP_THROW",
    "RETURN_GENERATOR", "INTERPRETER_EXIT",
})  # fmt: skip
"""Ways out without an exception, and handlers that take a part of it or ask what it is (except*, async)."""
_OF_NO_EFFECT: Final = frozenset({"EXTENDED_ARG", "CACHE", "NOP", "NOT_TAKEN"})
_ENDS_IN: Final = (sys.exit, os._exit, os.abort)
_HARMLESS_MODULES: Final = frozenset({"_io", "_thread"})
"""Files and locks, whose __exit__ is written in C."""
_NEAR: Final = 8
"""Instructions between a with statement's expression and the range that its handler guards."""


class Function(NamedTuple):
    """One code object, ready to be walked."""

    code: list[dis.Instruction]
    offsets: list[int]
    handlers: list[Any]

    @classmethod
    def of(cls, code: CodeType) -> "Function":
        return _function(code)

    def number_at(self, offset: int) -> int:
        """Of the instruction that is at work when a frame says `f_lasti`."""
        return bisect_right(self.offsets, offset) - 1

    def number_from(self, offset: int) -> int:
        """Of the first instruction at or after a jump's target."""
        return bisect_left(self.offsets, offset)


@lru_cache(maxsize=64)
def _function(code: CodeType) -> Function:
    found = [i for i in dis.get_instructions(code) if i.opname not in _OF_NO_EFFECT]
    return Function(found, [i.offset for i in found], guarded_ranges(code.co_exceptiontable))


class Course:
    """The course of `error` through one function whose names are `names`."""

    def __init__(self, code: CodeType, names: Names, error: BaseException) -> None:
        self._function, self._names, self._error = Function.of(code), names, error

    def raised_at(self, offset: int, how: Leaves) -> Leaves:
        """It comes out of the instruction at `offset`. `how` it came here: as itself, or perhaps as another."""
        target = handler_of(self._function.handlers, offset)
        if target is None:
            return how
        return self._follow([(self._function.number_from(target), how)])

    def handled_at(self, offset: int, how: Leaves) -> Leaves:
        """Its handler is at work at `offset`: in an except body, a finally, or in the __exit__ of a with."""
        return self._follow([(self._function.number_at(offset), how)])

    def after_exit_at(self, offset: int, how: Leaves) -> Leaves:
        """The __exit__ called at `offset` will return something false."""
        return self._follow([(self._after_jump(self._function.number_at(offset)), how)])

    def taken_by_c(self, offset: int, called: CodeType, how: Leaves) -> bool:
        """What the interpreter's own C code asks with an exception as one of the answers: hasattr, old iteration."""
        number = self._function.number_at(offset)
        at_work, another = self._function.code[number].opname, how is Leaves.ANOTHER
        if called.co_name == "__next__" and another:
            return True
        if called.co_name == "__getitem__" and (another or isinstance(self._error, IndexError)):
            return not at_work.startswith("BINARY")
        if not another and not isinstance(self._error, AttributeError):
            return False
        asks = called_at(self._function.code, number, self._names) in (hasattr, getattr)
        return asks or at_work in ("LOAD_ATTR", "LOAD_METHOD")

    def _follow(self, ways: list[tuple[int, Leaves]]) -> Leaves:
        """Walk all ways on; each must end in a raise that no handler of this function takes for good."""
        seen: set[tuple[int, Leaves]] = set()
        out = Leaves.ITSELF
        while ways:
            way = ways.pop()
            if way in seen:
                continue
            seen.add(way)
            number, how = way
            instruction = self._function.code[number] if 0 <= number < len(self._function.code) else None
            if instruction is None or instruction.opname in _UNSURE or self._swallows(number):
                return Leaves.MAY_NOT
            if instruction.opname in _RAISES or self._ends_the_script(number):
                how = how if instruction.opname == "RERAISE" or instruction.arg == 0 else Leaves.ANOTHER
                target = handler_of(self._function.handlers, instruction.offset)
                if target is not None:
                    ways.append((self._function.number_from(target), how))
                elif how is Leaves.ANOTHER:
                    out = how
            else:
                onward = list(self._ways_on(number, how))
                if not onward:
                    return Leaves.MAY_NOT
                ways += onward
        return out

    def _ways_on(self, number: int, how: Leaves) -> Iterator[tuple[int, Leaves]]:
        """Nothing: it cannot be known."""
        instruction = self._function.code[number]
        if instruction.opname == "WITH_EXCEPT_START":
            if self._exit_is_harmless(number):
                yield self._after_jump(number), how
        elif instruction.opname == "CHECK_EXC_MATCH":
            yield from self._clause(number, how)
        elif instruction.opname in _GOES_ELSEWHERE:
            yield self._function.number_from(int(instruction.argval)), how
        else:
            yield number + 1, how
            if instruction.opcode in JUMPS:
                yield self._function.number_from(int(instruction.argval)), how

    def _after_jump(self, number: int) -> int:
        """Past the conditional jump that follows the instruction (3.14 turns the value into a bool before)."""
        while self._function.code[number].opcode not in JUMPS:
            number += 1
        return number + 1

    def _clause(self, number: int, how: Leaves) -> Iterator[tuple[int, Leaves]]:
        """An except clause: is it for this exception?"""
        code = self._function.code
        past = self._after_jump(number)
        body, next_clause = (past, how), (self._function.number_from(int(code[past - 1].argval)), how)
        if how is Leaves.ITSELF:
            wanted = ending_at(code, number - 1, self._names)
            if _is_clause(wanted):
                yield body if _matches(self._error, wanted) else next_clause
                return
        yield from (body, next_clause)

    def _swallows(self, number: int) -> bool:
        """The exception is put away, and not only to be raised on."""
        code = self._function.code
        return code[number].opname == "POP_EXCEPT" and code[number + 1].opname != "RERAISE"

    def _ends_the_script(self, number: int) -> bool:
        """A call of sys.exit, exit, os._exit or os.abort."""
        called = called_at(self._function.code, number, self._names)
        if called is UNKNOWN:
            return False
        quitters = (*_ENDS_IN, *(getattr(builtins, name, sys.exit) for name in ("exit", "quit")))
        return any(called is one for one in quitters)

    def _exit_is_harmless(self, number: int) -> bool:
        """Will the __exit__ called by the WITH_EXCEPT_START here surely return something false?"""
        code, handler = self._function.code, self._function.code[number - 1].offset
        begins = [entry.begin for entry in self._function.handlers if entry.target == handler]
        if not begins:
            return False
        start = self._function.number_from(min(begins))
        for entry in range(start - 1, max(-1, start - 1 - _NEAR), -1):
            if code[entry].opname == "BEFORE_WITH" or (
                code[entry].opname == "COPY" and code[entry + 1].opname == "LOAD_SPECIAL"
            ):
                return self._lets_pass(entry - 1)
        return False

    def _lets_pass(self, last: int) -> bool:
        """The context manager that the expression ending at `last` makes."""
        called = called_at(self._function.code, last, self._names)
        if called is not UNKNOWN:
            return made_by_is_harmless(called, self._error)
        manager = ending_at(self._function.code, last, self._names)
        return manager is not UNKNOWN and _class_is_harmless(type(manager))


def _is_clause(wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return all(_is_clause(one) for one in wanted)
    return isinstance(wanted, type)


def _matches(error: BaseException, wanted: Any) -> bool:
    """As python does: by the classes it derives from, whatever isinstance was taught."""
    if isinstance(wanted, tuple):
        return any(_matches(error, one) for one in wanted)
    return wanted in type(error).__mro__


def made_by_is_harmless(called: Callable[..., Any], error: BaseException) -> bool:
    """Of a class, `open`, or a function under contextlib.contextmanager: does what it makes let `error` pass?"""
    if isinstance(called, type):
        return _class_is_harmless(called)
    if called in (open, io.open):
        return True
    inner = getattr(called, "__wrapped__", None)
    if (
        isinstance(called, FunctionType)
        and isinstance(inner, FunctionType)
        and called.__code__.co_filename.endswith("contextlib.py")
    ):
        return _generator_is_harmless(inner, error)
    return False


def _class_is_harmless(kind: type) -> bool:
    exit_ = next((vars(base)["__exit__"] for base in kind.__mro__ if "__exit__" in vars(base)), None)
    if isinstance(exit_, FunctionType):
        return returns_nothing(exit_.__code__)
    return exit_ is not None and kind.__module__ in _HARMLESS_MODULES


def _generator_is_harmless(function: FunctionType, error: BaseException) -> bool:
    """The exception comes out of its yield: whichever that is, does it leave?"""
    course = Course(function.__code__, Names.of_globals(function.__globals__), error)
    yields = [i.offset for i in Function.of(function.__code__).code if i.opname == "YIELD_VALUE"]
    return bool(yields) and all(course.raised_at(at, Leaves.ITSELF) is not Leaves.MAY_NOT for at in yields)


@lru_cache(maxsize=64)
def returns_nothing(code: CodeType) -> bool:
    """Each of its returns gives None or False, written there as such."""
    function = Function.of(code)
    jumped_to = {int(i.argval) for i in function.code if i.opcode in JUMPS and isinstance(i.argval, int)}
    for number, instruction in enumerate(function.code):
        if instruction.opname == "RETURN_CONST" and instruction.argval:
            return False
        if instruction.opname == "RETURN_GENERATOR":
            return False
        if instruction.opname == "RETURN_VALUE":
            before = function.code[number - 1]
            if before.opname != "LOAD_CONST" or before.argval or instruction.offset in jumped_to:
                return False
    return True
