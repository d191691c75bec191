"""What a job has taught outlives its coordinator; a file that is not of this job teaches nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from zrun.coordinator.learning import EVERY_S, FILE, Learning
from zrun.coordinator.scribe import Scribe
from zrun.core.runfolder import RunFolder
from zrun.machine.limits import Learned
from zrun.spec.job import JobSpec, Watchdog

SPEC = JobSpec("toy", ["train.py"])
TAUGHT = Learned(step_s=0.25, warm_s=3.0, phases_s={"eval": 12.5, "own:tokenize": 90.0}, pauses_s=(4.0, 6.5))


@pytest.fixture
def scribe() -> Any:
    made = Scribe(None)
    yield made
    made.close()


def taught(tmp_path: Path, scribe: Scribe, spec: JobSpec = SPEC) -> Learning:
    return Learning(RunFolder(tmp_path), scribe, spec)


def test_what_was_learned_is_read_again(tmp_path: Path, scribe: Scribe) -> None:
    taught(tmp_path, scribe).keep(TAUGHT, SPEC, 10.0)
    assert scribe.drain(5)
    assert taught(tmp_path, scribe).learned == TAUGHT


def test_it_is_looked_at_now_and_then(tmp_path: Path, scribe: Scribe) -> None:
    learning = taught(tmp_path, scribe)
    assert learning.due(0.0)
    learning.keep(TAUGHT, SPEC, 10.0)
    assert not learning.due(10.0 + EVERY_S / 2)
    assert learning.due(10.0 + EVERY_S)


def test_other_limits_do_not_change_a_jobs_pace_and_another_script_does(tmp_path: Path, scribe: Scribe) -> None:
    taught(tmp_path, scribe).keep(TAUGHT, SPEC, 10.0)
    assert scribe.drain(5)
    assert taught(tmp_path, scribe, JobSpec("toy", ["train.py"], watchdog=Watchdog(step_s=9.0))).learned == TAUGHT
    assert taught(tmp_path, scribe, JobSpec("toy", ["train.py", "--big"])).learned is None


@pytest.mark.parametrize("change", [{"step_s": "x"}, {"step_s": -1.0}, {"step_s": float("inf")}, {"phases_s": [1]},
                                    {"pauses_s": None}, {"warm_s": None}])  # fmt: skip
def test_a_file_that_makes_no_sense_teaches_nothing(tmp_path: Path, scribe: Scribe, change: dict[str, Any]) -> None:
    taught(tmp_path, scribe).keep(TAUGHT, SPEC, 10.0)
    assert scribe.drain(5)
    path = tmp_path / FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert taught(tmp_path, scribe).learned is None
    path.write_text("{")
    assert taught(tmp_path, scribe).learned is None
