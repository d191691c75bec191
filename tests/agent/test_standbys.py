"""The keeper's standbys: they outlive what they must, end with the keeper, and become ranks all together or not at all."""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from tests.agent.test_keeper import Bench, living, play

from zrun.agent import proc_table
from zrun.agent.launch import free_port
from zrun.agent.proc_table import Proc
from zrun.agent.standbys import packed

WAITS = """
import json, os, socket, sys, time
line = socket.socket(fileno=int(sys.argv[-1]))
line.sendall(sys.argv[1].encode())
told, fds, _, _ = socket.recv_fds(line, 64, 2)
if told:
    given = json.load(os.fdopen(fds[0]))
    port = socket.socket(fileno=fds[1]).getsockname()[1] if len(fds) > 1 else 0
    into = given["env"]["INTO"]
    with open(into + ".tmp", "w") as file:
        file.write(json.dumps({"env": given["env"], "argv": given["argv"], "port": port, "pid": os.getpid()}))
    os.rename(into + ".tmp", into)
    time.sleep(300)
"""


class Waiting:
    """A keeper with two standbys that only pretend to have imported something."""

    def __init__(self, one: Bench, folder: Path) -> None:
        self.one, self.folder = one, folder
        self.env = {**os.environ, "ZRUN_MARK": f"{one.job}/1/{one.boot}"}

    async def begin(self, says: str = "ready") -> None:
        link = await self.one.start()
        for rank in (0, 1):
            self.spawn(rank, says)
        what = "standby-ready" if says == "ready" else "standby-gone"
        await self.one.until(lambda: len([line for line in self.one.heard if line["said"] == what]) == 2)
        assert link is self.one.link

    def spawn(self, rank: int, says: str) -> None:
        assert self.one.link is not None
        argv = [sys.executable, "-c", WAITS, says]
        self.one.link.standby(rank, argv, self.env, str(self.folder), self.folder / "standby.log")

    def pids(self) -> dict[int, int]:
        return {line["rank"]: line["pid"] for line in self.one.heard if line["said"] == "standby-ready"}

    def procs(self) -> set[Proc]:
        return {found.proc for pid in self.pids().values() if (found := proc_table.stat(pid)) is not None}

    def activate(self, port: int, ranks: tuple[int, ...] = (0, 1), **env: str) -> None:
        assert self.one.link is not None
        given = {rank: packed({"INTO": str(self.folder / f"became-{rank}"), **env}, ["train.py"]) for rank in ranks}
        self.one.link.activate(given, "127.0.0.1", port)

    async def became(self, rank: int) -> dict[str, Any]:
        path = self.folder / f"became-{rank}"
        await self.one.until(path.exists)
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def test_standbys_outlive_an_attempt_and_end_with_the_keeper(tmp_path: Path) -> None:
    async def story(one: Bench) -> None:
        waiting = Waiting(one, tmp_path)
        await waiting.begin()
        procs = waiting.procs()
        assert (await one.kill())["left"] == []
        assert living(procs) == procs
        assert one.link is not None
        await one.link.close()
        assert living(procs) == set()

    play(tmp_path, story)


def test_standbys_become_ranks_whose_ends_are_told_and_are_swept_with_the_attempt(tmp_path: Path) -> None:
    async def story(one: Bench) -> None:
        waiting = Waiting(one, tmp_path)
        await waiting.begin()
        pids, port = waiting.pids(), free_port()
        waiting.activate(port, SECRET="x" * 200_000, BYTES="\udcff")
        first, second = await waiting.became(0), await waiting.became(1)
        assert (first["pid"], second["pid"]) == (pids[0], pids[1])
        assert (first["port"], second["port"]) == (port, 0), "the first rank alone hosts the store"
        assert (len(first["env"]["SECRET"]), first["env"]["BYTES"], first["argv"]) == (200_000, "\udcff", ["train.py"])
        await one.until(
            lambda: {(line["rank"], line["pid"]) for line in one.heard if line["said"] == "rank"} == {*pids.items()}
        )
        os.kill(pids[1], 9)
        end = await one.until(lambda: one.said("rank-exited"))
        assert (end["rank"], end["signal"], end["known"]) == (1, "SIGKILL", True)
        procs = waiting.procs()
        assert (await one.kill())["left"] == []
        assert living(procs) == set()

    play(tmp_path, story)


def test_a_taken_port_starts_nobody_and_keeps_the_standbys_apart(tmp_path: Path) -> None:
    async def story(one: Bench) -> None:
        waiting = Waiting(one, tmp_path)
        await waiting.begin()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            waiting.activate(taken.getsockname()[1])
            refused = await one.until(lambda: one.said("not-activated"))
        assert "port" in refused["error"]
        assert not one.said("rank")

    play(tmp_path, story)


def test_ranks_without_a_standby_of_their_own_are_not_started_by_halves(tmp_path: Path) -> None:
    async def story(one: Bench) -> None:
        waiting = Waiting(one, tmp_path)
        await waiting.begin()
        waiting.activate(free_port(), ranks=(0, 1, 2))
        assert "rank 2" in (await one.until(lambda: one.said("not-activated")))["error"]
        assert not one.said("rank")

    play(tmp_path, story)


def test_what_a_standby_had_to_leave_out_is_told_and_it_ends(tmp_path: Path) -> None:
    async def story(one: Bench) -> None:
        waiting = Waiting(one, tmp_path)
        await waiting.begin(says="leave out wandb")
        gone = one.said("standby-gone")
        assert gone["left_out"] == "wandb"
        await one.until(lambda: not one.family())

    play(tmp_path, story)


def test_a_standby_that_dies_is_told(tmp_path: Path) -> None:
    async def story(one: Bench) -> None:
        waiting = Waiting(one, tmp_path)
        await waiting.begin()
        os.kill(waiting.pids()[1], 9)
        gone = await one.until(lambda: one.said("standby-gone"))
        assert (gone["rank"], gone["left_out"]) == (1, "")

    play(tmp_path, story)


def test_what_a_killed_keeper_leaves_of_standbys_is_ended_by_the_next_one(tmp_path: Path) -> None:
    async def story(one: Bench) -> None:
        waiting = Waiting(one, tmp_path)
        await waiting.begin()
        procs = waiting.procs()
        os.kill(one.keeper(), 9)
        await one.until(lambda: one.said("lost"), 20)
        await one.start()
        assert one.said("ready")["left"] == []
        assert living(procs) == set()

    play(tmp_path, story)
