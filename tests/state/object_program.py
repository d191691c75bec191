"""`object_program.py FOLDER URL ATTEMPTS.json`: forked ranks train with a Session that saves every other step under URL.

Each attempt is {"world", "total", "rows", "kill": POINT:N or nothing, "who": rank}. One JSON line for each says what its ranks
came to, and under which digest the first one knew the state after each step (the first of them as it was restored).
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from tests.state.forked import fork_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from zrun.core.settings import RankSettings
from zrun.state.tensor_bytes import view_of
from zrun.worker import Session


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (parameter.detach(), *optimizer.state.get(parameter, {}).values()):
            found.update(view_of(tensor.contiguous()))
    return found.hexdigest()


def rank_of(rank: int, folder: Path, url: str, number: int, attempt: dict[str, Any]) -> None:
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(attempt["world"]), "ZRUN_CHECKPOINT_DIR": url,
        "ZRUN_ATTEMPT": str(number), "ZRUN_JOB": "toy-1", "PYTEST_CURRENT_TEST": "a child of one",
        "ZRUN_SETTINGS": RankSettings(
            save_every_steps=2, keep_last=2, keep_every_steps=None, allow_changed=["total_steps"]
        ).to_json(),
    }  # fmt: skip
    if attempt.get("kill") and rank == attempt["who"]:
        os.environ["ZRUN_KILL_AT"] = attempt["kill"]
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, attempt["rows"], bias=False), nn.Dropout(0.2)))
    optimizer = torch.optim.AdamW(model.parameters())
    told = (folder / f"told-{number}-{rank}").open("a", buffering=1)
    with Session(model=model, optimizer=optimizer) as run:
        for step in run.steps(total=attempt["total"]):
            print(step - 1, digest(model, optimizer), file=told)
            optimizer.zero_grad()
            model(torch.randn(2, 8)).square().mean().backward()
            optimizer.step()
    print(run.step, digest(model, optimizer), file=told)


def main() -> None:
    folder, url, attempts = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    for number, attempt in enumerate(attempts, 1):
        statuses = fork_ranks(
            attempt["world"], folder / f"ranks-{number}",
            lambda rank, n=number, a=attempt: rank_of(rank, folder, url, n, a),  # type: ignore[misc]
        )  # fmt: skip
        told = folder / f"told-{number}-0"
        lines = told.read_text().splitlines() if told.exists() else []
        said = [(folder / f"ranks-{number}" / f"rank-{r}.out").read_text() for r in range(attempt["world"])]
        steps = {int(step): held for step, held in (line.split() for line in lines)}
        print(json.dumps({"statuses": statuses, "steps": steps, "said": said}), flush=True)


main()
