"""How the ranks of one job are started on this node: by standbys that fit, else by torchrun; and standbys made ready.

Carries out what the node machine wants and remembers what it handed out; decides nothing about when. A rank finds the
same environment on both ways.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from zrun.agent import launch
from zrun.agent import node_events as e
from zrun.agent.keeper_link import KeeperLink
from zrun.agent.launch import DUMP_FILE_NAMES, Where
from zrun.agent.standbys import packed
from zrun.agent.vitals import resident_bytes
from zrun.core import env
from zrun.core.private import make_folder
from zrun.core.runfolder import LEARNED_MODULES, LEFT_OUT_MODULES
from zrun.spec.job import JobSpec
from zrun.wire.order import LaunchPlan

_OF_AN_ATTEMPT: Final = frozenset({
    env.ATTEMPT, env.RESTART_CAUSE, env.SHM_DIR, env.ATTEMPT_DIR, env.MARK, env.SETTINGS, *DUMP_FILE_NAMES,
})  # fmt: skip
"""What a standby is told when it becomes a rank; had anything else changed, it would have imported in another world."""


@dataclass(frozen=True, slots=True)
class Start:
    """All that is needed to start the ranks of one attempt here; `port`: of its store."""

    spec: JobSpec
    plan: LaunchPlan
    where: Where
    environment: dict[str, str]
    ranks: list[int]
    port: int


class RankStart:
    """For one job on one node, for one life of the agent."""

    def __init__(self, job: str, own_dir: Path) -> None:
        self._job, self._own_dir = job, own_dir
        self._made_for: tuple[object, ...] | None = None
        self._ready: dict[int, int] = {}
        self._newest: Start | None = None

    @property
    def standbys(self) -> dict[int, int]:
        """rank -> pid of those that are ready."""
        return dict(self._ready)

    def standby_bytes(self) -> list[int]:
        """Memory of each that is ready."""
        return [resident_bytes(pid) for _, pid in sorted(self._ready.items())]

    def start(self, keeper: KeeperLink, start: Start) -> bool:
        """True: by standbys; False: by torchrun. Raises OSError."""
        self._newest = start
        warm = start.plan.nnodes == 1 and self._made_for == _world(start) and self._ready.keys() >= {*start.ranks}
        self._ready, self._made_for = {}, None
        if not warm:
            keeper.drop_standbys()
            self._torchrun(keeper, start)
            return False
        given: dict[int, str] = {}
        for rank in start.ranks:
            file = _error_file(start, rank)
            make_folder(file.parent)
            given[rank] = packed(self.rank_environment(start, rank), start.spec.run)
        keeper.activate(given, start.plan.master_addr, start.port)
        return True

    def not_activated(self, keeper: KeeperLink) -> None:
        """The standbys are no good after all: torchrun, at another port. Raises LaunchError."""
        if self._newest is not None:
            keeper.drop_standbys()
            self._torchrun(keeper, replace(self._newest, port=launch.free_port()))

    def _torchrun(self, keeper: KeeperLink, start: Start) -> None:
        start.where.torchrun_log.unlink(missing_ok=True)
        argv = launch.command(start.spec, start.plan, self._job, len(start.ranks), start.port, start.where.attempt_dir)
        span = (min(start.ranks), len(start.ranks))
        keeper.spawn("torchrun", argv, start.environment, start.spec.workdir, start.where.torchrun_log, span)

    def prepare(self, keeper: KeeperLink, start: Start) -> None:
        """One standby a rank; each says when it is ready."""
        self._made_for, self._ready = _world(start), {}
        argv = [launch.python_of(start.spec), "-m", "zrun.worker.standby", str(self._own_dir / LEARNED_MODULES)]
        for rank in start.ranks:
            given = self.rank_environment(start, rank)
            keeper.standby(rank, argv, given, start.spec.workdir, self._own_dir / "standby.log")

    def forget(self) -> None:
        """Their keeper is gone, and they with it."""
        self._ready, self._made_for = {}, None

    def heard(self, line: Mapping[str, Any]) -> e.StandbyReady | e.StandbyLost:
        """What the keeper says of one."""
        rank = line["rank"]
        if line["said"] == "standby-ready":
            self._ready[rank] = line["pid"]
            return e.StandbyReady(rank, resident_bytes(line["pid"]))
        self._ready.pop(rank, None)
        if line["left_out"]:
            self._leave_out(line["left_out"])
        return e.StandbyLost(rank, line["left_out"])

    def _leave_out(self, package: str) -> None:
        path = self._own_dir / LEFT_OUT_MODULES
        try:
            known = json.loads(path.read_text())
        except (OSError, ValueError):
            known = []
        try:
            path.write_text(json.dumps(sorted({*known, package})))
        except OSError:
            pass  # a full disk: the next one finds out again

    def rank_environment(self, start: Start, rank: int) -> dict[str, str]:
        """torchrun's contract for one rank of a node that is alone."""
        count = str(len(start.ranks))
        given = {"OMP_NUM_THREADS": "1"} | start.environment if len(start.ranks) > 1 else dict(start.environment)
        return given | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank), "GROUP_RANK": "0",
            "ROLE_NAME": "default", "LOCAL_WORLD_SIZE": count, "WORLD_SIZE": count, "ROLE_WORLD_SIZE": count,
            "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": start.plan.master_addr, "MASTER_PORT": str(start.port),
            "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": f"{self._job}-{start.plan.attempt}", "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_ERROR_FILE": str(_error_file(start, rank)),
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        }  # fmt: skip


def _world(start: Start) -> tuple[object, ...]:
    """What must be the same for a standby made for one attempt to fit another."""
    kept = {name: value for name, value in start.environment.items() if name not in _OF_AN_ATTEMPT}
    return launch.python_of(start.spec), start.spec.workdir, tuple(start.ranks), tuple(sorted(kept.items()))


def _error_file(start: Start, rank: int) -> Path:
    return start.where.attempt_dir / "torchrun" / "standby" / str(rank) / "error.json"
