"""Every environment variable zrun reads or gives, and the only place that touches `os.environ`."""

import os
from collections.abc import Mapping
from typing import Final

# Promised to scripts (SURFACE, "In the script").
JOB: Final = "ZRUN_JOB"
NAME: Final = "ZRUN_NAME"
ATTEMPT: Final = "ZRUN_ATTEMPT"
RESTART_CAUSE: Final = "ZRUN_RESTART_CAUSE"
RESUME_STEP: Final = "ZRUN_RESUME_STEP"
RUN_DIR: Final = "ZRUN_RUN_DIR"
CHECKPOINT_DIR: Final = "ZRUN_CHECKPOINT_DIR"
DECK: Final = "ZRUN_DECK"
SEED: Final = "ZRUN_SEED"

# From agent to bootstrap and Session; not promised.
SHM_DIR: Final = "ZRUN_SHM_DIR"
"""Folder under /dev/shm of this attempt: deck.<rank>, wake (a datagram socket of the agent)."""
ATTEMPT_DIR: Final = "ZRUN_ATTEMPT_DIR"
"""The node's folder of this attempt: rank-R.out, rank-R.err, rank-R.notes."""
MARK: Final = "ZRUN_MARK"
"""`<job>/<attempt>/<boot>`: by this in its environment a process is known to be ours."""
SETTINGS: Final = "ZRUN_SETTINGS"
"""JSON with what Session needs of job.yaml (core/settings.py)."""

# For the command line.
COORDINATOR: Final = "ZRUN_COORDINATOR"
TOKEN: Final = "ZRUN_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE: Final = "ZRUN_TOKEN_FILE"  # noqa: S105 - the name of a variable
TORCH_INDEX: Final = "ZRUN_TORCH_INDEX"

TORCHRUN: Final = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
"""The launcher owns these: what the caller's environment says is dropped before a job starts."""

FOREIGN_PREFIXES: Final = ("SLURM_CPU_BIND", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "PMI_", "OMPI_", "PET_")
"""Variables of other launchers that would contradict ours inside a rank."""


def get(name: str, default: str = "") -> str:
    """The value of a variable of this process, or `default`."""
    return os.environ.get(name, default)


def put(name: str, value: str) -> None:
    """Set a variable for this process and its children."""
    os.environ[name] = value


def drop(name: str) -> None:
    """Unset a variable of this process if it is set."""
    os.environ.pop(name, None)


def snapshot() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)


def without_launchers(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(what may pass to a job, names taken out because a launcher owns them), for CASES E1 and E2."""
    kept: dict[str, str] = {}
    dropped: list[str] = []
    for name, value in environment.items():
        if name in TORCHRUN or name.startswith(("ZRUN_", *FOREIGN_PREFIXES)):
            dropped.append(name)
        else:
            kept[name] = value
    return kept, sorted(dropped)
