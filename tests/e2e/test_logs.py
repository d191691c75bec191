"""What ranks say is there, once, with its step, also when a rank is killed; and `zrun logs` finds it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent / "scripts"
KEYS = {"ts", "job", "attempt", "node", "rank", "local_rank", "stream", "step", "batch", "level", "msg"}


def test_everything_a_rank_said_is_there_with_its_step_when_it_is_killed(make_job: Callable[..., Any]) -> None:
    job = make_job(f"{SCRIPTS / 'talkative.py'}", restart="policy: never", extra='env: {PYTHONUNBUFFERED: ""}\n')
    assert job.run() != 0
    lines = job.log_lines(1, 1)
    assert all(set(line) - {"fields"} == KEYS for line in lines), job.story()
    assert {(line["rank"], line["local_rank"], line["attempt"]) for line in lines} == {(1, 1, 1)}
    said = [(line["step"], line["msg"]) for line in lines]
    for step in range(1, 6):
        at = step if step > 1 else None  # that there are steps is known when the first one is done
        for text in (f"plain {step}", f"no newline until {step}", f"error {step}", f"from C {step}", f"as json {step}",
                     f"from a child {step}", f"\r10%\r100% {step}", f"\\xff\x00 rubbish {step}"):  # fmt: skip
            assert said.count((at, text)) == 1, (step, text, said)
    texts = [text for _, text in said if not text.startswith("[zrun: ")]
    assert (said[0], texts[-1]) == ((None, "before any step"), "the very last words")
    assert "x" * 1_000_000 in texts
    assert "from a wrapped child" in texts
    own = next(line for line in lines if line["msg"] == "as json 2")
    assert (own["level"], own["fields"]["loss"]) == ("warning", 0.5)
    assert {line["stream"] for line in lines if line["msg"].startswith("error")} == {"stderr"}
    shown = job.zrun("logs", "--rank", "1", "--tail", "9", "--json").stdout.splitlines()
    assert "the very last words" in [json.loads(line)["msg"] for line in shown]
    found = job.zrun("logs", "--grep", "^plain 3$", "--stream", "stdout").stdout.splitlines()
    assert sorted(found) == ["[rank 0] plain 3", "[rank 1] plain 3"]
    for name in ("agent", "coordinator", "supervisor"):
        for text in (job.run_dir / f"{name}.log").read_text().splitlines():
            line = json.loads(text)
            assert (line["program"], {"ts", "level", "msg"} <= set(line)) == (name, True), text


@pytest.mark.long
def test_a_rank_that_prints_without_end_stays_within_its_share_of_the_disk(make_job: Callable[..., Any]) -> None:
    script = (
        "import sys\nfor n in range(2_000_000):\n    sys.stdout.write(f'line {n} ' + 'x' * 90 + '\\n')\nprint('end')\n"
    )
    job = make_job("loud.py", extra="logs: {max_size: 8MiB}\n", nproc=1)
    (job.folder / "loud.py").write_text(script)
    assert job.run() == 0
    lines = job.log_lines(1, 0)
    assert (lines[0]["msg"].split()[1], lines[-1]["msg"]) == ("0", "end"), job.story()
    assert any("left out" in line["msg"] for line in lines)
    held = sum(path.stat().st_blocks * 512 for path in job.run_dir.rglob("*") if path.is_file())
    assert held < 12 << 20, held
