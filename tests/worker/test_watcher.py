"""What a rank's notes say of an exception while it is in flight. Real processes, without torch."""

from typing import Any

from tests.worker.stage import Stage

SAID = {"last-words", "leaving", "caught", "handled", "thread-ended"}


def said(stage: Stage, text: str) -> list[str]:
    """The kinds of notes about exceptions, in order; `last-words!` for final ones."""
    stage.script("import time\n" + text)
    stage.run("train.py")
    return [note["kind"] + ("!" if note.get("final") else "") for note in of_exceptions(stage)]


def of_exceptions(stage: Stage) -> list[dict[str, Any]]:
    return [note for note in stage.notes() if note["kind"] in SAID]


SLOW_FINALLY = """
try:
    raise ValueError("bad sample")
finally:
    time.sleep(0.6)
"""
RETRY = """
for wait_s in (0.4, 0.3):
    try:
        try:
            raise OSError("away")
        finally:
            time.sleep(wait_s)
    except OSError:
        time.sleep(wait_s)
time.sleep(0.3)
"""
SWALLOWED_WITH = """
class Deaf:
    def __enter__(self): return self
    def __exit__(self, *_):
        time.sleep(0.4)
        return True
with Deaf():
    raise ValueError
time.sleep(0.3)
"""
THREAD = """
import threading
def work():
    raise ValueError("in a thread")
thread = threading.Thread(target=work, name="prefetch")
thread.start()
thread.join()
"""
ALARMS = """
import signal
def again(*_):
    raise RuntimeError("alarm")
signal.signal(signal.SIGALRM, again)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.004)
time.sleep(10)
"""
LOADER = """
import os, signal, torch
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(4) * index
for _ in torch.utils.data.DataLoader(Samples(), num_workers=1):
    pass
"""


def test_one_that_leaves_is_said_to_while_its_cleanup_runs_and_keeps_the_time_of_its_raise(bare: Stage) -> None:
    assert said(bare, SLOW_FINALLY) == ["last-words", "leaving", "last-words!"]
    first, leaving, final = of_exceptions(bare)
    assert final["at"] == first["at"]
    assert leaving["at"] - first["at"] < 0.5, "while the cleanup still runs"


def test_a_retry_loop_is_never_said_to_leave(bare: Stage) -> None:
    kinds = said(bare, RETRY)
    assert kinds[0] == "last-words"
    assert kinds[-1] == "handled"
    assert not {"leaving", "last-words!"} & {*kinds}


def test_one_that_a_with_swallows_is_said_to_be_handled(bare: Stage) -> None:
    kinds = said(bare, SWALLOWED_WITH)
    assert (kinds[0], kinds[-1]) == ("last-words", "handled")
    assert "leaving" not in kinds


def test_one_that_ends_a_thread_is_said_with_the_threads_name(bare: Stage) -> None:
    assert said(bare, THREAD) == ["thread-ended"]
    (note,) = of_exceptions(bare)
    assert (note["thread"], note["exception"], note["message"]) == ("prefetch", "ValueError", "in a thread")
    assert note["where"].startswith("train.py:")
    assert "Exception in thread prefetch" in bare.err(), "python prints it as ever"


def test_a_signal_handler_that_raises_again_and_again_does_not_keep_last_words_from_being_said(bare: Stage) -> None:
    kinds = said(bare, ALARMS)
    assert kinds[-1] == "last-words!", bare.story()
    assert of_exceptions(bare)[-1]["message"] == "alarm"


def test_a_loader_worker_that_is_killed_is_named_however_the_rank_feels_it_first(stage: Stage) -> None:
    assert "last-words!" in said(stage, LOADER), stage.story()
    final = next(note for note in of_exceptions(stage) if note.get("final"))
    assert final["message"].startswith("DataLoader worker (pid "), stage.story()
    assert "is killed by signal: Killed" in final["message"]
    assert final["where"].startswith("train.py:")
