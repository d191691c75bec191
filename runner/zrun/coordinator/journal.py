"""The journal: every fact the machines decided on, numbered, in one table; committed before anything is done about it.

Knows events as bytes with a number, a job and a time. Replaying them rebuilds every machine. One thread writes; all
that waits when it looks goes into one transaction (group commit), durable to the disk before `on_committed` is called.
"""

import contextlib
import fcntl
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy import event as listen
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from zrun.core.errors import ZrunError
from zrun.machine.events import Event

FORMAT: Final = 1
RETRY_S: Final = 1.0
"""After a failed commit (disk full) the same rows are tried again this often."""

_tables = sa.MetaData()
_events = sa.Table(
    "events", _tables,
    sa.Column("n", sa.Integer, primary_key=True),
    sa.Column("job", sa.Text, nullable=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("wall", sa.Text, nullable=False),
    sa.Column("event", sa.LargeBinary, nullable=False),
)  # fmt: skip
_meta = sa.Table("meta", _tables, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text))

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


class JournalError(ZrunError):
    """The journal cannot be read, or belongs to another coordinator."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One journaled fact: `at` in machine seconds, `wall` RFC 3339 UTC, `job` None = the whole fleet."""

    n: int
    job: str | None
    at: float
    wall: str
    event: Event


def wall_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Journal:
    """Open, `replay()` once, then `start(on_committed, on_trouble)` and `append` from one thread; `close()` at the end.

    `on_committed(n)`: everything up to n is on the disk. `on_trouble(text | None)`: commits fail (the rows are kept and
    tried again), or work again. Both are called from the writer's thread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _take_lock(path)
        self._engine = _engine(path)
        self._waiting: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.last_n = 0
        self.last_at = 0.0
        self._next = 1
        try:
            self._prepare()
        except BaseException:
            self._release()
            raise

    def replay(self) -> Iterator[Entry]:
        """All entries in order. Raises JournalError for a hole, a damaged page or an event of a newer version."""
        try:
            with self._engine.connect() as connection:
                rows = connection.execution_options(yield_per=1000).execute(sa.select(_events).order_by(_events.c.n))
                for row in rows:
                    yield self._entry(row)
        except (sa.exc.DBAPIError, ValueError) as error:
            raise _damaged(self.path, str(getattr(error, "orig", error))) from error

    def start(self, on_committed: Callable[[int], None], on_trouble: Callable[[str | None], None]) -> None:
        self._thread = threading.Thread(
            target=self._write, args=(on_committed, on_trouble), name="journal-writer", daemon=True
        )
        self._thread.start()

    def append(self, job: str | None, at: float, event: Event) -> Entry:
        """Number the event and hand it to the writer; it counts once `on_committed` has named its number."""
        entry = Entry(self._next, job, at, wall_now(), event)
        self._next += 1
        self.last_n, self.last_at = entry.n, at
        self._waiting.put(entry)
        return entry

    def close(self) -> None:
        """Write what waits (one try if commits fail) and let go of the file."""
        self._closing.set()
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
        self._release()

    def _prepare(self) -> None:
        try:
            with self._engine.begin() as connection:
                _tables.create_all(connection)
                found = connection.execute(sa.select(_meta.c.value).where(_meta.c.key == "format")).scalar()
                if found is None:
                    connection.execute(_meta.insert().values(key="format", value=str(FORMAT)))
                elif found != str(FORMAT):
                    raise JournalError(
                        f"{self.path} has journal format {found}; this zrun reads format {FORMAT}",
                        "run the zrun version that wrote it, or move the file away to begin without its history",
                    )
        except sa.exc.DBAPIError as error:
            raise _damaged(self.path, str(error.orig)) from error

    def _entry(self, row: sa.Row[Any]) -> Entry:
        if row.n != self._next:
            raise _damaged(self.path, f"event {self._next} is missing before event {row.n}")
        try:
            event = _decoder.decode(row.event)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise _damaged(self.path, f"event {row.n} is damaged or of a newer zrun: {error}") from error
        self._next += 1
        self.last_n, self.last_at = row.n, row.at
        return Entry(row.n, row.job, row.at, row.wall, event)

    def _write(self, on_committed: Callable[[int], None], on_trouble: Callable[[str | None], None]) -> None:
        ending = troubled = False
        while not ending:
            batch = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._waiting.get_nowait())
            ending = None in batch
            rows = [entry for entry in batch if entry is not None]
            while rows:
                try:
                    self._commit(rows)
                except sa.exc.SQLAlchemyError as error:
                    if not troubled:
                        troubled = True
                        on_trouble(str(getattr(error, "orig", error)))
                    if self._closing.wait(RETRY_S):
                        return
                    continue
                if troubled:
                    troubled = False
                    on_trouble(None)
                on_committed(rows[-1].n)
                rows = []

    def _commit(self, entries: list[Entry]) -> None:
        rows = [
            {"n": e.n, "job": e.job, "at": e.at, "wall": e.wall, "event": _encoder.encode(e.event)} for e in entries
        ]
        with self._engine.begin() as connection:
            # A commit that failed half-way may have come through all the same: the same rows again are no error.
            connection.execute(sqlite_insert(_events).on_conflict_do_nothing(), rows)

    def _release(self) -> None:
        self._engine.dispose()
        os.close(self._lock)


def _engine(path: Path) -> sa.Engine:
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), pool_size=1)

    @listen.listens_for(engine, "connect")
    def _durable(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA busy_timeout=5000")
        cursor.close()

    return engine


def _take_lock(path: Path) -> int:
    """Two coordinators on one journal would both decide: the second one is refused."""
    try:
        handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise JournalError(
            f"the journal {path} cannot be opened: {error.strerror}", "is the folder writable?"
        ) from error
    until = time.monotonic() + 2.0
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() < until:
                time.sleep(0.05)  # the one before us may be on its way out
                continue
            os.close(handle)
            raise JournalError(
                f"another coordinator holds {path}", "only one may decide; stop it first, or use another --dir"
            ) from error
        return handle


def _damaged(path: Path, what: str) -> JournalError:
    return JournalError(
        f"the journal {path} cannot be read: {what}",
        f"keep it for a look and begin without its history: mv {path} {path}.damaged (and {path.name}-wal, -shm); "
        "checkpoints are not touched, a resumed job goes on from the newest one",
    )
