"""What every rank of this node was doing, on disk before anything is ended: stacks, process states, collectives.

Bounded in time; a rank that does not answer is looked into from outside (py-spy), a stopped one at once. It ends and
changes nothing, and judges nothing.
"""

import asyncio
import json
import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGRTMIN
from typing import Any, Final

from zrun.agent import proc_table
from zrun.agent.rank_story import RankStory
from zrun.core.deck import Flag
from zrun.core.deck_reader import CollectiveRecord
from zrun.core.private import make_folder, write_text
from zrun.core.redact import Redactor
from zrun.core.user_code import UserCode, shown

COLLECTIVES: Final = 50
DUMP_SIGNAL: Final = SIGRTMIN + 4
LIMIT_S: Final = 3.0
LARGEST_DUMP: Final = 1 << 20
BLOCKED_S: Final = 1.0
"""Without a beat of the watcher thread."""
ANSWER_S: Final = 0.5
LEAVING_S: Final = 0.1
"""For one whose exception is ending it: an interpreter that is taken down may answer no more."""
QUIET_S: Final = 0.05
"""A dump that did not grow for so long is whole."""
_ADDRESSES: Final = re.compile(r"\b(pid|process|thread)[ :]*(0x[0-9a-f]+|\d+)|0x[0-9a-f]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Subject:
    """One living rank to look at."""

    story: RankStory
    dump: Path
    """Where its bootstrap appends stacks at the dump signal."""
    ring: list[CollectiveRecord]
    last_lines: list[str]


async def collect(subjects: Sequence[Subject], into: Path, node: str, now: float, hidden: Redactor) -> dict[int, str]:
    """Into folder `into`: stacks/rank-R.txt, stacks/grouped-NODE.txt, node-NODE.json, last-lines/rank-R.txt.

    Returns the stacks by rank. Raises OSError if the folder cannot be written.
    """
    make_folder(into / "last-lines")
    facts = hidden.value([_facts(subject, now) for subject in subjects])
    write_text(into / f"node-{node}.json", json.dumps({"node": node, "ranks": facts}, indent=2, default=str) + "\n")
    for subject in subjects:
        if subject.last_lines:
            text = "\n".join(subject.last_lines) + "\n"
            write_text(into / "last-lines" / f"rank-{subject.story.rank}.txt", hidden.text(text))
    return await take_stacks(subjects, into / "stacks", node, hidden)


async def take_stacks(subjects: Sequence[Subject], folder: Path, node: str, hidden: Redactor) -> dict[int, str]:
    """Into `folder`: rank-R.txt of each rank that has a stack, and grouped-NODE.txt. Raises OSError."""
    make_folder(folder)
    living = [subject for subject in subjects if subject.story.alive and subject.story.pid]
    stacks = {s.story.rank: text for s in subjects if s not in living and (text := fatal_stack(s.dump))}
    tasks = [asyncio.create_task(_into(stacks, subject)) for subject in living]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=LIMIT_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    for rank in {*stacks, *(subject.story.rank for subject in living)}:
        write_text(folder / f"rank-{rank}.txt", hidden.text(stacks.get(rank) or "no stack could be had\n"))
    if stacks:
        write_text(folder / f"grouped-{node}.txt", hidden.text(grouped(stacks)))
    return stacks


def user_lines(stacks: dict[int, str], users: UserCode, start: Path) -> dict[int, str]:
    """rank -> file:line of the innermost frame in the user's own code, as far as there is one."""
    found = {rank: users.in_stack(text) for rank, text in stacks.items()}
    return {rank: shown(place, start) for rank, place in found.items() if place is not None}


def fatal_stack(dump: Path) -> str:
    """What a rank that is dead wrote at the signal it died of; "" if it did not."""
    try:
        with dump.open("rb") as file:
            file.seek(max(0, _size(dump) - LARGEST_DUMP))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    at = text.rfind("Fatal Python error")
    return text[at:] if at >= 0 else ""


async def _into(stacks: dict[int, str], subject: Subject) -> None:
    stacks[subject.story.rank] = await stack_of(subject)


async def stack_of(subject: Subject) -> str:
    """The rank's own dump, else py-spy's; "" if neither can be had."""
    found = proc_table.stat(subject.story.pid)
    if found is None or not found.alive:
        return ""
    if _blocked(subject.story) and (text := await _spy(subject.story.pid)) and not text.startswith("py-spy:"):
        return text  # a signal may cut the very call short that blocks it
    if found.state not in ("T", "t") and Flag.DUMP_READY in subject.story.flags:
        text = await _ask(subject, found.proc)
        if text:
            return text
    if (said := subject.story.spoken) is not None:  # it is on its way out, and has told from where
        return str(said.get("traceback") or "")
    return await _spy(subject.story.pid)


def _blocked(story: RankStory) -> bool:
    """Does native code hold its interpreter?"""
    beat_at = story.deck.beat_at if story.deck is not None else 0.0
    return beat_at > 0.0 and time.monotonic() - beat_at >= BLOCKED_S


async def _ask(subject: Subject, proc: proc_table.Proc) -> str:
    before = _size(subject.dump)
    if not proc_table.send(proc, DUMP_SIGNAL):
        return ""
    began = grew = time.monotonic()
    size = before
    while time.monotonic() < began + _patience_s(subject.story) and (
        size == before or time.monotonic() < grew + QUIET_S
    ):
        await asyncio.sleep(QUIET_S / 5)
        if (newer := _size(subject.dump)) != size:
            size, grew = newer, time.monotonic()
    if size == before:
        return ""
    with subject.dump.open("rb") as file:
        file.seek(before)
        return file.read().decode("utf-8", "replace")


def _patience_s(story: RankStory) -> float:
    return LEAVING_S if story.spoken is not None else ANSWER_S


async def _spy(pid: int) -> str:
    beside = Path(sys.executable).parent / "py-spy"
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return ""
    child = await asyncio.create_subprocess_exec(
        program, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, trouble = await child.communicate()
    except asyncio.CancelledError:
        child.kill()
        await child.wait()
        raise
    return out.decode("utf-8", "replace") or f"py-spy: {trouble.decode('utf-8', 'replace')}"


def _facts(subject: Subject, now: float) -> dict[str, Any]:
    story, deck = subject.story, subject.story.deck
    found = proc_table.stat(story.pid) if story.pid else None
    fields: dict[str, Any] = {
        "rank": story.rank, "pid": story.pid, "alive": story.alive, "state": found.state if found else None,
        "cpu_s": found.cpu_s if found else None, "wchan": _text(story.pid, "wchan"),
        "exit_code": story.exit_code, "signal": story.signal, "last_words": story.words or story.candidate,
    }  # fmt: skip
    if deck is not None:
        fields |= {
            "step": deck.step, "completed": deck.completed, "phase": deck.phase_name or deck.phase.label,
            "batch": str(deck.batch) if deck.batch else None, "flags": str(deck.flags),
            "age_s": round(now - deck.progress_at, 3) if deck.progress_at else None, "roll_call": roll_call(story, now),
        }  # fmt: skip
    return {**fields, "collectives": [asdict(record) for record in subject.ring[-COLLECTIVES:]]}


def roll_call(story: RankStory, now: float) -> str:
    """`rank 1: step 41, step, in all_reduce #17 for 3.2 s`."""
    deck = story.deck
    if deck is None:
        return f"rank {story.rank}: not begun"
    where = f"after {deck.coll_op} #{deck.coll_done}" if deck.coll_seq else "no collective yet"
    if deck.in_collective:
        where = f"in {deck.coll_op} #{deck.coll_seq} for {now - deck.coll_entered_at:.1f} s"
    return f"rank {story.rank}: step {deck.step}, {deck.phase_name or deck.phase.label}, {where}"


def grouped(stacks: dict[int, str]) -> str:
    """Equal stacks once, with the ranks that have them; addresses and process numbers do not count."""
    groups: dict[str, list[int]] = {}
    for rank, text in sorted(stacks.items()):
        groups.setdefault(_ADDRESSES.sub("", text), []).append(rank)
    parts = [f"== {ranks_text(ranks)} ==\n{stacks[ranks[0]].rstrip()}\n" for ranks in groups.values()]
    return "\n".join(parts)


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    numbers = sorted(ranks)
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank{'s' if len(numbers) != 1 else ''} {text}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(pid: int, name: str) -> str | None:
    try:
        return (proc_table.PROC / str(pid) / name).read_text(errors="replace").strip() or None
    except OSError:
        return None
