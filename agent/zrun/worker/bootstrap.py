"""The order in which a rank comes to life: deck, notes, output, dumps, signals, last words; then torch, seeds and
recorder; then the user's script, as if it had been started alone.

Without an agent's variables nothing is armed and the script just runs.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from zrun.core import env
from zrun.core.deck import Flag, Phase
from zrun.core.manifest import newest_step
from zrun.core.notes import NoteKind
from zrun.core.place import place_of
from zrun.core.runfolder import LEARNED_MODULES
from zrun.worker import dumps, last_words, output, segments
from zrun.worker.flight import FlightDump
from zrun.worker.imports_told import ImportsTold
from zrun.worker.rank import ThisRank, arm, this_rank
from zrun.worker.script import load_module, load_script, without_our_frames
from zrun.worker.term import Term
from zrun.worker.watcher import Watcher


def main(arguments: list[str]) -> None:
    """Become the rank and run `arguments` (a script or -m module, and its arguments). Ends the process."""
    interrupted: list[bool] = []
    over: list[int] = []
    atexit.register(_end_by_signal, interrupted)
    atexit.register(_skip_teardown, over)
    rank = _come_to_life(arguments)
    try:
        script = _load(arguments)
        _ready_torch(rank)
        rank.enter_phase(Phase.SETUP)
        script()
    except BaseException as error:  # whatever leaves the script, its last words come first
        ending = _last_words(rank, error, interrupted)
    else:
        ending = None
        _finished(rank)
    if rank.deck is not None and (ending is None or last_words.exit_code_of(ending) == 0):
        over.append(os.getpid())
    if ending is not None:
        raise ending


def _skip_teardown(over: list[int]) -> None:
    """The last exit function of a rank whose script ended well: leave before the interpreter is taken down.

    By now threads are joined and the script's exit functions have run. What is left to python is freeing memory, and in
    that torch's and gloo's threads now and then abort the process ("terminate called without an active exception").
    """
    if over != [os.getpid()]:
        return  # ended otherwise, or a forked child
    if (host := sys.modules.get("zrun.worker.store_host")) is not None:
        host.stay(this_rank())
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # closed or replaced by the script
    ctypes.CDLL(None).fflush(None)
    os._exit(0)


def _come_to_life(arguments: list[str]) -> ThisRank:
    rank, folder = arm()
    rank.note(NoteKind.STARTED, pid=os.getpid(), python=sys.version.split()[0], argv=arguments)
    if folder is not None:
        output.reopen(folder, rank.rank)
        rank.spooled = True
    output.unbuffer()
    _tell_resume_step(rank)
    dumps.allow_ptrace()
    if place := env.get(env.SHM_DIR):
        segments.note_what_is_made(Path(place))
    if folder is not None:
        dumps.arm_dumps(folder / f"rank-{rank.rank}.stacks")
        rank.raise_flag(Flag.DUMP_READY)
    if rank.deck is not None:
        term = Term(rank)
        term.arm()
        Watcher(rank, term, main.__code__).start()
        _hear_of_threads(rank)
    return rank


def _hear_of_threads(rank: ThisRank) -> None:
    """An exception that ends one of the script's threads, before python prints it."""
    printing = threading.excepthook

    def told(ended: threading.ExceptHookArgs) -> None:
        if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit) and not rank.child:
            last_words.of_thread(rank, ended.exc_value, ended.thread.name if ended.thread is not None else "")
        printing(ended)

    threading.excepthook = told


def _tell_resume_step(rank: ThisRank) -> None:
    """ZRUN_RESUME_STEP, for the script's first lines: the newest checkpoint as it looks; Session corrects it."""
    directory, resume = env.get(env.CHECKPOINT_DIR), rank.settings.resume
    if not directory:
        return
    job = env.get(env.JOB) if rank.settings.fresh or resume != "auto" else None  # then only this run's own count
    step = newest_step(place_of(directory), job) if resume != "never" else None
    if step is None and resume not in ("auto", "never"):
        step = newest_step(place_of(resume))
    env.put(env.RESUME_STEP, str(step or 0))


def _load(arguments: list[str]) -> Callable[[], None]:
    if not arguments or (arguments[0] == "-m" and len(arguments) == 1):
        print("usage: python -m zrun.worker SCRIPT ARGS | -m MODULE ARGS", file=sys.stderr)
        raise SystemExit(2)
    if arguments[0] == "-m":
        return partial(_run_module, arguments[1], arguments[2:])
    return load_script(arguments[0], arguments[1:])


def _run_module(name: str, arguments: list[str]) -> None:
    """Looked for only after the seeds are set: finding a module imports the packages it lies in."""
    load_module(name, arguments)()


def _ready_torch(rank: ThisRank) -> None:
    try:
        from zrun.worker import late_imports, recorder, step_count
        from zrun.worker.seeds import seed_everything

        seed_everything(int(env.get(env.SEED) or rank.settings.seed))
        if rank.deck is not None:
            recorder.install(rank)
            if folder := env.get(env.ATTEMPT_DIR):
                rank.sweepers.append(ImportsTold(rank, Path(folder).parent / LEARNED_MODULES).sweep)
                rank.sweepers.append(FlightDump(rank, Path(folder) / f"rank-{rank.rank}.flight").sweep)
            late_imports.watch(rank, step_count.install(rank))
            if asked := env.get(env.DRILL):
                from zrun.worker import drill

                drill.arm(rank, asked)  # after the count of steps: it goes by its numbers
    except Exception as error:  # a broken torch must fail where the script imports it, with the script's traceback
        rank.warn(f"torch cannot be used: no seeds, collectives or steps are seen ({type(error).__name__}: {error})")


def _finished(rank: ThisRank) -> None:
    """The script is over with code 0; what python still does at exit has a limit of its own."""
    rank.over = True
    rank.enter_phase(Phase.DONE)
    rank.raise_flag(Flag.FINISHED)
    rank.note(NoteKind.FINISHED, exit_code=0)


def _last_words(rank: ThisRank, error: BaseException, interrupted: list[bool]) -> SystemExit | None:
    """Say what happened, then print as python would; gives back what to raise so that the process ends like it."""
    error.__traceback__ = without_our_frames(error)
    if last_words.exit_code_of(error) == 0:
        _finished(rank)
    elif last_words.is_failure(error) and not rank.child:
        last_words.leave_for_good(rank, error)
        last_words.write_error_file(error)
    if isinstance(error, SystemExit):
        return error
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception:  # a hook of the user's that fails: show both, as python does
        traceback.print_exc()
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        interrupted.append(True)
    return SystemExit(1)


def _end_by_signal(interrupted: list[bool]) -> None:
    """The last of all exit functions: python ends an interrupted script by the signal itself."""
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
