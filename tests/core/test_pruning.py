"""What goes from a checkpoint folder and what may not: readers in other processes, pins, leftovers by age."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core import written

from zrun.core import pins, pruning, reading
from zrun.core.manifest import CONTROL, scan
from zrun.core.retention import Keep

HOLD = "import sys, pathlib; from zrun.core import reading\nwith reading.held(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (1, 2, 3):
        written.write(tmp_path, step)
    return tmp_path


@pytest.fixture
def reader(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that reads step 1."""
    made = subprocess.Popen([sys.executable, "-c", HOLD, str(folder / "step-000001")],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert made.stdout is not None
    assert made.stdout.readline() == "held\n"
    yield made
    made.kill()
    made.communicate()


def prune(folder: Path, last: int = 1) -> list[int]:
    return [fate.found.step for fate in pruning.delete(folder, pruning.fates(folder, scan(folder), Keep(last)))]


def steps(folder: Path) -> list[int]:
    return [found.step for found in scan(folder)]


def test_what_another_process_reads_stays_until_it_is_done_or_dead(folder: Path, reader: subprocess.Popen[str]) -> None:
    assert reading.being_read(folder / "step-000001")
    assert prune(folder) == [2]
    os.kill(reader.pid, signal.SIGKILL)
    reader.wait(60)
    assert prune(folder) == [1], "the kernel let a dead reader's lock go"
    assert steps(folder) == [3]


def test_one_that_begins_to_be_read_after_the_decision_stays(folder: Path) -> None:
    decided = pruning.fates(folder, scan(folder), Keep(1))
    with reading.held(folder / "step-000002"):
        assert [fate.found.step for fate in pruning.delete(folder, decided)] == [1]
    assert steps(folder) == [3, 2]


def test_many_may_read_at_once(folder: Path, reader: subprocess.Popen[str]) -> None:
    with reading.held(folder / "step-000001") as place:
        assert os.stat("rank-0.safetensors", dir_fd=place).st_size


def test_a_reader_keeps_what_it_opened_though_the_name_is_taken_from_it(folder: Path) -> None:
    with reading.held(folder / "step-000002") as place:
        pruning.drop(folder, folder / "step-000002")
        assert os.stat("rank-0.safetensors", dir_fd=place).st_size
        pruning.empty_trash(folder)
        assert os.stat("rank-0.safetensors", dir_fd=place).st_size
    pruning.empty_trash(folder)
    assert not list((folder / CONTROL / "trash").iterdir())


def test_one_that_is_gone_cannot_be_read(folder: Path) -> None:
    with pytest.raises(FileNotFoundError), reading.held(folder / "step-000099"):
        pass


def test_a_folder_that_may_not_be_written_can_be_read(folder: Path) -> None:
    (folder / "step-000001" / "manifest.json").chmod(0o400)
    (folder / "step-000001").chmod(0o500)
    with reading.held(folder / "step-000001"):
        assert reading.being_read(folder / "step-000001")


def test_two_who_prune_at_once_both_end_well(folder: Path) -> None:
    decided = pruning.fates(folder, scan(folder), Keep(1))
    assert len(pruning.delete(folder, decided)) == 2
    assert pruning.delete(folder, decided) == []


def test_a_pin_holds_for_the_run_that_it_was_made_for(folder: Path) -> None:
    (one,) = (found for found in scan(folder) if found.step == 1)
    pins.pin(folder, one, "2026-01-01T00:00:00Z")
    assert prune(folder) == [2]
    pruning.drop(folder, folder / "step-000001")
    written.write(folder, 1, attempt=2)
    assert prune(folder) == [], "saved again by a later attempt it is the same checkpoint"
    pruning.drop(folder, folder / "step-000001")
    written.write(folder, 1, job="another-2")
    assert prune(folder) == [1]
    assert pins.unpin(folder, 1)
    assert not pins.unpin(folder, 1)


def test_a_pin_that_cannot_be_read_still_pins(folder: Path) -> None:
    (one,) = (found for found in scan(folder) if found.step == 1)
    pins.pin(folder, one, "2026-01-01T00:00:00Z")
    (folder / CONTROL / "pins" / "step-000001.json").write_text("{")
    assert prune(folder) == [2]


def test_what_the_newest_attempt_resumed_from_stays(folder: Path) -> None:
    (folder / CONTROL).mkdir(exist_ok=True)
    for attempt, step in ((1, 0), (2, 2)):
        (folder / CONTROL / f"claim-{attempt}").write_text(json.dumps({"resumed_from": step}))
    written.write(folder, 4, attempt=2)
    assert prune(folder) == [1, 3], "3 was overtaken"
    assert steps(folder) == [4, 2]


def test_leftovers_are_told_with_their_age_and_size(folder: Path) -> None:
    for name in ("step-000009.attempt-1.tmp", f"{CONTROL}/leftovers/step-000008.aa", f"{CONTROL}/trash/step-000007.bb"):
        (folder / name).mkdir(parents=True)
        (folder / name / "rank-0.safetensors").write_bytes(b"12345")
        for path in (folder / name / "rank-0.safetensors", folder / name):
            os.utime(path, (1000.0, 1000.0))
    (folder / CONTROL / "claim-2").write_text('{"resumed_from": 3}')
    found = pruning.leftovers(folder, 1600.0)
    assert [(one.path.name, one.bytes, one.age_s) for one in found] == [
        ("step-000009.attempt-1.tmp", 5, 600.0), ("step-000008.aa", 5, 600.0), ("step-000007.bb", 5, 600.0),
    ]  # fmt: skip
    assert found[0].what == "unfinished save of attempt 1, which is over"
    assert all(pruning.clear(folder, one) for one in found)
    assert pruning.leftovers(folder, 1600.0) == []
    assert steps(folder) == [3, 2, 1]
