"""What a script that knows nothing of zrun shows of its phases by using torch; a real rank, as the agent starts it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.worker.stage import Stage

SCRIPT = """
import io, json, sys, threading, time, torch
from zrun.core.deck import Flag
from zrun.worker.rank import this_rank

rank, seen = this_rank(), {}
def look(name):
    seen[name] = rank.phase()[0].name + ("+loader" if rank.deck._flags.get(int(Flag.IN_LOADER)) else "")

class Told:
    def __init__(self, name): self.name = name
    def __reduce__(self):
        look(self.name)
        return (str, ())

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        look("reading")
        return torch.rand(4)

model, teacher = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.rand(2, 4)).sum().backward()
    optimizer.step()

model.eval()
look("eval before training")
model.train()
step()
look("training")
for _ in torch.utils.data.DataLoader(Rows()): pass
look("read")
torch.save({"a": Told("saving")}, io.BytesIO())
look("saved")
try:
    torch.save({"a": lambda: 0}, io.BytesIO())
except Exception: pass
look("failed to save")
other = threading.Thread(target=lambda: torch.save({"a": Told("saving in a thread")}, io.BytesIO()))
other.start(); other.join()
teacher.eval()
look("teacher in eval mode")
model[1].eval()
look("a layer in eval mode")
model.eval()
look("evaluating")
torch.save({"a": Told("saving within an evaluation")}, io.BytesIO())
teacher.train()
look("still evaluating")
model.train()
look("trained again")
model.eval()
model(torch.rand(2, 4)).sum().backward()
optimizer.step()
look("stepped without train()")
model.train(); model.train()
look("end")
assert torch.nn.Module.train.__module__ == "torch.nn.modules.module", "watched during evaluations only"
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    stage = Stage(Path(tmp_path_factory.mktemp("plain")), 1)
    stage.script(SCRIPT)
    try:
        assert stage.run("train.py") == 0, stage.story()
        return json.loads("{" + stage.out().splitlines()[-1].partition("{")[2])
    finally:
        stage.end()


def test_a_save_is_a_phase_in_the_thread_that_trains_and_ends_also_by_an_exception(seen: Any) -> None:
    assert (seen["saving"], seen["saved"], seen["failed to save"]) == ("SAVE", "STEP", "STEP")
    assert seen["saving in a thread"] == "STEP"


def test_a_batch_being_read_is_known(seen: Any) -> None:
    assert (seen["training"], seen["reading"], seen["read"]) == ("STEP", "STEP+loader", "STEP")


def test_the_trained_model_in_eval_mode_is_an_evaluation_until_it_trains_again(seen: Any) -> None:
    assert seen["eval before training"] == "SETUP"
    assert seen["evaluating"] == seen["still evaluating"] == "EVAL"
    assert seen["saving within an evaluation"] == "SAVE"
    assert seen["trained again"] == seen["end"] == "STEP"


def test_a_frozen_teacher_or_layer_is_no_evaluation(seen: Any) -> None:
    assert (seen["teacher in eval mode"], seen["a layer in eval mode"]) == ("STEP", "STEP")


def test_an_optimizer_that_steps_ends_an_evaluation(seen: Any) -> None:
    assert seen["stepped without train()"] == "STEP"


SCALED = """
import torch
from zrun.worker.rank import this_rank
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for value in (1.0, float("inf"), 1.0):
    optimizer.zero_grad()
    scaler.scale(model(torch.tensor([[value]])).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
assert scaler.get_scale() < 65536.0, "one was skipped"
assert this_rank().deck.step() == 4, this_rank().deck.step()
"""


def test_a_step_that_grad_scaler_skips_is_a_step(stage: Stage) -> None:
    stage.script(SCALED)
    assert stage.run("train.py") == 0, stage.story()


COMPILED = """
import torch, warnings
warnings.filterwarnings("error", message="Dynamo does not know")
from zrun.worker.rank import this_rank
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
step = torch.compile(optimizer.step, backend="eager")
for _ in range(4):
    model(torch.rand(2, 4)).square().mean().backward()
    step()
    optimizer.zero_grad()
assert this_rank().deck.step() == 5, this_rank().deck.step()
"""


@pytest.mark.long
def test_a_compiled_optimizer_counts_and_dynamo_has_nothing_to_say_of_us(stage: Stage) -> None:
    stage.script(COMPILED)
    assert stage.run("train.py") == 0, stage.story()
