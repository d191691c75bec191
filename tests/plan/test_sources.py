"""Where a model's size comes from: files on disk, an earlier attempt, and a callable on the meta device."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from zrun.core.errors import UsageError
from zrun.core.manifest import Manifest, TensorEntry
from zrun.plan.children import run
from zrun.plan.incidents import measured
from zrun.plan.source import Place, sized
from zrun.plan.stored import from_path, learned
from zrun.spec.job import Plan

HERE = Path(__file__).parent


def tensors(layers: int) -> dict[str, Any]:
    found = {f"model.layers.{n}.weight": np.zeros((4, 3), np.float32) for n in range(layers)}
    return found | {"model.embed.weight": np.zeros((10, 3), np.float16), "model.steps": np.zeros(1, np.int64)}


def place(folder: Path, *checkpoints: Path) -> Place:
    return Place(str(folder), sys.executable, dict(os.environ), checkpoints)


def test_a_safetensors_file_tells_parameters_and_layers_in_their_order(tmp_path: Path) -> None:
    save_file(tensors(12), tmp_path / "model.safetensors")
    found = from_path(tmp_path / "model.safetensors")
    assert (found.params, found.units) == (12 * 12 + 30, (12,) * 12)


def test_an_index_and_a_folder_are_read_through_all_their_files(tmp_path: Path) -> None:
    every = tensors(4)
    names = sorted(every)
    for number, part in enumerate((names[:3], names[3:])):
        save_file({name: every[name] for name in part}, tmp_path / f"model-{number}.safetensors")
    weights = {
        name: f"model-{number}.safetensors" for number, part in enumerate((names[:3], names[3:])) for name in part
    }
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weights}))
    assert from_path(index).params == from_path(tmp_path).params == 4 * 12 + 30


def test_an_index_without_its_files_counts_only_if_it_says_the_parameters(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 54}, "weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(UsageError, match=r"gone\.safetensors") as caught:
        from_path(index)
    assert "--params" in caught.value.hint
    index.write_text(json.dumps({"metadata": {"total_parameters": 27}, "weight_map": {"a": "gone.safetensors"}}))
    assert from_path(index).params == 27


@pytest.mark.parametrize("text", ["", "{}", "[]", "\x00" * 40, "x" * 40])
def test_what_is_no_safetensors_is_refused_with_the_way_out(tmp_path: Path, text: str) -> None:
    for name in ("model.safetensors", "model.safetensors.index.json"):
        file = tmp_path / name
        file.write_text(text)
        with pytest.raises(UsageError):
            from_path(file)
    with pytest.raises(UsageError):
        from_path(tmp_path / "nothing")


def test_an_earlier_attempt_tells_the_size_of_the_model(tmp_path: Path) -> None:
    entries = {
        "model/blocks.0.weight": TensorEntry("F32", [4, 3], []), "model/head": TensorEntry("BF16", [10], []),
        "optimizer/blocks.0.weight/exp_avg": TensorEntry("F32", [4, 3], []), "model/count": TensorEntry("I64", [1], []),
    }  # fmt: skip
    made = Manifest("toy-1", "toy", 1, 7, None, 2, "ddp", "2026-01-01T00:00:00Z", [], entries, {})
    folder = tmp_path / "checkpoints" / "step-000007"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(made.to_json())
    found = sized(Plan(), place(tmp_path, tmp_path / "none", tmp_path / "checkpoints"))
    assert (found.model.params, [one.params for one in found.model.units]) == (22, [12])
    assert learned(tmp_path / "none") is None


def test_without_any_size_the_error_names_every_way_to_tell_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        sized(Plan(), place(tmp_path))
    assert all(word in caught.value.hint for word in ("--params", "MODULE:CALLABLE", "safetensors", "checkpoint"))


@pytest.mark.parametrize(
    "told",
    [Plan(params=1, model="a:b"), Plan(params=1, loss="a:b"), Plan(params=10, wrap="layer"), Plan(params=1, frozen=2)],
)
def test_what_contradicts_is_refused(tmp_path: Path, told: Plan) -> None:
    with pytest.raises(UsageError):
        sized(told, place(tmp_path))


def test_layers_alone_make_even_units_beside_the_embedding(tmp_path: Path) -> None:
    found = sized(Plan(params=1000, layers=9, vocabulary=10, hidden=10), place(tmp_path)).model
    assert [one.params for one in found.units] == [100] * 9
    assert found.root.params == 100


@pytest.mark.e2e
def test_a_callable_is_built_without_memory_and_its_forward_is_counted() -> None:
    told = Plan(model="hybrid_model:build", loss="hybrid_model:loss", wrap="superblock")
    found = sized(told, place(HERE))
    assert (found.model.params, found.model.trainable) == (5_868_464, 5_868_464)
    assert {name: len(one.units) for name, one in found.wraps.items()} == {"superblock": 2, "layer": 8}
    assert found.model.units[0].params == sum(one.params for one in found.wraps["layer"].units[:4])
    assert found.model.root.params == 256 * 256 + 256  # the tied embedding once, and the last norm
    assert found.counted is not None
    # The residual stream alone: its input to each of 16 norms and what each norm makes of it, in fp32.
    assert found.counted.per_sample > 2 * 16 * 64 * 256 * 4
    assert found.counted.source == "counted"


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("model", "says"), [("hybrid_model:not_a_module", "returned str, not a torch.nn.Module"), ("nowhere:x", "nowhere")]
)
def test_a_callable_that_cannot_be_built_shows_its_own_error(model: str, says: str) -> None:
    with pytest.raises(UsageError, match="exit code 1") as caught:
        sized(Plan(model=model), place(HERE))
    assert says in str(caught.value)
    assert str(HERE) in caught.value.hint


def test_a_program_leaves_no_process_behind(tmp_path: Path) -> None:
    body = (
        "import json, os, subprocess, sys, time\n"
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(sys.argv[1], 'w').write(json.dumps(left.pid))\n"
    )
    pid = run([sys.executable, "-c", body], str(tmp_path), dict(os.environ), "a program", "")
    deadline = time.monotonic() + 60
    while alive(pid):
        assert time.monotonic() < deadline


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_incidents_tell_medians_once_there_are_three(tmp_path: Path) -> None:
    def verdict(name: str, *times: tuple[float | None, float | None]) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps({"incidents": [{"detected_s": a, "recovered_s": b} for a, b in times]}))
        return path

    few = verdict("a", (0.1, 4.0), (0.2, None))
    assert measured([few, tmp_path / "none"]).detection_s is None
    broken = tmp_path / "broken"
    broken.write_text('{"incidents": 3}')
    found = measured([few, broken, verdict("b", (3.0, 5.0), (9.0, 40.0))])
    assert (found.incidents, found.restart_s) == (4, 5.0)
    assert found.detection_s == pytest.approx(1.6)
