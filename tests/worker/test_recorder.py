"""Every way to a collective is recorded, with its group, and left when its Work is over."""

from collections import defaultdict
from collections.abc import Callable

import pytest
from tests.worker.stage import Stage

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


@pytest.fixture
def rings(make_stage: MakeStage) -> dict[int, list[CollectiveRecord]]:
    stage = make_stage(4)
    stage.script(EVERY_WAY)
    assert stage.launch("train.py").wait() == 0, stage.story()
    for rank in range(4):
        state = stage.deck(rank).read()
        assert Flag.RECORDER in state.flags
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
