"""Batches named and listed from a run's folder alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from zrun.core.batches import Batches, DataFacts, ordinal_of_step, skipped_before
from zrun.core.errors import NotFoundError, UsageError
from zrun.core.known_batches import batch_of, facts_of
from zrun.core.manifest import MANIFEST, Manifest, folder_name
from zrun.core.runfolder import RunFolder

FACTS = DataFacts("samples", "numbers:40", 7, 8, drop_last=True, shuffle=True, samples=40)
STREAM = DataFacts("stream", "stream", 7, 4, drop_last=False, ended=[[3, 10]])


def name(ordinal: int) -> str:
    return str(Batches(FACTS).name(ordinal))


def test_skipped_batches_leave_gaps_in_numbers_and_none_in_steps() -> None:
    skip = [name(2), name(3), name(6)]
    assert [ordinal_of_step(step, skip) for step in range(1, 6)] == [1, 4, 5, 7, 8]
    assert [ordinal - skipped_before(ordinal, skip) for ordinal in (1, 4, 5, 7, 8)] == [1, 2, 3, 4, 5]


def test_a_step_and_a_name_lead_to_the_same_batch() -> None:
    for step in range(1, 12):
        found = batch_of(FACTS, [name(3)], step=step, batch=None)
        assert found == batch_of(FACTS, [name(3)], step=None, batch=found["batch"])
        assert found["step"] == step
        assert len(found["samples"]) == 8
    skipped = batch_of(FACTS, [name(3)], step=None, batch=name(3))
    assert (skipped["skipped"], skipped["step"], skipped["ordinal"]) == (True, None, 3)


def test_a_streams_batches_are_positions_and_the_end_of_a_running_epoch_is_not_known() -> None:
    third, fourth = (batch_of(STREAM, (), step=step, batch=None) for step in (3, 4))
    assert (third["epoch"], third["samples"], third["known_end"]) == (0, [8, 9], True)
    assert (fourth["epoch"], fourth["samples"], fourth["known_end"]) == (1, [0, 1, 2, 3], False)


@pytest.mark.parametrize("batch", ["e0-s000003-00000000", "e0-s000000-00000000", "third"])
def test_what_is_no_batch_of_this_run_is_refused(batch: str) -> None:
    with pytest.raises(UsageError):
        batch_of(FACTS, (), step=None, batch=batch)


def saved(folder: Path, step: int, cursor: dict[str, Any]) -> None:
    path = folder / folder_name(step)
    path.mkdir(parents=True)
    made = Manifest("toy-0001", "toy", 1, step, None, 1, "single", "2026-01-01T00:00:00Z", [], {}, {}, cursor)
    (path / MANIFEST).write_text(made.to_json())


def test_facts_come_from_the_file_or_the_newest_checkpoint_whichever_knows_more(tmp_path: Path) -> None:
    run, checkpoints = RunFolder(tmp_path / "toy-0001"), tmp_path / "checkpoints"
    run.root.mkdir()
    with pytest.raises(NotFoundError, match="nothing is known of the data of toy-0001"):
        facts_of(run, checkpoints)
    saved(checkpoints, 3, {"ordinal": 3})
    with pytest.raises(NotFoundError):
        facts_of(run, checkpoints)
    saved(checkpoints, 4, {"data": FACTS.to_dict() | {"of a later version": 1}})
    assert facts_of(run, checkpoints) == FACTS
    run.data.write_text(json.dumps(STREAM.to_dict()))
    assert facts_of(run, checkpoints) == STREAM
    run.data.write_text("{")
    assert facts_of(run, checkpoints) == FACTS
