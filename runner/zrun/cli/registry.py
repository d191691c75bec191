"""`$XDG_STATE_HOME/zrun/runs.jsonl`: one line for each run this person started, so that commands find it again.

Holds folders only; address and token are read live from the run's folder. Knows nothing about HTTP.
"""

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from zrun.core import durable, env

_LONGEST: Final = 2000
"""Lines; beyond that runs whose folder is gone are dropped."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One run. `started` in Unix seconds; `coordinator` only for a job handed to a coordinator elsewhere."""

    job: str
    name: str
    dir: str
    started: float
    coordinator: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.dir)


def registry_path() -> Path:
    return state_folder() / "runs.jsonl"


def state_folder() -> Path:
    """In XDG_STATE_HOME, or ~/.local/state where it is not set (or not absolute, as the XDG rule says)."""
    state = Path(env.get("XDG_STATE_HOME"))
    if not state.is_absolute():
        state = Path.home() / ".local" / "state"
    return state / "zrun"


def remember(job: str, name: str, folder: Path, *, coordinator: str = "") -> None:
    """Add a line; a run that goes on gets a second one and thereby becomes the newest."""
    path = registry_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    line = json.dumps(asdict(Entry(job, name, str(folder), time.time(), coordinator))) + "\n"
    while not _append(path, line.encode()):
        continue
    if path.stat().st_size > _LONGEST * 150:
        _compact(path)


def _append(path: Path, line: bytes) -> bool:
    """False if the file was compacted between opening and locking it: the line would go into the old one."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        if not path.exists() or path.stat().st_ino != os.fstat(handle).st_ino:
            return False
        file.write(line)
        return True


def _compact(path: Path) -> None:
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        kept = [json.dumps(asdict(entry)) for entry in reversed(known())]
        durable.write_bytes(path, ("\n".join(kept) + "\n").encode())


def known() -> list[Entry]:
    """All runs whose folder still exists (or that live elsewhere), newest first, each once."""
    try:
        lines = registry_path().read_text(errors="replace").splitlines()
    except OSError:
        return []
    found: dict[str, Entry] = {}
    for line in reversed(lines):
        try:
            value = json.loads(line)
            entry = Entry(
                str(value["job"]), str(value["name"]), str(value["dir"]), float(value["started"]),
                str(value.get("coordinator", "")),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a line half written by a machine that went down
        if entry.job not in found and (entry.coordinator or entry.folder.is_dir()):
            found[entry.job] = entry
    return list(found.values())
