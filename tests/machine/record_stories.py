"""Records how real jobs fail, as the job machine is told of it: `python tests/machine/record_stories.py [KIND …]`.

Each story of tests/e2e/scripts/stories.py is launched as a user launches it; what blame was given goes to
recorded/KIND.json. The expected verdicts are in test_recorded_stories.py, written by hand.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from zrun.coordinator.journal import Journal
from zrun.core.runfolder import RunFolder
from zrun.machine.events import AttemptStarted, Suspected

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parent / "e2e" / "scripts" / "stories.py"
RECORDED = HERE / "recorded"
RANKS = {"all_the_same": 4, "most_the_same": 4, "at_import": 4, "kill": 3, "setup_one": 3}
KINDS = [
    "raises", "slow_finally", "exit_0", "exit_7", "sys_exit_7", "exit_137", "kill", "abort", "segfault", "memory_error",
    "allocator", "waits_in_vain", "sleeps", "stops", "broken_pipe", "loader_killed", "loader_raises", "all_the_same",
    "most_the_same", "chained", "keyboard", "disk_full", "save_disk_full", "http_reset", "network_words", "user_timeout",
    "end_of_file", "two_raise", "odd_survivor", "wrapped_echo", "hidden_echo", "work_wait", "monitored_barrier",
    "store_wait", "mismatch", "backward_hook", "at_import", "setup_one",
]  # fmt: skip
_NOT_KEPT = {"full_disks", "peak_rss_bytes", "memory_limit_bytes", "pid"}
"""Differ from machine to machine and say nothing here."""


def record(kind: str, folder: Path) -> dict[str, Any]:
    """Runs the job in `folder`, and gives what blame was told."""
    run = f"name: {kind.replace('_', '-')}\nnproc_per_node: {RANKS.get(kind, 2)}\nrun: {SCRIPT} {kind}\n"
    rest = "restart: {policy: never}\nwatchdog: {first_step: 60s, step: 3s, patience: 3s, exit: 10s}\n"
    if kind == "waits_in_vain":
        rest = "restart: {policy: never}\nwatchdog: {first_step: 120s, step: 120s}\n"
    (folder / "job.yaml").write_text(run + rest)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("ZRUN_")}
    environ |= {"XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "zrun.cli.main", "launch", "job.yaml"], cwd=folder, env=environ, capture_output=True,
        text=True, timeout=180, check=False,
    )  # fmt: skip
    runs = list((folder / "runs").iterdir())
    incidents = sorted((runs[0] / "incidents").glob("*/incident.json"))
    if not incidents:
        raise SystemExit(f"{kind}: no incident, exit {done.returncode}\n{done.stderr[-3000:]}")
    return told(runs[0], json.loads(incidents[0].read_text()), folder)


def told(run: Path, incident: dict[str, Any], folder: Path) -> dict[str, Any]:
    journal = Journal(RunFolder(run).journal)
    events = [entry.event for entry in journal.replay()]
    journal.close()
    suspicions = [event for event in events if isinstance(event, Suspected)]
    failures = [{k: v for k, v in one.items() if k not in _NOT_KEPT} for one in incident["failures"]]
    text = json.dumps(
        {
            "failures": [{**one, "node": "a", "last_lines": one["last_lines"][-12:]} for one in failures],
            "suspicion": msgspec.to_builtins(suspicions[-1]) | {"node": "a"} if suspicions else None,
            "lost_nodes": incident["lost_nodes"],
            "ran_before": any(isinstance(event, AttemptStarted) for event in events),
        }
    )
    for path, name in ((str(folder), "/job"), (str(SCRIPT.parent), "/job"), (sys.prefix, "/venv")):
        text = text.replace(path, name)
    value: dict[str, Any] = json.loads(text)
    return value


def main(kinds: list[str]) -> None:
    RECORDED.mkdir(exist_ok=True)
    for kind in kinds or KINDS:
        with tempfile.TemporaryDirectory(prefix=f"story-{kind}-") as folder:
            story = record(kind, Path(folder))
        (RECORDED / f"{kind}.json").write_text(json.dumps(story, indent=1) + "\n")
        print(f"{kind}: {len(story['failures'])} failures", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
