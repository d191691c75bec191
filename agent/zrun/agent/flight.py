"""torch's flight recorder of each living rank, into an incident's folder: as JSON, and as a table of who is behind.

Asks the ranks through their decks and waits a moment; a rank whose interpreter is blocked answers nothing. Dumps that
torch wrote by itself (NCCL at a timeout) are pickles: they are kept beside it, and never opened.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zrun.agent import proc_table
from zrun.agent.decks import Decks
from zrun.core.private import make_folder, write_text

ANSWER_S: Final = 1.0
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class GroupFlight:
    """Where a rank stands on one process group; numbers count from 1, 0 = none yet."""

    name: str
    enqueued: int
    finished: int
    waits_for: str
    """The oldest one that is not finished, in words; "" if all are."""


async def collect(
    decks: Decks, pids: Mapping[int, int], attempt_dir: Path, into: Path, node: str,
    leaving: Callable[[int], bool] = lambda _: False,
) -> None:  # fmt: skip
    """`pids`: of ranks that can answer. Into folder `into`: flight/rank-R.json, flight/NODE.txt, torch's own dumps as
    flight/*.pickle. `leaving`: is that rank ending by itself, so that it answers no more? Raises OSError.
    """
    kept = sorted(own_dumps(attempt_dir).glob("rank_*")) if own_dumps(attempt_dir).is_dir() else []
    answers = {rank: attempt_dir / f"rank-{rank}.flight" for rank in pids}
    for rank, path in answers.items():
        path.unlink(missing_ok=True)
        decks.ask_flight(rank)
    until = time.monotonic() + ANSWER_S
    for rank, path in answers.items():
        while not path.exists() and _lives(pids[rank]) and not leaving(rank) and time.monotonic() < until:  # noqa: ASYNC110 - a rank makes it
            await asyncio.sleep(_LOOK_S)
    found = {rank: path for rank, path in answers.items() if path.exists()}
    if not found and not kept:
        return
    make_folder(into / "flight")
    seen: dict[int, list[GroupFlight]] = {}
    for rank, path in found.items():
        text = path.read_text(errors="replace")
        path.unlink()
        write_text(into / "flight" / f"rank-{rank}.json", text)
        seen[rank] = read(text)
    for dump in kept:
        shutil.copyfile(dump, into / "flight" / f"{dump.name}.pickle")
    if any(seen.values()):
        write_text(into / "flight" / f"{node}.txt", table(seen))


def _lives(pid: int) -> bool:
    found = proc_table.stat(pid)
    return found is not None and found.alive


def own_dumps(attempt_dir: Path) -> Path:
    """Where torch puts what it dumps by itself."""
    return attempt_dir / "flight"


def read(text: str) -> list[GroupFlight]:
    """What one rank's recorder says of each group; nothing of what is not understood. Pure.

    gloo leaves `state` at "scheduled" for ever; `retired` marks the end on every backend.
    """
    try:
        entries = [entry for entry in json.loads(text)["entries"] if isinstance(entry, dict)]
    except (ValueError, KeyError, TypeError):
        return []
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        if not entry.get("is_p2p"):
            groups.setdefault(":".join(map(str, entry.get("process_group") or ("?",))), []).append(entry)
    return [_group(name, groups[name]) for name in sorted(groups)]


def _group(name: str, entries: list[dict[str, Any]]) -> GroupFlight:
    open_ones = [entry for entry in entries if not entry.get("retired") and entry.get("state") != "completed"]
    oldest = min(open_ones, key=_sequence, default=None)
    finished = max((_sequence(entry) for entry in entries if entry not in open_ones), default=0)
    if oldest is None:
        return GroupFlight(name, max(map(_sequence, entries)), finished, "")
    op = str(oldest.get("profiling_name", "?")).rsplit(":", 1)[-1]
    words = f"{op} #{_sequence(oldest)} {oldest.get('input_sizes')} {oldest.get('state')}"
    return GroupFlight(name, max(map(_sequence, entries)), finished, words)


def _sequence(entry: Mapping[str, Any]) -> int:
    value = entry.get("collective_seq_id")
    return value if isinstance(value, int) else 0


def table(seen: Mapping[int, Sequence[GroupFlight]]) -> str:
    """One line a rank and group, and who has enqueued less than others on the same group. Pure."""
    lines: list[str] = []
    for group in sorted({one.name for groups in seen.values() for one in groups}):
        ranks = {rank: one for rank, groups in sorted(seen.items()) for one in groups if one.name == group}
        most = max(one.enqueued for one in ranks.values())
        lines.append(f"group {group}:")
        for rank, one in ranks.items():
            behind = f", {most - one.enqueued} behind" if one.enqueued < most else ""
            waits = f", waits for {one.waits_for}" if one.waits_for else ""
            lines.append(f"  rank {rank}: {one.enqueued} enqueued{behind}, {one.finished} finished{waits}")
    return "\n".join(lines) + "\n"
