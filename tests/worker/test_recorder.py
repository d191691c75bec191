"""Every way to a collective is recorded, with its group, and left when its Work is over: built and in Python."""

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.worker.stage import Stage, until

from zrun.core.deck import Flag
from zrun.core.deck_reader import CollectiveRecord

MakeStage = Callable[..., Stage]

EVERY_WAY = """
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
mine = halves[rank // 2]

def mark(word):
    dist.barrier()
    print(word)

dist.all_reduce(torch.ones(3))
dist.broadcast(torch.ones(3), 0)
dist.all_gather([torch.ones(2) for _ in range(world)], torch.ones(2))
dist.all_gather_into_tensor(torch.ones(2 * world), torch.ones(2))
dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * world))
dist.all_to_all_single(torch.ones(world), torch.ones(world))
if rank < 2:
    (dist.send if rank == 0 else dist.recv)(torch.ones(5), 1 - rank)
dist.all_reduce(torch.ones(7), group=mine)
work = dist.all_reduce(torch.ones(9), async_op=True)
work.wait()
functional.wait_tensor(functional.all_reduce(torch.ones(11), "sum", dist.group.WORLD))
with torch.inference_mode():
    dist.all_reduce(torch.ones(13))
dist.gather(torch.ones(1), [torch.ones(1) for _ in range(world)] if rank == 0 else None)
mark("plain")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 5))
model(torch.ones(2, 3)).sum().backward()
mark("ddp")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
sharded = fully_shard(torch.nn.Linear(8, 8), mesh=mesh)
sharded(torch.ones(2, 8)).sum().backward()
mark("hsdp")
dist.destroy_process_group()
"""


COMPILED = """
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
torch.set_num_threads(1)
dist.init_process_group("gloo")

def model(x):
    return functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD)) * 2

for backend in ("aot_eager", "inductor"):
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    for size in (3, 3, 3):
        compiled(torch.ones(size))
dist.destroy_process_group()
"""

STUCK = """
import ctypes, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
work = dist.all_reduce(torch.ones(3), async_op=True)
if dist.get_rank() == 0:
    ctypes.PyDLL(None).sleep(300)
"""

LATE = """
import time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
for _ in range(3):
    time.sleep(0.5 if dist.get_rank() == 1 else 0)
    dist.all_reduce(torch.ones(3))
dist.all_reduce(torch.ones(3))
"""

FORKED = """
import os, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
pid = os.fork()
if pid == 0:
    try:
        dist.all_reduce(torch.ones(4), async_op=True)
    finally:
        os._exit(0)
os.waitpid(pid, 0)
print("collectives", flush=True)
os._exit(0)
"""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the library, built by the real compiler as an agent has it built."""
    folder = tmp_path_factory.mktemp("cache")
    command = [sys.executable, "-m", "zrun.worker.recorder_built"]
    done = subprocess.run(
        command, env=os.environ | {"XDG_CACHE_HOME": str(folder)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(folder)
    return folder


@pytest.fixture(params=["built", "in Python"])
def recorder(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The variables under which a rank takes this recorder."""
    if request.param == "built":
        return {"XDG_CACHE_HOME": str(request.getfixturevalue("cache"))}
    return {"XDG_CACHE_HOME": str(tmp_path / "empty")}


@pytest.fixture
def rings(make_stage: MakeStage, recorder: dict[str, str]) -> dict[int, list[CollectiveRecord]]:
    stage = make_stage(4, env=recorder)
    stage.script(EVERY_WAY)
    assert stage.launch("train.py").wait() == 0, stage.story()
    built = "empty" not in recorder["XDG_CACHE_HOME"]
    for rank in range(4):
        state = stage.deck(rank).read()
        assert Flag.RECORDER in state.flags
        assert (Flag.BUILT_RECORDER in state.flags) is built
        assert state.coll_seq == state.coll_done
        assert not stage.notes("warning", rank)
    return {rank: stage.deck(rank).ring() for rank in range(4)}


def test_every_way_is_seen_and_ranks_agree_group_by_group(rings: dict[int, list[CollectiveRecord]]) -> None:
    seen = [record.op for record in rings[0]]
    assert {
        "all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_to_all", "send", "gather", "barrier",
    } <= set(seen)  # fmt: skip
    assert "recv" in {record.op for record in rings[1]}
    sizes = [record.bytes for record in rings[0] if record.op == "all_reduce"]
    assert [4 * n for n in (3, 7, 9, 11, 13)] == [size for size in sizes if size in {12, 28, 36, 44, 52}]
    assert 4 * (3 * 5 + 5) in sizes  # DDP's bucket

    by_group: dict[int, dict[int, list[tuple[str, int]]]] = defaultdict(dict)
    for rank, records in rings.items():
        for record in records:
            assert record.left_at >= record.entered_at > 0
            if record.op not in {"send", "recv"}:
                by_group[record.group].setdefault(rank, []).append((record.op, record.bytes))
    members = sorted(tuple(sorted(ranks)) for ranks in by_group.values())
    assert (0, 1, 2, 3) in members
    assert {(0, 1), (2, 3), (0, 2), (1, 3)} <= set(members)  # halves; shards and replicas of the mesh
    for group, ranks in by_group.items():
        gathers = [[op for op, _ in ops] for ops in ranks.values()]
        assert all(ops == gathers[0] for ops in gathers), group
    for records in rings.values():
        of_group: dict[int, int] = {}
        for record in records:
            of_group[record.group] = of_group.get(record.group, 0) + (record.op not in {"send", "recv"})
            assert record.group_sequence == of_group[record.group]


def test_only_a_collective_that_its_caller_waits_for_is_blocking(rings: dict[int, list[CollectiveRecord]]) -> None:
    blocking = {record.bytes: record.blocking for record in rings[0] if record.op == "all_reduce"}
    assert blocking[4 * 3], "dist.all_reduce"
    assert not blocking[4 * 9], "async_op=True"
    assert not blocking[4 * (3 * 5 + 5)], "DDP's bucket"


@pytest.mark.long
def test_a_rank_that_waits_for_another_has_waited(make_stage: MakeStage, recorder: dict[str, str]) -> None:
    stage = make_stage(2, env=recorder)
    stage.script(LATE)
    assert stage.launch("train.py").wait() == 0, stage.story()
    waited = [stage.deck(rank).read().wait_s for rank in range(2)]
    assert waited[0] > 1.0
    assert waited[1] < 0.8
    assert stage.deck(0).read().beat_at > 0


def test_the_timeout_of_each_group_is_told(make_stage: MakeStage) -> None:
    stage = make_stage(1)
    stage.script(
        "import datetime, time, torch.distributed as dist; "
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=77)); time.sleep(0.3)"
    )
    assert stage.launch("train.py").wait() == 0, stage.story()
    assert stage.note("group")["timeout_s"] == 77.0


@pytest.mark.long
def test_compiled_collectives_are_seen_once_a_call_and_no_phantoms_of_the_compilation(
    make_stage: MakeStage, recorder: dict[str, str]
) -> None:
    stage = make_stage(2, env=recorder)
    stage.script(COMPILED)
    assert stage.launch("train.py").wait() == 0, stage.story()
    seen = [(record.op, record.bytes) for record in stage.deck(0).ring()]
    assert seen == [("all_reduce", 12)] * 6


def test_the_built_recorder_sees_a_collective_end_while_the_gil_is_stuck(make_stage: MakeStage, cache: Path) -> None:
    stage = make_stage(2, env={"XDG_CACHE_HOME": str(cache)})
    stage.script(STUCK)
    stage.launch("train.py")
    state = until("rank 0 left its all_reduce", lambda: (s := stage.deck(0).read()).coll_done == 1 and s)
    assert state.coll_op == "all_reduce"


def test_a_forked_child_writes_nothing_into_the_deck(make_stage: MakeStage, recorder: dict[str, str]) -> None:
    stage = make_stage(1, env=recorder)
    stage.script(FORKED)
    assert stage.launch("train.py").wait() == 0, stage.story()
    assert [(record.op, record.bytes) for record in stage.deck(0).ring()] == [("all_reduce", 12)]


def test_a_library_that_others_could_have_written_is_refused_and_python_records(
    make_stage: MakeStage, cache: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    shutil.copytree(cache, theirs)
    next(theirs.rglob("*.so")).chmod(0o777)
    stage = make_stage(1, env={"XDG_CACHE_HOME": str(theirs)})
    stage.script("import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier()")
    assert stage.launch("train.py").wait() == 0, stage.story()
    assert "may be written by others" in stage.note("warning")["message"]
    state = stage.deck().read()
    assert Flag.RECORDER in state.flags
    assert Flag.BUILT_RECORDER not in state.flags
    assert state.coll_seq == 1


def test_without_a_compiler_the_build_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zrun.worker.recorder_built"], capture_output=True, text=True, check=False,
        env={"XDG_CACHE_HOME": str(tmp_path), "PATH": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )  # fmt: skip
    assert done.returncode == 1
    assert "no C++ compiler" in done.stderr
