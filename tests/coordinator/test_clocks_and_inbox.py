"""Reports become facts once each; silence is measured on a clock that forgives our own stalls."""

import json
from pathlib import Path
from typing import Any

import pytest

from zrun.coordinator.agents import join, leave
from zrun.coordinator.clock import SWEEP_S, MachineClock, SilenceClock
from zrun.coordinator.commands import enter
from zrun.coordinator.fleet import Fleet
from zrun.coordinator.inbox import ALIVE_S, VERIFY_EVERY_S
from zrun.coordinator.journal import Entry
from zrun.coordinator.outbox import OUTBOX_FRAMES, Link, OrderBook
from zrun.coordinator.scribe import Scribe
from zrun.coordinator.sweep import RETURN_S, Sweep
from zrun.core.deck import Phase
from zrun.core.rows import RankRow, RowFlag, pack_rows
from zrun.machine.events import (
    AttemptStarted,
    CheckpointCommitted,
    DurationOver,
    Event,
    NodeGone,
    NodeHeard,
    NodeSilent,
    ProgressVerified,
    RankEnded,
    SaveFailed,
    Submitted,
    Suspected,
)
from zrun.spec.job import JobSpec, Watchdog, spec_to_dict
from zrun.wire.order import JobOrder, Leave
from zrun.wire.report import CheckpointInfo, Doing, Hello, JobReport, NodeReport, Vitals


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, _level: str) -> Any:
        return lambda event, **more: self.lines.append((event, more))


class Memory:
    """A journal that keeps nothing beyond the test."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def append(self, job: str | None, at: float, event: Event) -> Entry:
        self.entries.append(Entry(len(self.entries) + 1, job, at, "2026-01-01T00:00:00.000Z", event))
        return self.entries[-1]


class World:
    """A fleet with one job and one node on a clock that the test turns."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.now = 100.0
        self.wall = 0.0
        self.log = Log()
        self.journal = Memory()
        self.scribe = Scribe(self.log)
        self.folder = folder
        self.spec = JobSpec(name="toy", run=["x.py"], nproc_per_node=2, **spec)
        self.fleet = self.fresh()
        self.fleet.begin()
        enter(self.fleet, Submitted("toy-0001", spec_to_dict(self.spec), str(folder)))
        self.job = self.fleet.jobs["toy-0001"]
        self.serial = 0
        self.link = self.connect()

    def fresh(self) -> Fleet:
        clock = MachineClock(0.0, lambda: self.now)
        fleet = Fleet(self.journal, self.scribe, clock, SilenceClock(), self.log)
        self.sweep = Sweep(fleet, lambda: self.now, lambda: self.wall)
        return fleet

    def connect(self, boot: str = "b1") -> Link:
        return join(self.fleet, Hello(1, "n1", boot, "test"))

    def say(self, **said: Any) -> list[Event]:
        """Report, and give the events that came of it."""
        before = len(self.journal.entries)
        self.serial += 1
        jobs = {"toy-0001": JobReport(**{"doing": Doing.RUNNING, "attempt": 1, "seen": 1, **said})} if said else {}
        report = NodeReport("n1", self.link.boot, self.serial, 0, jobs, Vitals(), 0.0)
        self.fleet.report(self.link, report)
        self.fleet.committed(len(self.journal.entries))
        return [e.event for e in self.journal.entries[before:]]

    def pass_time(self, seconds: float, *, report: dict[str, Any] | None = None) -> list[Event]:
        """Sweeps at their pace, with a report a second if one is given."""
        before = len(self.journal.entries)
        for turn in range(round(seconds / SWEEP_S)):
            self.now += SWEEP_S
            self.wall += SWEEP_S
            if report is not None and turn % 4 == 3:
                self.say(**report)
            self.sweep.run()
            self.fleet.committed(len(self.journal.entries))
        return [e.event for e in self.journal.entries[before:]]


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made: list[World] = []

    def make(**spec: Any) -> World:
        (tmp_path / "toy-0001").mkdir()
        made.append(World(tmp_path / "toy-0001", **spec))
        return made[-1]

    yield make
    for one in made:
        one.scribe.close()


def block(step: int, *, flags: RowFlag = RowFlag.SESSION, others: int | None = None, **more: Any) -> bytes:
    """Rows of two ranks; `others`: the step of rank 1 if it differs."""
    found = []
    for rank, at in ((0, step), (1, step if others is None else others)):
        stepping = RowFlag.STEPPING if at > 1 else RowFlag(0)
        values: dict[str, Any] = {
            "pid": 10 + rank, "phase": Phase.STEP if at > 1 else Phase.FIRST_STEP, "batch": None, "age_s": 0.0,
            "phase_age_s": 0.0, "step_s": 0.1, "coll_seq": 0, "coll_age_s": 0.0, "coll_op": "none", "cpu": 1.0,
            "state": "R", **more,
        }  # fmt: skip
        found.append(RankRow(rank=rank, step=at, flags=flags | stepping | RowFlag.ALIVE, **values))
    return pack_rows(found)


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


def test_the_first_report_starts_the_attempt_and_a_beat_adds_nothing(world: Any) -> None:
    one = world()
    assert kinds(one.say()) == [NodeHeard]
    assert one.job.state.attempt == 1
    assert one.fleet.book.nodes["n1"].jobs["toy-0001"].run is not None
    assert kinds(one.say(doing=Doing.STARTING)) == [NodeHeard]
    assert kinds(one.say(rows=block(1))) == [NodeHeard]
    assert one.say(rows=block(1)) == []
    assert one.say(rows=block(1, age_s=0.4)) == []


def test_the_attempt_has_started_when_every_rank_has_completed_a_step(world: Any) -> None:
    one = world()
    one.say()
    one.say(rows=block(1))
    assert one.say(rows=block(5, others=1), resumed_step=3, resumed_from="/c/step-000003") == []
    events = one.say(
        rows=block(5), resumed_step=3, resumed_from="/c/step-000003", skipped=[{"path": "p", "reason": "r"}]
    )
    assert events == [
        AttemptStarted(1, 4, 3, "/c/step-000003", [{"path": "p", "reason": "r"}]), ProgressVerified(1, 4)]  # fmt: skip


def test_an_attempt_with_a_session_has_not_started_before_it_is_known_where_it_went_on(world: Any) -> None:
    one = world()
    one.say()
    assert AttemptStarted not in kinds(one.say(rows=block(5)))
    assert AttemptStarted(1, 4, 3, "/c/step-000003") in one.say(
        rows=block(5), resumed_step=3, resumed_from="/c/step-000003"
    )


def test_progress_is_told_every_10_s_and_once_at_the_end(world: Any) -> None:
    one = world()
    one.say()
    one.say(rows=block(3))
    assert one.say(rows=block(4)) == []
    one.now += VERIFY_EVERY_S
    assert one.say(rows=block(9)) == [ProgressVerified(1, 8)]
    assert one.say(rows=block(11)) == []
    events = one.say(doing=Doing.FINISHED, rows=block(12, flags=RowFlag.SESSION | RowFlag.FINISHED))
    assert kinds(events) == [ProgressVerified, NodeHeard]
    assert events[0] == ProgressVerified(1, 12)


def test_evidence_comes_before_the_state_it_explains(world: Any) -> None:
    one = world()
    one.say()
    one.say(rows=block(3), resumed_step=0)
    dead = {"rank": 1, "node": "n1", "kind": "signaled", "at": 1.0, "signal": "SIGKILL"}
    said = {
        "doing": Doing.FAILED, "rows": block(4, flags=RowFlag.FAILED), "failures": [dead],
        "checkpoints": [CheckpointInfo(2, "b", "/c/step-000002", 9, 0.1)],
        "save_failures": [{"step": 3, "error": "No space left", "disk_full": True}],
    }  # fmt: skip
    assert kinds(one.say(**said)) == [CheckpointCommitted, SaveFailed, ProgressVerified, RankEnded, NodeHeard]
    assert one.say(**said) == []
    better = {**dead, "exception": "ValueError"}
    assert kinds(one.say(**{**said, "failures": [better]})) == [RankEnded]


def test_a_script_without_steps_counts_as_started_after_5_s_of_life(world: Any) -> None:
    one = world()
    one.say()
    said = {"rows": block(0, flags=RowFlag(0), phase=Phase.SETUP)}
    one.say(**said)
    events = one.pass_time(ALIVE_S + 2, report=said)
    assert kinds(events) == [AttemptStarted]
    assert events[0] == AttemptStarted(1, 0, None)
    late = one.say(rows=block(4), resumed_step=3, resumed_from="/c/step-000003")
    assert AttemptStarted(1, 4, 3, "/c/step-000003") in late, "its imports took long; now it steps"


def test_a_late_doubled_or_strange_report_changes_nothing(world: Any) -> None:
    one = world()
    one.say()
    one.say(rows=block(3))
    one.serial -= 2
    assert one.say(doing=Doing.FAILED) == []
    one.serial += 2
    stranger = NodeReport("n1", "b0", 99, 0, {}, Vitals(), 0.0)
    before = len(one.journal.entries)
    one.fleet.report(one.link, stranger)
    assert len(one.journal.entries) == before
    assert one.say(rows=b"these are no rows") == []


def test_replaying_the_journal_gives_the_same_job_and_tells_nothing_twice(world: Any) -> None:
    one = world()
    one.say()
    said = {"rows": block(5), "resumed_step": 0, "checkpoints": [CheckpointInfo(2, "b", "/c/s", 9, 0.1)]}
    one.say(**said)
    before, entries = one.job.views.verdict(), list(one.journal.entries)
    one.scribe.drain(5)
    with (one.folder / "events.jsonl").open("a") as file:
        file.write('{"half": "a li')  # what a kill leaves behind
    one.fleet = one.fresh()
    for entry in entries:
        one.fleet.replay(entry)
    one.job = one.fleet.jobs["toy-0001"]
    assert one.job.views.verdict() == before
    assert one.fleet.book.nodes["n1"].jobs["toy-0001"].run.attempt == 1
    one.fleet.begin()
    one.link = one.connect()
    assert kinds(one.say(**said)) == [NodeHeard]
    assert one.say(**said) == []
    one.scribe.drain(5)
    lines = (one.folder / "events.jsonl").read_text().splitlines()
    told = [json.loads(x).get("n") for x in lines if "half" not in x]
    numbers = [n for n in told if n]
    assert numbers == sorted(set(numbers))


def test_machine_time_goes_on_from_the_journal_and_never_back() -> None:
    now = [5.0]
    clock = MachineClock(0.0, lambda: now[0])
    now[0] = 7.5
    assert clock.now() == 2.5
    clock.restart(100.0)
    assert clock.now() == 100.0
    now[0] = 8.0
    assert clock.now() == 100.5


def test_silence_time_passes_by_at_most_two_periods_a_sweep() -> None:
    clock = SilenceClock(0.25)
    assert clock.sweep(10.0) == 0.0
    assert clock.sweep(10.25) == 0.25
    assert clock.sweep(13.25) == 0.75
    assert clock.sweep(13.0) == 0.75


def test_a_stall_of_3_s_in_our_own_process_declares_nobody_dead(world: Any) -> None:
    one = world()
    one.say()
    said = {"rows": block(5)}
    one.pass_time(4, report=said)
    one.now += 3.0
    one.sweep.run()
    events = one.pass_time(2, report=said)
    assert NodeSilent not in kinds(events)
    assert one.job.state.incidents == []


def test_a_node_that_falls_silent_is_told_once_after_its_lease(world: Any) -> None:
    one = world()
    one.say()
    one.pass_time(2, report={"rows": block(5)})
    assert NodeSilent not in kinds(one.pass_time(2.5))
    assert kinds(one.pass_time(1.0)).count(NodeSilent) == 1
    assert NodeSilent not in kinds(one.pass_time(5.0))
    assert NodeHeard in kinds(one.say(rows=block(6)))


def test_a_connection_that_comes_back_soon_was_never_gone(world: Any) -> None:
    one = world()
    one.say()
    one.say(rows=block(5))
    leave(one.fleet, one.link, "its connection ended")
    assert NodeGone not in kinds(one.pass_time(RETURN_S / 2))
    one.link = one.connect()
    assert one.say(rows=block(6)) == []
    assert NodeGone not in kinds(one.pass_time(2, report={"rows": block(6)}))
    leave(one.fleet, one.link, "its connection ended")
    assert kinds(one.pass_time(2)).count(NodeGone) == 1


def test_max_duration_counts_wall_time_and_enters_once(world: Any) -> None:
    one = world(max_duration_s=60.0)
    one.say()
    one.wall = one.job.clock_from + 59
    assert DurationOver not in kinds(one.pass_time(0.5, report={"rows": block(5)}))
    assert kinds(one.pass_time(3, report={"rows": block(5)})).count(DurationOver) == 1


def test_a_hang_is_judged_from_the_table_and_told_once(world: Any) -> None:
    one = world(watchdog=Watchdog(step_s=2.0, patience_s=60.0))
    one.say()
    age = 0.0
    one.pass_time(4, report={"rows": block(50)})
    found: list[Event] = []
    for _ in range(8):
        age += 1.0
        stuck = block(51, age_s=age, cpu=0.0, coll_age_s=age, state="S")
        found += one.pass_time(1, report={"rows": stuck})
    said = [event for event in found if isinstance(event, Suspected)]
    assert len(said) == 1
    assert not said[0].cleared
    one.scribe.drain(5)
    first, *ranks = (one.folder / "incidents" / "0001" / "roll-call.txt").read_text().splitlines()
    assert first == said[0].roll_call
    assert [line.partition(":")[0] for line in ranks] == ["rank 0", "rank 1"]
    cleared = [event for event in one.pass_time(2, report={"rows": block(60)}) if isinstance(event, Suspected)]
    assert [event.cleared for event in cleared] == [True]


def test_an_order_is_said_again_until_the_report_obeys(world: Any) -> None:
    one = world()
    one.say()
    while not one.link.frames.empty():
        one.link.frames.get_nowait()
    one.pass_time(3, report={"doing": Doing.IDLE, "attempt": 0, "seen": 0})
    assert one.link.frames.qsize() >= 2


def test_a_new_coordinator_counts_on_from_the_serial_the_agent_obeys() -> None:
    book = OrderBook()
    book.give("n1", "b1", "toy-0001", JobOrder(attempt=1))
    book.heard("n1", "b1", 41, set())
    order = book.order("n1", "b1", 0, 3.0)
    assert order is not None
    assert order.serial == 42
    assert book.order("n1", "another life", 0, 3.0) is None


def test_a_released_job_leaves_the_order_once_the_agent_forgot_it() -> None:
    book = OrderBook()
    book.heard("n1", "b1", 0, set())
    book.give("n1", "b1", "toy-0001", JobOrder(attempt=1, release=True))
    serial = book.nodes["n1"].serial
    book.heard("n1", "b1", serial, {"toy-0001"})
    assert not book.released("toy-0001")
    book.heard("n1", "b1", serial, set())
    assert book.released("toy-0001")


def test_an_agent_that_does_not_read_is_cut_off_and_nobody_waits_for_it() -> None:
    link = Link("n1", "b1")
    for _ in range(OUTBOX_FRAMES + 1):
        link.send(Leave("x"))
    assert "left unread" in link.closed_because
    assert link.frames.qsize() == 1
    assert link.frames.get_nowait() is None


def test_a_run_folder_that_cannot_be_written_is_said_once_and_orders_go_out(world: Any) -> None:
    one = world()
    one.say()
    one.scribe.drain(5)
    (one.folder / "events.jsonl").unlink()
    (one.folder / "events.jsonl").mkdir()
    one.say(rows=block(3), resumed_step=0)
    one.scribe.drain(5)
    assert one.job.state.state == "RUNNING"
    said = [event for event, _ in one.log.lines if event.startswith("run folder")]
    assert said[0] == "run folder cannot be written; going on without papers"


def test_a_full_journal_disk_does_not_hold_up_orders(world: Any) -> None:
    one = world()
    before = len(one.journal.entries)
    one.serial += 1
    one.fleet.report(one.link, NodeReport("n1", "b1", one.serial, 0, {}, Vitals(), 0.0))
    assert len(one.journal.entries) > before
    assert one.job.state.attempt == 1
    assert "n1" not in one.fleet.book.nodes or not one.fleet.book.nodes["n1"].jobs, "not before it is on the disk"
    one.fleet.journal_trouble("database or disk is full")
    assert one.fleet.book.nodes["n1"].jobs["toy-0001"].run is not None
    one.fleet.journal_trouble(None)
    one.scribe.drain(5)
    assert "the journal cannot be written" in (one.folder / "events.jsonl").read_text()


def test_a_verdict_that_could_not_be_written_is_written_as_soon_as_it_can(world: Any) -> None:
    one = world()
    verdict = one.folder / "verdict.json"
    one.scribe.drain(5)
    verdict.unlink(missing_ok=True)
    verdict.mkdir()
    (verdict / "in the way").touch()
    one.say()
    one.say(rows=block(3))
    one.scribe.drain(5)
    assert verdict.is_dir()
    (verdict / "in the way").unlink()
    verdict.rmdir()
    one.sweep.run()
    one.scribe.drain(5)
    assert json.loads(verdict.read_text()) == json.loads(json.dumps(one.job.views.verdict()))


def test_the_word_of_a_process_that_had_to_be_ended_reaches_the_reason(world: Any) -> None:
    one = world()
    one.say()
    one.say(rows=block(3))
    done = block(12, flags=RowFlag.SESSION | RowFlag.FINISHED)
    words = "rank 1 did not exit within 30 s of its script's end: ended"
    one.say(doing=Doing.FINISHED, rows=done, warnings=["something else", words])
    assert one.job.state.reason == f"every rank's script ended with code 0 at step 12; {words}"
