"""Runs stories (resume_program.py) and reads what their ranks wrote."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("resume_program.py")
Story = dict[str, Any]


def attempts(world: int, strategy: str, *kills: tuple[int, int], total: int = 13, **last: Any) -> list[dict[str, Any]]:
    """One attempt that ends at each (step, part), and one more that ends by itself."""
    each = {"world": world, "strategy": strategy, "total": total}
    return [*(each | {"kill": list(kill)} for kill in kills), each | last]


class Told:
    """What the ranks of all stories wrote."""

    def __init__(self, folder: Path, stories: list[Story], timeout_s: float = 280) -> None:
        self.folder = folder
        (folder / "stories.json").write_text(json.dumps(stories))
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), str(folder / "stories.json")],
            start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=timeout_s)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # every rank has ended, as it should
        assert process.returncode == 0, said

    def lines(self, story: str, rank: int = 0) -> list[dict[str, Any]]:
        path = self.folder / story / f"rank-{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def every(self, story: str, key: str, rank: int = 0) -> list[Any]:
        return [line[key] for line in self.lines(story, rank) if key in line]

    def output(self, story: str, attempt: int, rank: int = 0) -> str:
        return (self.folder / story / f"attempt-{attempt}" / f"rank-{rank}.out").read_text()

    def statuses(self, story: str, attempt: int) -> list[int]:
        found: list[int] = json.loads((self.folder / story / f"attempt-{attempt}" / "statuses.json").read_text())
        return found

    def steps(self, story: str, rank: int) -> list[dict[str, Any]]:
        """What was seen in each step, in the order it was done, without who saw it."""
        return [
            {key: value for key, value in line.items() if key != "attempt"}
            for line in self.lines(story, rank)
            if "step" in line
        ]

    def assert_same(self, straight: str, broken: str, world: int, steps: int = 13) -> None:
        """Every step of the broken story, done once or twice, is the undisturbed one, and so is the end."""
        for rank in range(world):
            undisturbed = {step["step"]: step for step in self.steps(straight, rank)}
            assert list(undisturbed) == list(range(1, steps + 1)), self.output(straight, 1, rank)
            for step in self.steps(broken, rank):
                assert step == undisturbed[step["step"]], (broken, rank)
            (end,), (same,) = self.every(straight, "digests", rank), self.every(broken, "digests", rank)
            assert end == same, (broken, rank)

    def resumed(self, story: str) -> list[int]:
        return self.every(story, "resumed")
