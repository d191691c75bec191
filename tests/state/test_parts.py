"""Names of parameters, tied ones, wrappers, and what is refused."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from zrun.core.errors import CheckpointError
from zrun.state.checkpoints import Checkpoints
from zrun.state.names import named
from zrun.state.parts import Parts
from zrun.state.progress import Progress


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3)
        self.twin = nn.Linear(3, 3, bias=False)
        self.twin.weight = self.module.weight
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("computed", torch.ones(2), persistent=False)


def test_a_users_own_submodule_called_module_keeps_its_name() -> None:
    found = named(Tied())
    assert list(found.parameters) == ["module.weight", "module.bias"]
    assert found.aliases == {"twin.weight": "module.weight"}
    assert list(found.buffers) == ["kept"]


def test_wrappers_leave_no_trace_in_names() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)), nn.Linear(2, 2))
    assert list(named(torch.compile(model, backend="eager")).parameters) == ["0.weight", "0.bias", "1.weight", "1.bias"]  # type: ignore[arg-type]


def there_and_back(tmp_path: Path, saved: Parts, loaded: Parts) -> None:
    def folder(attempt: int) -> Checkpoints:
        return Checkpoints(
            tmp_path / "c", job="j", name="n", attempt=attempt, rank=0, world_size=1, seed=0, warn=pytest.fail
        )

    first = folder(1)
    first.claim(0)
    first.save(saved, Progress(step=1), {})
    assert folder(2).restore(loaded, "auto", {}).progress == Progress(step=1)


class Average:
    """Something of the user's with a state of its own."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state


def test_lists_dicts_and_extras_come_back(tmp_path: Path) -> None:
    def make() -> tuple[Parts, Any, Any, Any]:
        models = {"g": nn.Linear(2, 2), "d": nn.Linear(2, 2)}
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models.values()]
        schedulers = [
            torch.optim.lr_scheduler.ReduceLROnPlateau(optimizers[0]),
            torch.optim.lr_scheduler.MultiStepLR(optimizers[1], [2, 3]),
        ]
        average = Average()
        extras = {"ema": nn.Linear(2, 2), "average": average}
        return Parts(models, optimizers, schedulers, None, extras), (models, extras["ema"]), schedulers, average

    saved, modules, schedulers, average = make()
    for model in modules[0].values():
        model(torch.randn(2, 2)).sum().backward()
    for optimizer in saved.optimizers.values():
        optimizer.step()
    schedulers[0].step(1.5)
    schedulers[1].step()
    average.held = {"mean": torch.randn(3), "count": 4, "best": float("inf")}
    loaded, others, new_schedulers, new_average = make()
    there_and_back(tmp_path, saved, loaded)
    for name in ("g", "d"):
        assert torch.equal(modules[0][name].weight, others[0][name].weight)
    assert torch.equal(modules[1].weight, others[1].weight)
    assert new_schedulers[0].state_dict() == schedulers[0].state_dict()
    assert new_schedulers[1].state_dict() == schedulers[1].state_dict()
    assert torch.equal(new_average.held.pop("mean"), average.held.pop("mean"))
    assert new_average.held == average.held
    for old, new in zip(saved.optimizers.values(), loaded.optimizers.values(), strict=True):
        for a, b in zip(old.state.values(), new.state.values(), strict=True):
            assert torch.equal(a["momentum_buffer"], b["momentum_buffer"])


@pytest.mark.parametrize(
    "kind",
    [
        "Adam",
        "AdamW",
        "SGD",
        "Adagrad",
        "RMSprop",
        "NAdam",
        "RAdam",
        "ASGD",
        "Adafactor",
        "Rprop",
        "Adamax",
        "Adadelta",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_optimizer_goes_on_as_if_nothing_had_been(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1)).to(dtype)
        return model, getattr(torch.optim, kind)(model.parameters(), lr=0.05)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        torch.manual_seed(number)
        optimizer.zero_grad()
        model(torch.randn(5, 4, dtype=dtype)).pow(2).sum().backward()
        optimizer.step()

    model, optimizer = make()
    for number in range(3):
        step(model, optimizer, number)
    other, other_optimizer = make()
    there_and_back(tmp_path, Parts(model, optimizer), Parts(other, other_optimizer))
    for number in range(3, 6):
        step(model, optimizer, number)
        step(other, other_optimizer, number)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    for state, back in zip(optimizer.state.values(), other_optimizer.state.values(), strict=True):
        assert [type(v) for v in state.values()] == [type(v) for v in back.values()]
        assert [getattr(v, "dtype", None) for v in state.values()] == [getattr(v, "dtype", None) for v in back.values()]


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 9),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.5, 2),
    "CyclicLR of a function": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.5, 2, scale_fn=lambda x: 1 / (1 + x)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, 20),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.StepLR(o, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.5, 1.0, 2), lr_scheduler.CosineAnnealingLR(o, 9)], [2]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.3, 4),
}


@pytest.mark.parametrize("kind", list(SCHEDULERS))
def test_every_scheduler_goes_on_as_if_nothing_had_been(tmp_path: Path, kind: str) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9)
        return model, optimizer, SCHEDULERS[kind](optimizer)

    def step(optimizer: torch.optim.Optimizer, scheduler: Any) -> list[float]:
        optimizer.step()
        scheduler.step()
        return [group["lr"] for group in optimizer.param_groups] + [
            group["momentum"] for group in optimizer.param_groups
        ]

    model, optimizer, scheduler = make()
    for _ in range(3):
        step(optimizer, scheduler)
    other, other_optimizer, other_scheduler = make()
    there_and_back(tmp_path, Parts(model, optimizer, scheduler), Parts(other, other_optimizer, other_scheduler))
    for _ in range(6):
        assert step(other_optimizer, other_scheduler) == step(optimizer, scheduler)


def test_an_optimizer_that_keeps_lists_of_tensors_goes_on(tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(2)
        model = nn.Linear(3, 2)
        return model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        def closure() -> float:
            optimizer.zero_grad()
            loss = (model(torch.ones(4, 3)) - 2).pow(2).sum() + model(torch.arange(6.0).view(2, 3)).pow(4).sum() / 99
            loss.backward()
            return float(loss.item())

        optimizer.step(closure)

    model, optimizer = make()
    step(model, optimizer)
    other, other_optimizer = make()
    there_and_back(tmp_path, Parts(model, optimizer), Parts(other, other_optimizer))
    for _ in range(2):
        step(model, optimizer)
        step(other, other_optimizer)
    assert torch.equal(model.weight, other.weight)  # type: ignore[arg-type]


def test_a_generator_of_the_scripts_own_goes_on_where_it_was(tmp_path: Path) -> None:
    saved, loaded = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    torch.rand(5, generator=saved)
    there_and_back(tmp_path, Parts(extras={"masks": saved}), Parts(extras={"masks": loaded}))
    assert torch.equal(torch.rand(5, generator=saved), torch.rand(5, generator=loaded))


def test_a_learning_rate_that_is_a_tensor_stays_the_same_tensor(tmp_path: Path) -> None:
    def make(rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(2, 2)
        return model, torch.optim.AdamW(model.parameters(), lr=torch.tensor(rate), capturable=False, foreach=False)

    model, optimizer = make(0.5)
    other, other_optimizer = make(0.1)
    held = other_optimizer.param_groups[0]["lr"]
    there_and_back(tmp_path, Parts(model, optimizer), Parts(other, other_optimizer))
    assert other_optimizer.param_groups[0]["lr"] is held
    assert held.item() == 0.5


def test_extra_state_of_a_module_is_kept(tmp_path: Path) -> None:
    class Counting(nn.Linear):
        count = 0

        def get_extra_state(self) -> Any:
            return {"count": self.count, "scale": torch.full((2,), float(self.count))}

        def set_extra_state(self, state: Any) -> None:
            self.count = state["count"]
            assert state["scale"].tolist() == [self.count] * 2

    model, other = Counting(2, 2), Counting(2, 2)
    model.count = 7
    there_and_back(tmp_path, Parts(nn.Sequential(model)), Parts(nn.Sequential(other)))
    assert other.count == 7


def test_layouts_in_memory_survive(tmp_path: Path) -> None:
    model = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.weight.zero_()
    there_and_back(tmp_path, Parts(model), Parts(other))
    assert torch.equal(model.weight, other.weight)
    assert other.weight.is_contiguous(memory_format=torch.channels_last)


def test_what_cannot_be_kept_is_refused_by_name() -> None:
    stray = nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match=r"parameter of shape \(2, 2\) that is in no model"):
        Parts(nn.Linear(1, 1), torch.optim.SGD(stray.parameters(), lr=1.0)).layout()
    with pytest.raises(CheckpointError, match="scheduler is a int without"):
        Parts(nn.Linear(1, 1), None, 3)
    with pytest.raises(CheckpointError, match="names are strings without"):
        Parts({"a/b": nn.Linear(1, 1)})
