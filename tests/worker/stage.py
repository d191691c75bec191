"""Starts real ranks as the agent would (deck, folder, variables), and real torchrun for jobs of two."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from zrun.core.deck import create_deck, deck_path
from zrun.core.deck_reader import DeckReader
from zrun.core.notes import NoteReader
from zrun.core.settings import RankSettings


def until(what: str, check: Callable[[], Any], within_s: float = 60.0) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"{what}: not within {within_s} s")


@dataclass
class Ranks:
    """The ranks of one attempt, started together."""

    processes: list[subprocess.Popen[bytes]]

    def poll(self) -> int | None:
        """None while any runs; then 0, or the first code that is not 0."""
        codes = [process.poll() for process in self.processes]
        return None if None in codes else next((code for code in codes if code), 0)

    def wait(self, within_s: float = 120.0) -> int:
        until("the ranks end", lambda: self.poll() is not None, within_s)
        return self.poll() or 0


@dataclass
class Stage:
    """One attempt's folders, and what a script that runs there left in them."""

    folder: Path
    ranks: int
    settings: RankSettings = field(default_factory=RankSettings)
    attempt: int = 1
    torch: bool = True
    """False: importing torch fails, and a rank is up in a tenth of the time."""
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stores: list[TCPStore] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shm.mkdir(parents=True)
        self.logs.mkdir(parents=True)
        if not self.torch:
            (self.folder / "bare").mkdir()
            (self.folder / "bare" / "torch.py").write_text("raise ImportError('left out by the test')\n")
            self.env["PYTHONPATH"] = str(self.folder / "bare")
        for rank in range(self.ranks):
            create_deck(deck_path(self.shm, rank), rank, self.attempt, time.time())

    @property
    def shm(self) -> Path:
        return self.folder / f"shm-{self.attempt}"

    @property
    def logs(self) -> Path:
        return self.folder / f"attempt-{self.attempt}"

    def script(self, text: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def variables(self, rank: int | None = None) -> dict[str, str]:
        given = {k: v for k, v in os.environ.items() if not k.startswith(("ZRUN_", "PYTHONUNBUFFERED"))}
        given |= {
            "ZRUN_SHM_DIR": str(self.shm), "ZRUN_ATTEMPT_DIR": str(self.logs), "ZRUN_ATTEMPT": str(self.attempt),
            "ZRUN_JOB": "toy-1234", "ZRUN_NAME": "toy", "ZRUN_SEED": str(self.settings.seed),
            "ZRUN_SETTINGS": self.settings.to_json(), "ZRUN_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        if rank is not None:
            given |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.ranks)}
        return given | self.env

    def start(self, *arguments: str | Path, rank: int = 0, **options: Any) -> subprocess.Popen[bytes]:
        """One rank alone."""
        process = subprocess.Popen(
            [sys.executable, "-m", "zrun.worker", *map(str, arguments)], env=self.variables(rank), cwd=self.folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, **options,
        )  # fmt: skip
        self.started.append(process)
        return process

    def run(self, *arguments: str | Path, **options: Any) -> int:
        process = self.start(*arguments, **options)
        process.communicate(timeout=90)
        return process.returncode

    def launch(self, *arguments: str | Path) -> "Ranks":
        """All ranks with torchrun's variables, the store in this process: what the agent's torchrun would give."""
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.stores.append(store)
        self.env |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        }  # fmt: skip
        return Ranks([self.start(*arguments, rank=rank) for rank in range(self.ranks)])

    def torchrun(self, *arguments: str | Path) -> subprocess.Popen[bytes]:
        """All ranks under real torchrun."""
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(self.ranks), "--standalone",
            "--monitor-interval", "0.5", "-m", "zrun.worker", *map(str, arguments),
        ]  # fmt: skip
        with (self.logs / "torchrun.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=self.variables(), cwd=self.folder, stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.started.append(process)
        return process

    def notes(self, kind: str = "", rank: int = 0) -> list[dict[str, Any]]:
        found = NoteReader(self.logs / f"rank-{rank}.notes").read()
        return [n for n in found if n["kind"] == kind or (not kind and (self.torch or n["kind"] != "warning"))]

    def out(self, rank: int = 0) -> str:
        return (self.logs / f"rank-{rank}.out").read_text()

    def err(self, rank: int = 0) -> str:
        lines = (self.logs / f"rank-{rank}.err").read_text().splitlines(keepends=True)
        return "".join(line for line in lines if self.torch or not line.startswith("zrun: warning: torch"))

    def deck(self, rank: int = 0) -> DeckReader:
        return DeckReader(deck_path(self.shm, rank))

    def note(self, kind: str, rank: int = 0, within_s: float = 60.0, **fields: Any) -> dict[str, Any]:
        """Wait for one note of this kind with these values."""

        def there() -> list[dict[str, Any]]:
            return [n for n in self.notes(kind, rank) if all(n.get(k) == v for k, v in fields.items())]

        found: list[dict[str, Any]] = until(f"{kind} {fields}", there, within_s)
        return found[-1]

    def story(self) -> str:
        files = sorted(path for path in self.logs.iterdir() if path.stat().st_size)
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in files)

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
