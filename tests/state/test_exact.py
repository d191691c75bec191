"""A resumed run is the undisturbed run, bit for bit: real ranks, real processes, no numpy in them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from zrun.core.manifest import Manifest, scan
from zrun.core.verify import verify
from zrun.state.checkpoints import Checkpoints
from zrun.state.parts import Parts

PROGRAM = Path(__file__).with_name("exact_program.py")
CASES = {2: ["ddp", "zero1", "zero2", "zero3", "hsdp"], 3: ["wide", "resharded"]}


def start(folder: Path, world: int, phases: list[str], cases: list[str]) -> list[list[dict[str, Any]]]:
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), str(rank), str(world), ",".join(phases), ",".join(cases)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * world, "\n".join(said)
    return [
        [json.loads((folder / f"{world}-{phase}-{rank}.json").read_text()) for rank in range(world)] for phase in phases
    ]


class Seen:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.straight: dict[int, list[dict[str, Any]]] = {}
        self.saving: dict[int, list[dict[str, Any]]] = {}
        self.resumed: dict[int, list[dict[str, Any]]] = {}


pytestmark = pytest.mark.long  # test_resume.py has the quick ones


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Everything is run once, in this order; the tests look at what came out."""
    found = Seen(tmp_path_factory.mktemp("exact"))
    for world in (2, 3):
        cases = [case for case in CASES[world] if case != "resharded"]
        found.straight[world], found.saving[world] = start(found.folder, world, ["straight", "saving"], cases)
        (found.resumed[world],) = start(found.folder, world, ["resumed"], CASES[world])
    return found


@pytest.mark.e2e
@pytest.mark.parametrize(("world", "case"), [(w, c) for w in CASES for c in CASES[w] if c != "resharded"])
def test_a_resumed_run_ends_with_the_same_losses_and_weights(seen: Seen, world: int, case: str) -> None:
    for rank in range(world):
        straight, resumed = seen.straight[world][rank][case], seen.resumed[world][rank][case]
        assert resumed["begin"] == 4
        assert resumed["losses"] == straight["losses"][4:]
        assert resumed["weights"] == straight["weights"]


@pytest.mark.e2e
@pytest.mark.parametrize(("world", "case"), [(w, c) for w in CASES for c in CASES[w] if c != "resharded"])
def test_saving_disturbs_nothing(seen: Seen, world: int, case: str) -> None:
    for rank in range(world):
        assert seen.saving[world][rank][case] == seen.straight[world][rank][case]


@pytest.mark.e2e
def test_without_the_cure_ddp_at_three_ranks_would_differ(seen: Seen) -> None:
    assert seen.resumed[3][0]["unprimed"]["losses"] != seen.straight[3][0]["wide"]["losses"][4:]


@pytest.mark.e2e
def test_a_state_sharded_over_two_ranks_loads_on_three(seen: Seen) -> None:
    for rank in range(3):
        assert seen.resumed[3][rank]["resharded"] == {"equal": True, "steps": True}


@pytest.mark.e2e
def test_the_library_reads_the_files_and_every_byte_is_accounted_for(seen: Seen) -> None:
    for case in CASES[2]:
        (found,) = scan(seen.folder / f"{case}-2")
        assert found.state == "complete"
        assert verify(found.path).problems == []
        manifest = found.manifest
        assert manifest is not None
        assert [f.rank for f in manifest.files] == [0, 1]
        for shard in manifest.files:
            held = load_file(str(found.path / shard.path))
            for name, tensor in held.items():
                chunks = [c for c in manifest.tensors[name].chunks if c.file == shard.path]
                assert [list(tensor.shape)] == [c.shape for c in chunks]


class Plain(nn.Module):
    """The model of the program without any wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 33)
        self.body = nn.ModuleList(nn.Sequential(nn.Linear(33, 33), nn.Dropout(0.1), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(33, 11, bias=False)
        self.head.weight = self.embed.weight


def assembled(folder: Path, manifest: Manifest, name: str) -> torch.Tensor:
    entry = manifest.tensors[name]
    whole = torch.zeros(entry.shape)
    for chunk in entry.chunks:
        part = load_file(folder / chunk.file)[name]
        where = tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.shape, strict=True))
        whole[where] = part
    return whole


@pytest.mark.e2e
@pytest.mark.parametrize("case", ["zero1", "zero2", "zero3", "hsdp"])
def test_any_strategy_loads_into_one_process_without_one(seen: Seen, case: str) -> None:
    model = Plain()
    trained = list(model.parameters())
    half = len(trained) // 2
    groups = [{"params": trained}] if case == "zero1" else [{"params": trained[:half]}, {"params": trained[half:]}]
    optimizer = torch.optim.AdamW(groups)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5) * 0.93**step)
    warned: list[str] = []
    checkpoints = Checkpoints(
        seen.folder / f"{case}-2", job="exact-1", name="exact", attempt=9, rank=0, world_size=1, seed=7,
        fresh=False, allow_changed=(), warn=warned.append,
    )  # fmt: skip
    restored = checkpoints.restore(Parts(model, optimizer, scheduler), "auto", {"total_steps": 7})
    assert restored.progress is not None
    assert (restored.progress.step, restored.path) == (4, seen.folder / f"{case}-2" / "step-000004")
    assert warned == ["saved by 2 ranks, which had values of their own; rank 0's are used: run.state"]
    manifest = Manifest.from_json((seen.folder / f"{case}-2/step-000004/manifest.json").read_text())
    for name, parameter in model.named_parameters():
        at = seen.folder / f"{case}-2/step-000004"
        assert torch.equal(parameter.detach(), assembled(at, manifest, f"model/{name}"))
        moment = optimizer.state[parameter]["exp_avg_sq"]
        assert torch.equal(moment, assembled(at, manifest, f"optimizer/model/{name}/exp_avg_sq"))
        assert optimizer.state[parameter]["step"].item() == 4.0
    assert scheduler.last_epoch == 4
    assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0]
