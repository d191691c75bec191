"""`killed_program.py FOLDER full`: saves step 1, then runs into a limit in the middle of step 2.

`killed_program.py FOLDER POINT:N:WHO …`: for each, two forked ranks train with a Session that saves every other step.
At the Nth arrival at POINT (zrun.state.kill_points) rank WHO is killed, or the whole `group`. Then two new ranks resume
and train to the end. One JSON line each says what they found; their steps are compared with those of a run that nobody
disturbed.
"""

import hashlib
import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from tests.state.forked import fork_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from zrun.core.settings import RankSettings
from zrun.state.checkpoints import Checkpoints
from zrun.state.parts import Parts
from zrun.state.progress import Progress
from zrun.worker import Session

CADENCE = 2
TOTAL = 14


def full(folder: Path) -> None:
    made = Checkpoints(folder, job="toy-1", name="toy", attempt=1, rank=0, world_size=1, seed=3, warn=print)
    made.claim(0)
    parts = Parts(nn.Linear(1000, 600))
    made.save(parts, Progress(step=1), {})
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    made.save(parts, Progress(step=2), {})


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    state = [p.tolist() for p in model.parameters()]
    moments = [v.tolist() for p in model.parameters() for v in optimizer.state.get(p, {}).values()]
    return hashlib.sha256(repr([state, moments]).encode()).hexdigest()


class Trial:
    """Attempts of one job in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def train(self, attempt: int, kill_at: str = "", who: str = "") -> list[int]:
        """The ranks' statuses; they train in a process group of their own."""
        keeper = os.fork()
        if not keeper:
            os.setsid()
            statuses = fork_ranks(
                2, self.folder / f"ranks-{attempt}", lambda rank: self.rank(rank, attempt, kill_at, who)
            )
            (self.folder / f"statuses-{attempt}").write_text(json.dumps(statuses))
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])
        return [ended, ended] if ended else json.loads((self.folder / f"statuses-{attempt}").read_text())

    def rank(self, rank: int, attempt: int, kill_at: str, who: str) -> None:
        os.environ |= {
            "RANK": str(rank), "WORLD_SIZE": "2", "ZRUN_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "ZRUN_ATTEMPT": str(attempt), "ZRUN_JOB": "toy-1",
            "ZRUN_SETTINGS": RankSettings(save_every_steps=CADENCE, keep_last=2, keep_every_steps=None).to_json(),
        }  # fmt: skip
        if who in (str(rank), "group"):
            os.environ["ZRUN_KILL_AT"] = kill_at + (":group" if who == "group" else "")
        torch.manual_seed(1)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 30), nn.Dropout(0.2), nn.Linear(30, 20)))
        optimizer = torch.optim.AdamW(model.parameters())
        story = (self.folder / f"story-{attempt}-{rank}").open("a", buffering=1)
        with Session(model=model, optimizer=optimizer) as run:
            for step in run.steps(total=TOTAL):
                print("over", step - 1, digest(model, optimizer), file=story)
                optimizer.zero_grad()
                model(torch.randn(8, 40)).square().mean().backward()
                optimizer.step()
                print("computed", step, digest(model, optimizer), file=story)
        print("over", run.step, digest(model, optimizer), file=story)

    def story(self, attempt: int, rank: int) -> list[tuple[str, int, str]]:
        """(computed, or over: a save that was due has been requested; steps; what the state was), as this rank saw it."""
        path = self.folder / f"story-{attempt}-{rank}"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(kind, int(step), held) for kind, step, held in lines]

    def furthest(self, attempt: int, kind: str) -> int:
        return max((step for rank in (0, 1) for said, step, _ in self.story(attempt, rank) if said == kind), default=0)


def tell(folder: Path, straight: dict[int, str], wanted: str) -> dict[str, Any]:
    point, number, who = wanted.split(":")
    trial = Trial(folder / wanted.replace(":", "-"))
    trial.folder.mkdir()
    killed = trial.train(1, f"{point}:{number}", who)
    resumed = trial.train(2)
    stories = [trial.story(2, rank) for rank in (0, 1)]
    steps = [[step for _, step, _ in story] for story in stories]
    found = {
        "kill": wanted, "killed": killed, "computed": trial.furthest(1, "computed"), "over": trial.furthest(1, "over"),
        "resumed": resumed, "began": [min(s, default=-1) for s in steps], "ended": [max(s, default=-1) for s in steps],
        "right": [all(straight.get(step) == held for _, step, held in story) for story in stories],
        "left": sorted(p.name for p in (trial.folder / "checkpoints").glob("*.tmp*")),
    }  # fmt: skip
    shutil.rmtree(trial.folder)
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    if sys.argv[2] == "full":
        full(folder)
        return
    straight = Trial(folder / "straight")
    straight.folder.mkdir(parents=True)
    straight.train(1)
    undisturbed = {step: held for _, step, held in straight.story(1, 0)}
    for wanted in sys.argv[2:]:
        print(json.dumps(tell(folder, undisturbed, wanted)), flush=True)


main()
