"""Program of test_examples_run.py: the language model once with each strategy, in one set of processes."""

import sys
from functools import partial
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

HYBRID = Path(__file__).resolve().parents[2] / "examples" / "hybrid"

if __name__ == "__main__":
    sys.path.insert(0, str(HYBRID))
    import train
    from parallel import STRATEGIES

    store, rank, world = next(iter(rendezvous("env://")))
    begin = dist.init_process_group
    for strategy in STRATEGIES:
        sys.argv = ["train.py", *sys.argv[1:], "--strategy", strategy]
        # A part of the store for each: keys of a group that is gone would be taken for those of the next.
        own = PrefixStore(strategy, store)
        dist.init_process_group = partial(begin, store=own, rank=rank, world_size=world)
        train.main()
