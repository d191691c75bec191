"""Stands in for `python -m torch.distributed.run`: starts the ranks as its children and then sleeps, without torch."""

import os
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    given = sys.argv[1:]
    nproc = int(given[given.index("--nproc-per-node") + 1])
    node_rank = int(given[given.index("--node-rank") + 1])
    run = given[given.index("zrun.worker") + 1 :]
    if "FAIL_PORTS" in os.environ:  # the port is taken, the first so many times
        counter = Path(os.environ["FAIL_PORTS"])
        left = int(counter.read_text())
        if left:
            counter.write_text(str(left - 1))
            print("RuntimeError: The server socket has failed to listen: EADDRINUSE", flush=True)
            sys.exit(1)
    rank_program = str(Path(__file__).with_name("rank.py"))
    for local in range(nproc):
        env = {
            **os.environ, "RANK": str(node_rank * nproc + local), "LOCAL_RANK": str(local), "WORLD_SIZE": str(nproc),
        }  # fmt: skip
        subprocess.Popen([sys.executable, rank_program, *run], env=env, start_new_session=True)
    time.sleep(3600)


if __name__ == "__main__":
    main()
