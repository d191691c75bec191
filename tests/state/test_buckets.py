"""What DDP builds in its first steps decides the last bits at three ranks: a resume builds it anew, or says why not."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.state.stories import Told, attempts
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from zrun.state.comm_hooks import keeps_equal
from zrun.state.ddp_state import DdpState

DEEP = {"width": 65, "layers": 4, "bucket_mb": 0.05}
VARIANTS: dict[str, dict[str, Any]] = {
    "static_graph": {"ddp": {"static_graph": True}},
}
MORE: dict[str, dict[str, Any]] = {
    "tied and frozen": {"micro": 1},
    "gradient_as_bucket_view": {"ddp": {"gradient_as_bucket_view": True}},
    "powersgd": {"hook": "power", "bucket_mb": 25},
    "static_graph with unused": {"ddp": {"static_graph": True}, "spare": True},
    "find_unused_parameters": {"ddp": {"find_unused_parameters": True}, "spare": True, "micro": 1},
    "fp16_compress": {"hook": "fp16"},
    "a hook after which ranks differ": {"hook": "stateless"},
    "sparse": {"sparse": True, "lr": 0.1},
}
STEPS = 10
NEVER_REBUILT = ("find_unused_parameters",)
KILLS = ((2, 1), (7, 1))


def stories(variants: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for name, options in variants.items():
        base = DEEP | options
        for kind, kills, last in (
            ("", (), {}),
            (", killed", KILLS, {}),
            (", unprimed", KILLS[-1:], {"unprimed": True}),
        ):
            found.append(base | {"name": name + kind, "attempts": attempts(3, "ddp", *kills, total=STEPS, **last)})
    return found


def check(told: Told, name: str) -> None:
    told.assert_same(name, f"{name}, killed", 3, STEPS)
    assert told.resumed(f"{name}, killed") == [0, 1, 6]
    if name not in NEVER_REBUILT:  # else the comparison could not see the difference
        after = told.steps(f"{name}, unprimed", 0)[6 - STEPS :]
        assert [step["step"] for step in after] == list(range(7, STEPS + 1))
        assert after != told.steps(name, 0)[6:]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(tmp_path_factory.mktemp("buckets"), stories(VARIANTS))


@pytest.mark.e2e
@pytest.mark.parametrize("name", list(VARIANTS))
def test_a_resumed_ddp_sums_in_the_order_it_had(told: Told, name: str) -> None:
    check(told, name)


@pytest.mark.long
@pytest.mark.parametrize("name", list(MORE))
def test_so_does_every_other_kind_of_ddp(tmp_path: Path, name: str) -> None:
    check(Told(tmp_path, stories({name: MORE[name]})), name)


@pytest.mark.e2e
def test_where_a_resume_cannot_be_exact_it_is_said_at_the_start(tmp_path: Path) -> None:
    told = Told(tmp_path, [DEEP | {"name": "own", "hook": "own", "attempts": attempts(3, "ddp", (2, 1))}])
    for attempt in (1, 2):
        said = told.output("own", attempt)
        assert "DDP has a communication hook with a state of its own (Pull) and is not primed" in said
        assert "the communication hook's Pull is not saved" in said
        assert "zrun: warning" not in told.output("own", attempt, rank=1), "once is enough"


@pytest.fixture
def _alone(tmp_path: Path) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_alone")
def test_what_cannot_be_primed_is_only_warned_of_where_the_order_of_a_sum_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    # What torch leaves on a parameter whose optimizer runs inside backward.
    ddp.module.weight._in_backward_optimizers = []
    state = DdpState("model/", ddp)
    assert state.obstacles() == []
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 3)
    (told,) = state.obstacles()
    assert "an optimizer that runs inside backward cannot be primed" in told


@pytest.mark.usefixtures("_alone")
def test_only_torchs_own_averaging_hooks_are_trusted_to_keep_ranks_equal() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook

    def mine(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        return torch.futures.Future()

    trusted: dict[Any, bool] = {
        default_hooks.fp16_compress_hook: True,
        default_hooks.fp16_compress_wrapper(mine): False,
        post_localSGD_hook.post_localSGD_hook: False,
        mine: False,
    }
    for hook, expected in trusted.items():
        ddp = DistributedDataParallel(nn.Linear(2, 2))
        assert keeps_equal(ddp)
        ddp.register_comm_hook(None, hook)
        assert keeps_equal(ddp) is expected
