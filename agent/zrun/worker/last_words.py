"""What a rank says of the exception that ends it: root of the chain first, and the user's own line.

It formats and decides nothing: whether the words count is up to the agent (they do if the rank dies or stops).
"""

import contextlib
import json
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import zrun.core
from zrun.core import env, user_code
from zrun.core.deck import Flag
from zrun.core.notes import NoteKind
from zrun.core.private import write_text
from zrun.core.user_code import UserCode
from zrun.core.words import shortened
from zrun.worker.rank import ThisRank
from zrun.worker.term import EndedByAgent

LONGEST_MESSAGE: Final = 4_000
LONGEST_TRACEBACK: Final = 64 << 10
"""Characters of a traceback that are kept: its beginning (the root) and its end."""


_INTERRUPTIONS: Final = 20
_LOADER_DEATH: Final = "DataLoader worker"
_REAPED_S: Final = 0.2
"""From a torn connection to the moment at which the kernel says that the process behind it is dead."""
_LOADER_SAID: Final = "_zrun_loader_said"
_RAISED_IN: Final = "_zrun_raised_in"
_IN_WORKER: Final = re.compile(r"\ACaught \w+ in .*\.\nOriginal (Traceback .*)", re.DOTALL)
_FRAME: Final = re.compile(r'^ +File "(.+)", line (\d+)', re.MULTILINE)


_ROOMS: Final = tuple(user_code.folder(Path(room).parent) for room in (*zrun.core.__path__, str(Path(__file__).parent)))


def chain(error: BaseException) -> list[BaseException]:
    """The exceptions that led to `error`, root first, `error` last."""
    found: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and not any(step is seen for seen in found):
        found.append(step)
        if isinstance(step, BaseExceptionGroup):
            step = step.exceptions[0]
        else:
            step = step.__cause__ or (None if step.__suppress_context__ else step.__context__)
    return found[::-1]


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def where(errors: list[BaseException]) -> str | None:
    """file:line of the innermost frame in the user's own code, of the first exception that has one."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    users = UserCode((user_code.folder(Path(script).parent),) if script else (), _ROOMS)
    for error in errors:
        frames = [*_frames(error.__traceback__), *_worker_frames(error)]
        if isinstance(error, SyntaxError) and error.filename:
            frames.append((error.filename, error.lineno or 0))
        theirs = users.innermost(frames)
        if theirs is not None:
            return _short(theirs)
    everything = list(_frames(errors[0].__traceback__))
    return _short(everything[-1]) if everything else None


def _from_worker(error: BaseException) -> re.Match[str] | None:
    """torch raises a loader worker's error again in the rank, with the worker's traceback in its message."""
    return _IN_WORKER.search(_text(error)) if error.args else None


def _worker_frames(error: BaseException) -> list[tuple[str, int]]:
    found = _from_worker(error)
    return [(file, int(line)) for file, line in _FRAME.findall(found[1])] if found else []


def _short(place: tuple[str, int]) -> str:
    try:
        return user_code.shown(place, Path.cwd())
    except OSError:  # the folder was removed under the script
        return f"{place[0]}:{place[1]}"


def type_name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as second:  # a __str__ of the user's may do anything; last words come nevertheless
        return f"<{type_name(second)} in __str__>"


def exit_code_of(error: BaseException) -> int:
    """What python ends with when `error` leaves the script."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def describe(error: BaseException) -> dict[str, Any]:
    """exception, message, where, traceback, exit_code; a bare SystemExit has no exception, it is an exit."""
    errors = chain(error)
    root = errors[0]
    trace = "".join(traceback.format_exception(error))
    worker = _from_worker(root)
    message = _text(root) if worker is None else worker[1].rstrip().rpartition("\n")[2].partition(": ")[2]
    if isinstance(root, SystemExit):
        message = "" if isinstance(root.code, int) else message
    return {
        "exception": None if isinstance(root, SystemExit) else type_name(root),
        "message": shortened(message, LONGEST_MESSAGE) or None,
        "where": where(errors), "traceback": shortened(trace, LONGEST_TRACEBACK), "exit_code": exit_code_of(error),
    }  # fmt: skip


def _described(error: BaseException) -> dict[str, Any]:
    """`describe`, or less where that fails: memory may have ended, and exceptions are the script's own code."""
    try:
        found = describe(error)
    except Exception as second:
        found = {
            "exception": type_name(error), "message": f"<{type_name(second)} while it was described>", "where": None,
            "traceback": None, "exit_code": exit_code_of(error),
        }  # fmt: skip
    death = _loader_death(chain(error))
    if death and death not in str(found["traceback"]):
        found["traceback"] = f"{found['traceback'] or ''}\nRuntimeError: {death}\n"
    return {**found, "exception": "RuntimeError", "message": death} if death else found


def _loader_death(errors: list[BaseException]) -> str:
    """What torch says of a loader worker that was killed: the rank may feel it first as a torn connection.

    torch says it only once, in the main thread or to whoever asks first, so it is kept on the root.
    """
    root = errors[0]
    told = next((text for one in errors if _LOADER_DEATH in (text := _text(one)) and one.args), "")
    torn = isinstance(root, ConnectionError | EOFError | FileNotFoundError) and any(
        "/torch/utils/data/" in file for file, _ in _frames(root.__traceback__)
    )
    ask = getattr(getattr(sys.modules.get("torch"), "_C", None), "_error_if_any_worker_fails", None)
    until = time.monotonic() + _REAPED_S
    while not told and torn and ask is not None and time.monotonic() < until:
        told = getattr(root, _LOADER_SAID, "")
        try:
            ask()
        except RuntimeError as death:
            told = str(death)
        time.sleep(_REAPED_S / 40)
    if told and torn:
        _keep_loader_death(root, told)
    return told if torn else ""


def _keep_loader_death(root: BaseException, told: str) -> None:
    with contextlib.suppress(Exception):  # an exception class of the user's may refuse attributes
        setattr(root, _LOADER_SAID, told)


def of_thread(rank: ThisRank, error: BaseException, name: str) -> None:
    """An exception ended another thread than the main one: if the process dies of that, it was the cause."""
    rank.note(NoteKind.THREAD_ENDED, **_described(error), **raised_in(rank, error), thread=name)


def is_failure(error: BaseException) -> bool:
    """False for an end with code 0 and for an end the agent asked for while nothing else was wrong."""
    return exit_code_of(error) != 0 and not isinstance(chain(error)[0], EndedByAgent)


def raised_in(rank: ThisRank, error: BaseException) -> dict[str, Any]:
    """phase, step, batch, collective and time at which `error` was first seen; what the rank enters while it unwinds is
    none.

    It is kept on the root of the chain, the one object that lives as long as the story does. Once the rank has begun a
    later step, that exception was handled.
    """
    deck = rank.deck
    step = deck.step() if deck else None
    root = chain(error)[0]
    kept: dict[str, Any] | None = getattr(root, _RAISED_IN, None)
    if kept is not None and kept["step"] == step:
        return kept
    phase, own = rank.phase()
    place = {
        "at": time.time(), "phase": own or phase.label, "step": step, "batch": deck.batch() if deck else None,
        "collective": deck.collective() if deck else None,
    }  # fmt: skip
    try:
        setattr(root, _RAISED_IN, place)
    except Exception:  # noqa: S110 - an exception class of the user's may refuse attributes: then nothing is kept
        pass
    return place


def leave(rank: ThisRank, error: BaseException, *, final: bool) -> None:
    """Write the note: final when the exception has left the script, a candidate while it still unwinds."""
    rank.told, rank.over = id(error), rank.over or final
    if rank.notes is None:
        return
    rank.note(NoteKind.LAST_WORDS, **_described(error), **raised_in(rank, error), final=final)
    if final:
        rank.raise_flag(Flag.LAST_WORDS)


def leave_for_good(rank: ThisRank, error: BaseException) -> None:
    """Final words, written by a thread of their own.

    A signal handler of the script's may raise in the main thread, wherever that is: torch's for a loader worker that
    died, an alarm, a Ctrl-C.
    """
    rank.over = True
    work = threading.Thread(target=leave, args=(rank, error), kwargs={"final": True}, name="zrun-last-words")
    for _ in range(_INTERRUPTIONS):
        try:
            if work.ident is None:
                work.start()
            work.join()
            break
        except Exception as second:  # the handler's own error; the one that ended the script is told first
            if work.ident is None and "start new thread" in _text(second):
                break
            if _LOADER_DEATH in _text(second):
                _keep_loader_death(chain(error)[0], _text(second))
    if work.ident is None:
        leave(rank, error, final=True)


def write_error_file(error: BaseException) -> None:
    """What torch's `@record` writes, unless the script used it itself."""
    path = env.get("TORCHELASTIC_ERROR_FILE")
    if not path or isinstance(error, SystemExit) or Path(path).exists():
        return
    callstack = "".join(traceback.format_exception(error))
    extra = {"py_callstack": callstack, "timestamp": str(int(time.time()))}
    try:
        write_text(
            Path(path),
            json.dumps({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}),
        )
    except Exception:  # noqa: S110 - a full disk or a broken __str__ must not hide the error itself, printed next
        pass
