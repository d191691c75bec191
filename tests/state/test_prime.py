"""Priming a DDP changes nothing that the script can see. That it makes a resume exact is shown in test_resume.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from zrun.state.arrivals import Arrivals


@pytest.fixture
def _alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


ORDER = ["2.bias", "2.weight", "0.bias", "0.weight"]


@pytest.mark.usefixtures("_alone")
def test_the_first_synchronised_backward_is_noted_and_then_nobody_listens() -> None:
    ddp = DistributedDataParallel(model())
    arrivals = Arrivals(ddp)
    with ddp.no_sync():
        ddp(torch.randn(2, 3)).sum().backward()
    assert arrivals.state() is None
    ddp(torch.randn(2, 3)).sum().backward()
    assert arrivals.state() is not None
    assert sorted(arrivals.state()) == sorted(ORDER)
    assert arrivals.state().index("2.weight") < arrivals.state().index("0.weight")
    assert not any(p._post_accumulate_grad_hooks for p in ddp.parameters())


@pytest.mark.usefixtures("_alone")
def test_gradients_randomness_weights_and_hooks_are_as_before() -> None:
    ddp = DistributedDataParallel(model())
    held = list(ddp.parameters())
    weights = [p.detach().clone() for p in held]
    held[0].grad = kept = torch.ones_like(held[0])
    called: list[str] = []
    for parameter in held:
        parameter.register_hook(lambda gradient: called.append("hook"))  # type: ignore[no-untyped-call]
        parameter.register_post_accumulate_grad_hook(lambda p: called.append("after"))  # type: ignore[no-untyped-call]
    before = torch.get_rng_state()
    assert Arrivals(ddp).resume(ORDER) is None
    assert torch.equal(before, torch.get_rng_state())
    assert [p.grad for p in held[1:]] == [None] * 3
    assert held[0].grad is kept
    assert all(torch.equal(p, w) for p, w in zip(held, weights, strict=True))
    assert called == []
    ddp(torch.randn(2, 3)).sum().backward()
    assert sorted(called) == ["after"] * 4 + ["hook"] * 4
    assert ddp._has_rebuilt_buckets


@pytest.mark.usefixtures("_alone")
def test_a_checkpoint_from_before_the_first_step_primes_nothing() -> None:
    ddp = DistributedDataParallel(model())
    arrivals = Arrivals(ddp)
    assert arrivals.resume(None) is None
    ddp(torch.randn(2, 3)).sum().backward()
    assert arrivals.state() is not None
