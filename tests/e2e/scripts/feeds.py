"""A small DDP job that tells which samples it gets: `--kind samples|stream|shards|sampler`.

Sample `--nan INDEX` makes the loss nan. Without `--steps` the loop ends with the data, after two epochs.
"""

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import WeightedRandomSampler

from zrun.worker import Loader, Session

SAMPLES = 90


class Numbers:
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Stream:
    """As long as it turns out to be."""

    def stream(self, epoch: int, start: int) -> Iterator[int]:
        return iter(range(1000 * epoch + start, 1000 * epoch + SAMPLES))


class Shards:
    def shards(self) -> list[int]:
        return [40, 20, 30]

    def read(self, shard: int, start: int, count: int) -> Iterator[int]:
        first = [0, 40, 60][shard] + start
        return iter(range(first, first + count))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="samples")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--nan", type=int, default=-1)
    parser.add_argument("--pause", type=float, default=0.02)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)
    data: Any = {"stream": Stream, "shards": Shards}.get(options.kind, Numbers)()
    sampler = WeightedRandomSampler([1.0, 2.0] * (SAMPLES // 2), SAMPLES) if options.kind == "sampler" else None
    loader = Loader(data, global_batch=8, drop_last=False, sampler=sampler, epochs=2)
    with Session(model=model, optimizer=opt, data=loader) as run:
        for batch in run.steps(total=options.steps):
            time.sleep(options.pause)
            print(f"step {run.step} batch {run.batch_id} samples {batch.tolist()}")
            x = batch.float().unsqueeze(1) / SAMPLES
            loss = ((model(x) - x) ** 2).mean()
            if options.nan in batch.tolist():
                loss = loss * float("nan")
            (loss * run.weight).backward()
            opt.step()
            opt.zero_grad()
            run.report(loss=loss)
    print(f"over after step {run.step} as rank {os.environ['RANK']}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
