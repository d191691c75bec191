"""Rank 1 ends in a way of its own in step 3, `ends.py KIND [PEER]`; rank 0 waits in an all_reduce or does as PEER says.

Nobody has a Session. KIND `none` ends well.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

LONG_S = 120.0
FOLDER = Path(os.environ["E2E_FOLDER"])


def say(what: str) -> None:
    """For the test: this happened now."""
    (FOLDER / what).write_text(repr(time.time()))


def slow_finally() -> None:
    try:
        say("raised")
        raise ValueError("bad sample 7")
    finally:
        time.sleep(LONG_S)


def slow_exit() -> None:
    class Slow:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            time.sleep(LONG_S)

    with Slow():
        say("raised")
        raise ValueError("bad sample 7")


def slow_teardown() -> None:
    """What C1 is about: the group is gone first, so the others fail before the culprit is out."""
    try:
        say("raised")
        raise ValueError("bad sample 7")
    finally:
        dist.destroy_process_group()
        time.sleep(4.0)


def lingering_thread() -> None:
    threading.Thread(target=time.sleep, args=(LONG_S,), name="writer").start()
    say("raised")
    raise ValueError("bad sample 7")


def slow_atexit() -> None:
    atexit.register(time.sleep, LONG_S)
    say("raised")
    raise ValueError("bad sample 7")


def exit_code() -> None:
    sys.exit(7)


def exit_text() -> None:
    sys.exit("no data under /data/v3")


def os_exit() -> None:
    os._exit(7)


def exit_0() -> None:
    os._exit(0)


def abort() -> None:
    print("the last line before the end")
    os.abort()


def segfault() -> None:
    print("the last line before the end")
    ctypes.string_at(0)


def killed() -> None:
    print("the last line before the end")
    os.kill(os.getpid(), signal.SIGKILL)


class Squares(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return index * index


def loader_worker_killed() -> None:
    for _ in torch.utils.data.DataLoader(Squares(), num_workers=1):
        pass


def swallowed() -> None:
    """Caught, and then it waits for what will not come."""
    try:
        int("sample 7")
    except ValueError:
        time.sleep(LONG_S)


def caught() -> None:
    """Caught a while ago; what it does now is something else."""
    try:
        try:
            raise ValueError("bad sample 7")
        finally:
            time.sleep(0.5)
    except ValueError:
        pass
    time.sleep(LONG_S)


def thread_gives_up() -> None:
    def work() -> None:
        try:
            raise ValueError("bad sample 7")
        finally:
            threading.Timer(1.0, os._exit, (9,)).start()

    threading.Thread(target=work, name="prefetch").start()
    time.sleep(LONG_S)


def interrupt() -> None:
    raise KeyboardInterrupt


def exit_in_finally() -> None:
    try:
        raise ValueError("bad sample 7")
    finally:
        sys.exit(5)


def replaced_in_finally() -> None:
    try:
        raise ValueError("bad sample 7")
    finally:
        raise OSError("the cleanup failed as well")


def chained() -> None:
    try:
        try:
            int("seven")
        except ValueError as error:
            raise LookupError("sample 7 is not in the index") from error
    except LookupError as error:
        raise RuntimeError("the loader gave up") from error


def group() -> None:
    raise ExceptionGroup("two readers failed", [ValueError("bad sample 7"), OSError("no such shard")])


def speechless() -> None:
    class SpeechlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    raise SpeechlessError


def recursion() -> None:
    recursion()


def memory() -> None:
    raise MemoryError


def retry() -> None:
    """Nobody may be ended for this."""
    for wait_s in (0.7, 0.5, 0.3):
        try:
            try:
                raise OSError("the file server is away")
            finally:
                time.sleep(wait_s)
        except OSError:
            time.sleep(wait_s)


def waits_at_term() -> None:
    """Its handler wants an agreement that its stopped peer will never give."""
    signal.signal(signal.SIGTERM, lambda *_: dist.barrier())
    say("ready")
    time.sleep(LONG_S)


KINDS: dict[str, Callable[[], None]] = {
    name: what for name, what in globals().items() if callable(what) and getattr(what, "__module__", "") == __name__
}


def main() -> None:
    kind, peer = (*sys.argv[1:], "all_reduce")[:2]
    rank = int(os.environ["RANK"])
    if kind == "setup" and rank == 1:
        raise FileNotFoundError("no checkpoint at /data/v3/start")
    if kind == "setup":
        time.sleep(LONG_S)
    dist.init_process_group("gloo")
    (FOLDER / f"pid-{rank}").write_text(str(os.getpid()))
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(1, 7):
        if step == 3 and rank == 1 and kind in KINDS:
            KINDS[kind]()
        if step == 3 and rank == 0 and peer == "sleep":
            time.sleep(LONG_S)
        if step == 3 and rank == 0 and peer in KINDS:
            KINDS[peer]()
        weight.grad = torch.ones(4)
        dist.all_reduce(weight.grad)
        optimizer.step()
        print(f"step {step} done")
        time.sleep(0.05)
    print("done")
    dist.destroy_process_group()
    if kind == "lingers" and rank == 1:
        threading.Thread(target=time.sleep, args=(40.0,), name="writer").start()


if __name__ == "__main__":
    main()
