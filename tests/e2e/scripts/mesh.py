"""Four ranks as a 2 x 2 mesh: each step an all_reduce in the row, then one in the column; `FAULT STEP`.

late: rank 3 sleeps before its row. crossed: ranks 0 and 1 take row and a second group of both in opposite order.
shapes: rank 1 brings twice as much. kinds: rank 1 broadcasts where the others reduce. Each in attempt 1 alone.
"""

import os
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    fault, at = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    also = dist.new_group([0, 1])
    row, column = rows[rank // 2], columns[rank % 2]
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for step in range(1, at + 20):
        time.sleep(0.05)
        broken = step == at and os.environ["ZRUN_ATTEMPT"] == "1"
        grad = torch.ones(8)
        if broken and fault == "late" and rank == 3:
            time.sleep(600)
        if broken and fault == "crossed" and rank < 2:
            for group in (row, also) if rank == 0 else (also, row):
                dist.all_reduce(grad, group=group)
        elif broken and fault == "shapes" and rank == 1:
            dist.all_reduce(torch.ones(16), group=row)
        elif broken and fault == "kinds" and rank == 1:
            dist.broadcast(grad, src=1, group=row)
        else:
            dist.all_reduce(grad, group=row)
        dist.all_reduce(grad, group=column)
        weight.grad = grad
        optimizer.step()
        print(f"step {step}")
    dist.barrier()


if __name__ == "__main__":
    main()
