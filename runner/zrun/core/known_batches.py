"""Which samples were in which batch of a run, answered from its folder or its checkpoints alone. Reads no sample, and
knows nothing about how a run stands.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zrun.core import manifest
from zrun.core.batch import BatchId
from zrun.core.batches import Batches, DataFacts, ordinal_of_step, skipped_before
from zrun.core.errors import NotFoundError, UsageError
from zrun.core.place import Place
from zrun.core.runfolder import RunFolder


def facts_of(run: RunFolder, checkpoints: Place) -> DataFacts:
    """`data.json`, or what the newest checkpoint says, whichever knows more ended epochs. Raises NotFoundError."""
    told = [_from(_written(run.data)), _from(_saved(checkpoints))]
    found = [facts for facts in told if facts is not None]
    if not found:
        raise NotFoundError(
            f"nothing is known of the data of {run.job}",
            "its script hands no Loader to Session, or has not begun its loop",
        )
    return max(found, key=lambda facts: len(facts.ended))


def _from(value: Any) -> DataFacts | None:
    try:
        return DataFacts.from_dict(value) if isinstance(value, dict) else None
    except TypeError:
        return None


def _written(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _saved(checkpoints: Place) -> Any:
    try:
        found = manifest.scan(checkpoints)
    except OSError:
        return None
    return next((one.manifest.cursor.get("data") for one in found if one.manifest is not None), None)


def batch_of(facts: DataFacts, skip: Iterable[str], *, step: int | None, batch: str | None) -> dict[str, Any]:
    """The batch of a step, or the one of that name. `skip`: left out by the run, beside those the facts name.

    Raises UsageError for a name that this run has no batch of, and for an order that the facts do not tell.
    """
    left_out = {*facts.skip, *skip}
    asked = _parsed(batch) if batch is not None else None
    ordinal = asked.ordinal if asked is not None else ordinal_of_step(step or 1, left_out)
    if ordinal < 1:
        raise UsageError("steps and batches count from 1")
    batches = Batches(facts)
    name = batches.name(ordinal)
    if asked is not None and asked != name:
        raise UsageError(f"{batch} is no batch of this run: its batch {ordinal} is {name}")
    skipped = str(name) in left_out
    span = batches.span(ordinal)
    return {
        "batch": str(name), "epoch": span.epoch, "ordinal": ordinal, "skipped": skipped,
        "step": None if skipped else ordinal - skipped_before(ordinal, left_out),
        "samples": batches.indices(ordinal),
        "samples_are": "positions in the epoch's stream" if facts.kind == "stream" else "indices of the dataset",
        "known_end": facts.kind != "stream" or span.epoch < len(facts.ended),
    }  # fmt: skip


def _parsed(text: str) -> BatchId:
    try:
        return BatchId.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


def about(facts: DataFacts, skip: Iterable[str]) -> dict[str, Any]:
    """The facts for a program, without what may be long."""
    value = facts.to_dict()
    value["shards"] = len(facts.shards)
    return {**value, "skip": sorted({*facts.skip, *skip})}
