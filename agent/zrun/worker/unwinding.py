"""Will an exception in flight certainly leave the script? Seen from another thread, while its cleanup still runs.

The outermost frame of its traceback is the one whose handler is at work; from there outwards each frame is asked
what it will do with it (handlers.py), up to the frame that runs the script. One `except` that may be for it, one
`with` whose __exit__ may swallow it, or anything not understood: then it is not certain, and nobody acts on it.

Knows nothing about ranks and notes.
"""

import contextlib
import inspect
import sys
from enum import Enum
from types import CodeType, FrameType
from typing import Any, Final

from zrun.worker.handlers import Course, Function, Leaves, returns_nothing
from zrun.worker.named_values import Names

_FOR_CONTROL: Final = (StopIteration, StopAsyncIteration, GeneratorExit)
_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_MANAGER_EXIT: Final = contextlib._GeneratorContextManager.__exit__.__code__  # noqa: SLF001 - to know its frame


def in_flight(thread: int) -> BaseException | None:
    """The exception that `thread` is handling or unwinding; the value's form differs between Python versions."""
    found: Any = sys._current_exceptions().get(thread)  # noqa: SLF001 - documented, though underscored
    value = found[1] if isinstance(found, tuple) else found
    return value if isinstance(value, BaseException) else None


def place_of(error: BaseException) -> tuple[int, int]:
    """Changes as the exception gets further out, and as its handler moves on."""
    trace = error.__traceback__
    return (id(trace.tb_frame), trace.tb_frame.f_lasti) if trace is not None else (0, 0)


class Fate(Enum):
    """What is sure of an exception in flight."""

    OPEN = "nothing"
    CAUGHT = "it is in an except clause, or in what swallows it, and the script may go on from there"
    LEAVES = "it leaves the script"


def fate_of(error: BaseException, thread: int, script: CodeType) -> Fate:
    """`error` is in flight in `thread`; `script` is the code of the function that called the script."""
    if isinstance(error, _FOR_CONTROL):
        return Fate.OPEN
    before = place_of(error)
    fate = _fate(error, sys._current_frames().get(thread), script)  # noqa: SLF001 - documented
    # The thread may have run on meanwhile: then what was read belongs to two moments.
    return fate if in_flight(thread) is error and place_of(error) == before else Fate.OPEN


def _fate(error: BaseException, innermost: FrameType | None, script: CodeType) -> Fate:
    trace = error.__traceback__
    frame, called = innermost, None
    while trace is not None and frame is not None and frame is not trace.tb_frame:
        frame, called = frame.f_back, frame
    if trace is None or frame is None:
        return Fate.OPEN
    how = _handled(frame, called, error)
    if how is Leaves.MAY_NOT:
        return Fate.CAUGHT
    while frame.f_code is not script:
        if frame.f_code.co_flags & _ASYNC or frame.f_code.co_name == "__del__" or frame.f_back is None:
            return Fate.OPEN
        frame, called = frame.f_back, frame
        if frame.f_code is not script:
            how = _arrives(frame, called, error, how)
        if how is Leaves.MAY_NOT:
            return Fate.OPEN
    return Fate.LEAVES


def _course(frame: FrameType, error: BaseException) -> Course:
    return Course(frame.f_code, Names.of_frame(frame), error)


def _handled(frame: FrameType, called: FrameType | None, error: BaseException) -> Leaves:
    """In the frame whose handler is at work."""
    if frame.f_code is _MANAGER_EXIT:
        return Leaves.MAY_NOT
    exit_ = called.f_code if called is not None and called.f_code.co_name == "__exit__" else None
    if exit_ is not None and exit_ is not _MANAGER_EXIT and _in_exit(frame) and returns_nothing(exit_):
        return _course(frame, error).after_exit_at(frame.f_lasti, Leaves.ITSELF)
    return _course(frame, error).handled_at(frame.f_lasti, Leaves.ITSELF)


def _arrives(frame: FrameType, called: FrameType, error: BaseException, how: Leaves) -> Leaves:
    """It leaves `called`, which `frame` had called."""
    if frame.f_code is _MANAGER_EXIT:
        return how  # a generator under contextlib.contextmanager let it pass: so does its __exit__
    if how is Leaves.ITSELF and called.f_code is _MANAGER_EXIT and _in_exit(frame):
        return _course(frame, error).after_exit_at(frame.f_lasti, how)
    course = _course(frame, error)
    if course.taken_by_c(frame.f_lasti, called.f_code, how):
        return Leaves.MAY_NOT
    return course.raised_at(frame.f_lasti, how)


def _in_exit(frame: FrameType) -> bool:
    function = Function.of(frame.f_code)
    return function.code[function.number_at(frame.f_lasti)].opname == "WITH_EXCEPT_START"
