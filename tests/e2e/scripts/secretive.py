"""A short job that is careless with the variable API_KEY: rank 1 prints it and then raises it in step 13.

It leaves files of its own in the run's folder, open to all, as a user's script may.
"""

import base64
import hashlib
import json
import os
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from zrun.worker import Session

STEPS = 30


def main() -> None:
    torch.distributed.init_process_group("gloo")
    secret = os.environ["API_KEY"]
    rank = int(os.environ["RANK"])
    print(f"digest {hashlib.sha256(secret.encode()).hexdigest()}")
    made = Path(os.environ["ZRUN_RUN_DIR"]) / "made"
    if rank == 0:
        made.mkdir(exist_ok=True)
        made.chmod(0o755)
        (made / "sample.txt").write_text("mine\n")
        (made / "sample.txt").chmod(0o644)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with Session(model=model, optimizer=opt) as run:
        for step in run.steps(total=STEPS):
            if rank == 1 and step == 12:
                print(f"the key is {secret} and nobody should see it")
                print(json.dumps({"level": "warning", "msg": f"key={secret}"}))
                print(f"authorization: Basic {base64.b64encode(f'user:{secret}'.encode()).decode()}")
            if rank == 1 and step == 13:
                raise RuntimeError(f"server refused the key {secret!r}")
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            print(f"step {step}")


if __name__ == "__main__":
    main()
