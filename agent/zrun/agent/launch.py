"""What torchrun and the ranks of one attempt are given: command, environment, folders, decks, port.

Makes files and folders, starts no process. Knows nothing about how an attempt goes on.
"""

import errno
import importlib.util
import os
import random
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zrun.agent import vitals
from zrun.agent.flight import own_dumps
from zrun.agent.line_buffering import preloaded
from zrun.core import env
from zrun.core.deck import create_deck, deck_path
from zrun.core.errors import LaunchError
from zrun.core.free_space import free_bytes
from zrun.core.place import place_of
from zrun.core.private import make_folder
from zrun.core.runfolder import RunFolder
from zrun.core.settings import RankSettings
from zrun.core.user_code import UserCode, folder
from zrun.spec import units
from zrun.spec.job import JobSpec
from zrun.wire.order import LaunchPlan

RANK_ROOMS: Final = ("core", "worker", "state", "data", "integrations")
SHM: Final = Path("/dev/shm")  # noqa: S108 - the kernel's own place for shared memory
PORTS: Final = range(20000, 32000)
"""Below the range the kernel gives to outgoing connections, which would take a probed port before torchrun does."""

STORE_WAIT_S: Final = 86_400
"""How long torchrun waits for those of other nodes, which may still be in their set-up; the limits are zrun's own."""
NCCL_HANDS_OFF: Final = "0"
"""NCCL's own watchdog ends the process at an error or timeout unless told not to; torchrun hands this on to ranks."""
NCCL_TELLS: Final = {
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "86400",
}  # fmt: skip
"""So that NCCL writes its flight recorder at a timeout, and its monitor does not abort a process that zrun still asks
for evidence. What the submitter set stays as it is."""
DUMP_FILE_NAMES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The newer and the older name for where it writes; the rank's number is appended."""
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class Where:
    """The places of one attempt on this node."""

    folder: RunFolder
    job: str
    """Not always the folder's name: a run may lie where a person said."""
    node: str
    attempt: int
    boot: str

    @property
    def attempt_dir(self) -> Path:
        return self.folder.node_attempt(self.node, self.attempt)

    @property
    def shm_dir(self) -> Path:
        return SHM / f"zrun-{self.job}-{self.attempt}-{self.boot[:4]}"

    @property
    def mark(self) -> str:
        return f"{self.job}/{self.attempt}/{self.boot}"

    @property
    def torchrun_log(self) -> Path:
        return self.attempt_dir / "torchrun.log"


def python_of(spec: JobSpec) -> str:
    return spec.python or sys.executable


def ranks_here(spec: JobSpec, plan: LaunchPlan, gpus: int) -> int:
    """nproc of this node: as planned, or found out. Raises LaunchError."""
    if plan.nproc > 0:
        return plan.nproc
    if spec.nproc_per_node == "cpu":
        return vitals.cores()
    if spec.nproc_per_node == "gpu" and not gpus:
        raise LaunchError(
            "nproc_per_node is gpu, but this node has no GPU (nvidia-smi names none)",
            "set nproc_per_node to a number or to cpu, or choose another node",
        )
    return gpus or 1


def explained(error: LaunchError | OSError, path: Path) -> str:
    """With the way out, and `disk full` first where that is what it is; `path` if the error names none."""
    if isinstance(error, LaunchError):
        return f"{error} ({error.hint})" if error.hint else str(error)
    where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else path
    if error.errno == errno.EROFS:
        return f"cannot write: {error.strerror} at {where}"
    if error.errno in _FULL:
        return f"disk full: {error.strerror} at {where} ({free_bytes(where)} bytes free)"
    return str(error)


def free_port() -> int:
    """A port nobody listens on now; it may be taken before torchrun binds it, then another is tried."""
    for port in random.sample(PORTS, 64):
        if _is_free(port, socket.AF_INET) and _is_free(port, socket.AF_INET6):
            return port
    raise LaunchError("no free TCP port on this node")


def _is_free(port: int, family: int) -> bool:
    try:
        probe = socket.socket(family)
    except OSError:
        return True  # no such protocol on this machine
    with probe:
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRNOTAVAIL
    return True


def command(spec: JobSpec, plan: LaunchPlan, job: str, nproc: int, port: int, own: Path) -> list[str]:
    """`own`: the attempt's folder on this node, where torchrun's error files go instead of /tmp."""
    waits = ["--rdzv-conf", f"timeout={STORE_WAIT_S}"] if plan.nnodes > 1 else []
    return [
        python_of(spec), "-m", "torch.distributed.run", "--nnodes", str(plan.nnodes), "--node-rank",
        str(plan.node_rank), "--nproc-per-node", str(nproc), "--rdzv-backend", "static", *waits, "--master-addr",
        plan.master_addr, "--master-port", str(port), "--rdzv-id", f"{job}-{plan.attempt}", "--max-restarts", "0",
        "--monitor-interval", "3600", "--log-dir", str(own / "torchrun"), "-m", "zrun.worker", *spec.run,
    ]  # fmt: skip


def environment(
    spec: JobSpec,
    plan: LaunchPlan,
    where: Where,
    given: Mapping[str, str],
    secrets: Mapping[str, str],
    keeper: int | None = None,
) -> tuple[dict[str, str], list[str]]:
    """(for torchrun and the ranks, names taken out of the submitter's because a launcher owns them); `keeper`: its pid,
    where ranks may keep their state in memory.
    """
    kept, dropped = env.without_launchers(given)
    own, refused = env.without_launchers(spec.env, asked=True)
    kept |= {**own, **secrets}
    checkpoints = place_of(spec.checkpoint.dir, where.folder.root)
    kept |= {
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": ":".join(p for p in (kept.get("PYTHONPATH", ""), str(where.folder.rank_path)) if p),
        env.JOB: str(where.job), env.NAME: spec.name, env.ATTEMPT: str(plan.attempt),
        env.RESTART_CAUSE: plan.cause, env.RUN_DIR: str(where.folder.root), env.CHECKPOINT_DIR: str(checkpoints),
        env.SEED: str(spec.seed), env.SHM_DIR: str(where.shm_dir), env.ATTEMPT_DIR: str(where.attempt_dir),
        env.MARK: where.mark, env.SETTINGS: settings(spec, plan).to_json(),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": NCCL_HANDS_OFF,
    }  # fmt: skip
    kept |= env.chosen((env.DRILL,))  # this agent was started for a drill
    kept = NCCL_TELLS | {name: str(own_dumps(where.attempt_dir) / "rank_") for name in DUMP_FILE_NAMES} | kept
    if keeper is not None:
        kept[env.MEMORY] = f"/proc/{keeper}/fd"
    if spec.logs.line_buffered:
        kept |= preloaded(kept)
    return kept, sorted({*dropped, *refused})


def settings(spec: JobSpec, plan: LaunchPlan) -> RankSettings:
    keep, checkpoint = spec.checkpoint.keep, spec.checkpoint
    return RankSettings(
        seed=spec.seed, rng=spec.rng, save_every_steps=checkpoint.every_steps, save_every_s=checkpoint.every_s,
        save_initial=checkpoint.initial, resume=plan.resume, allow_changed=list(spec.allow_changed),
        keep_last=keep.last, keep_every_steps=keep.every_steps, fresh=plan.fresh, quarantined=list(plan.quarantined),
        on_bad_loss=spec.data.on_bad_loss, bad_loss_factor=spec.data.bad_loss_factor,
        memory_every=_memory_every(checkpoint.memory_every),
    )  # fmt: skip


def _memory_every(text: str) -> str:
    if text in {"auto", "off"}:
        return text
    steps, seconds = units.cadence(text)
    return str(steps) if steps else f"{seconds}s"


def make_places(where: Where, ranks: list[int]) -> None:
    """Folders, decks, the ranks' import path. Raises LaunchError in words."""
    try:
        make_folder(where.attempt_dir)
        make_folder(own_dumps(where.attempt_dir))
        link_rank_path(where.folder.rank_path)
        shutil.rmtree(where.shm_dir, ignore_errors=True)
        where.shm_dir.mkdir(mode=0o700)
        for rank in ranks:
            create_deck(deck_path(where.shm_dir, rank), rank, where.attempt, time.time())
    except OSError as error:
        raise LaunchError(f"{explained(error, where.attempt_dir)}: the attempt's files cannot be made") from error


def link_rank_path(rank_path: Path) -> None:
    """`zrun/` with links to the rooms a rank may import, and nothing else: no package of ours shadows the user's."""
    house = rank_path / "zrun"
    make_folder(house)
    for room, place in rooms().items():
        link = house / room
        if link.is_symlink() and link.readlink() == place:
            continue
        new = house / f".{room}-{os.getpid()}"
        new.unlink(missing_ok=True)
        new.symlink_to(place, target_is_directory=True)
        new.replace(link)  # in one move: an agent of another node may do the same in this folder


def rooms() -> dict[str, Path]:
    """The rooms a rank may import, and where they really lie."""
    found = {room: importlib.util.find_spec(f"zrun.{room}") for room in RANK_ROOMS}
    return {
        room: Path(spec.submodule_search_locations[0])
        for room, spec in found.items()
        if spec is not None and spec.submodule_search_locations
    }


def users_code(spec: JobSpec) -> UserCode:
    """What is the user's own in a stack of one of the ranks."""
    own = Path(spec.workdir)
    if spec.run and not spec.run[0].startswith("-"):
        own = (own / spec.run[0]).parent
    return UserCode((folder(own),), tuple(folder(place) for place in rooms().values()))


def address_in_use(text: str) -> bool:
    """Does torchrun's log say that its port was taken?"""
    return "EADDRINUSE" in text or "address already in use" in text.lower()


def tail(path: Path, lines: int = 50) -> list[str]:
    """The last lines of a small log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 65536))
            text = file.read().decode("utf-8", "backslashreplace")
    except OSError:
        return []
    return text.splitlines()[-lines:]
