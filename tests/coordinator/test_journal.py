"""The journal: numbered, replayed in order, and nothing that was acknowledged is lost."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from zrun.coordinator.journal import FORMAT, Entry, Journal, JournalError
from zrun.machine.events import Command, NodeHeard, ProgressVerified, RankEnded, Submitted
from zrun.wire.report import Doing

EVENTS = [
    Submitted("a-1234", {"name": "a", "run": ["x.py"]}, "/runs/a-1234"),
    NodeHeard("n1", "b1", Doing.RUNNING, 1, 1, leaving_in_s=1.5),
    RankEnded("n1", 1, [{"rank": 0, "kind": "raised", "at": 1.25}]),
    ProgressVerified(1, 7),
    Command("stop", options={"why": ["x", None, 3]}),
]

WRITER = """
import sys, threading
from pathlib import Path
from zrun.coordinator.journal import Journal
from zrun.machine.events import ProgressVerified
journal = Journal(Path(sys.argv[1]))
list(journal.replay())
lock = threading.Lock()
def committed(n):
    sys.stdout.write(f"{n}\\n"); sys.stdout.flush()
journal.start(committed, lambda text: None)
while True:
    entry = journal.append("a-1234", 0.0, ProgressVerified(1, 1))
    if entry.n % 20 == 0:
        threading.Event().wait(0.0005)
"""


class Committed:
    def __init__(self) -> None:
        self.n = 0
        self.trouble: list[str | None] = []
        self._changed = threading.Condition()

    def __call__(self, n: int) -> None:
        with self._changed:
            self.n = n
            self._changed.notify_all()

    def say(self, text: str | None) -> None:
        with self._changed:
            self.trouble.append(text)
            self._changed.notify_all()

    def wait_for(self, n: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.n >= n, timeout=10), f"only {self.n} of {n} committed"

    def wait_for_trouble(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.trouble) >= count, timeout=10), self.trouble


def written(path: Path) -> list[Entry]:
    journal = Journal(path)
    try:
        return list(journal.replay())
    finally:
        journal.close()


def write(path: Path, *events: object) -> None:
    journal = Journal(path)
    list(journal.replay())
    done = Committed()
    journal.start(done, done.say)
    for event in events:
        journal.append("a-1234", 1.5, event)  # type: ignore[arg-type]
    done.wait_for(journal.last_n)
    journal.close()


def test_what_was_written_comes_back_in_order_with_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    write(path, *EVENTS[:3])
    write(path, *EVENTS[3:])
    found = written(path)
    assert [e.event for e in found] == EVENTS
    assert [e.n for e in found] == [1, 2, 3, 4, 5]
    assert {e.job for e in found} == {"a-1234"}
    assert {e.at for e in found} == {1.5}


def test_kill_9_of_the_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout
        acknowledged = 0
        for _ in range(15):
            acknowledged = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        for line in process.stdout.read().splitlines():
            acknowledged = int(line)
        process.stdout.close()
        process.wait()
        assert written(path)[-1].n >= acknowledged > 0


def test_a_damaged_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(JournalError, match="cannot be read") as error:
        Journal(path)
    assert f"mv {path}" in error.value.hint


def test_a_hole_and_an_event_of_a_newer_version_are_refused_by_number(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    write(path, *EVENTS)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET event = x'81a165a6467574757265' WHERE n = 4")
    connection.close()
    with pytest.raises(JournalError, match="event 4 is damaged or of a newer zrun"):
        written(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM events WHERE n = 2")
    connection.close()
    with pytest.raises(JournalError, match="event 2 is missing"):
        written(path)


def test_a_journal_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    write(path, *EVENTS)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = ?", (str(FORMAT + 1),))
    connection.close()
    with pytest.raises(JournalError, match=f"format {FORMAT + 1}; this zrun reads format {FORMAT}"):
        Journal(path)


def test_a_second_coordinator_on_the_same_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path)
    try:
        started = time.monotonic()
        with pytest.raises(JournalError, match="another coordinator holds"):
            Journal(path)
        assert time.monotonic() - started < 5
    finally:
        journal.close()


def test_a_full_disk_is_said_once_and_the_rows_are_written_when_it_has_room_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path)
    list(journal.replay())
    done = Committed()
    blocker = sqlite3.connect(path)
    blocker.execute("PRAGMA max_page_count")
    with journal._engine.connect() as connection:  # the writer's own connection: no page may be added to the file
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    journal.start(done, done.say)
    for _ in range(200):
        entry = journal.append("a-1234", 1.0, Command("stop", who="x" * 200))
    done.wait_for_trouble(1)
    assert "full" in str(done.trouble[0])
    with journal._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 100000")
    done.wait_for(entry.n)
    assert done.trouble[1:] == [None]
    blocker.close()
    journal.close()
    assert len(written(path)) == entry.n
