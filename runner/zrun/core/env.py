"""Every environment variable zrun reads or gives, and the only place that touches `os.environ`."""

import os
from collections.abc import Iterable, Mapping
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
MEMORY: Final = "ZRUN_MEMORY"
"""/proc/PID/fd of the node's keeper: there are the files in which ranks keep copies of their state."""
REPLAY: Final = "ZRUN_REPLAY"
"""JSON {batch, ended, debug}: Session hands over that one batch in a single process (worker/replay.py)."""
DRILL: Final = "ZRUN_DRILL"
"""JSON with the faults and the folder of a drill (core/appointments.py); launch and agent hand it on to the ranks."""
KILL_AT: Final = "ZRUN_KILL_AT"
"""For our own tests: at which point of a save a process dies (state/kill_points.py). No agent hands it on."""
UNDER_TEST: Final = "PYTEST_CURRENT_TEST"
"""pytest sets it for each test and what it starts."""

# For the command line.
COORDINATOR: Final = "ZRUN_COORDINATOR"
TOKEN: Final = "ZRUN_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE: Final = "ZRUN_TOKEN_FILE"  # noqa: S105 - the name of a variable
NOTICE_FILE: Final = "ZRUN_NOTICE_FILE"
"""For the agent: where somebody outside says why it takes ranks away from this node."""
TORCH_INDEX: Final = "ZRUN_TORCH_INDEX"

TORCHRUN: Final = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
"""The launcher owns these: what the caller's environment says is dropped before a job starts."""

OWN_PREFIXES: Final = ("ZRUN_", "TORCHELASTIC_", "PET_")
"""Ours, and what would change torchrun's own options: its command line is written by zrun alone."""

FOREIGN: Final = frozenset({
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NPROCS", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_STEPID",
    "SLURM_TASKS_PER_NODE", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_MPI_TYPE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
    "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE", "ALPS_APP_PE",
})  # fmt: skip
FOREIGN_PREFIXES: Final = (
    "SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_NTASKS", "SLURM_STEP_", "SLURM_SRUN_COMM_", "SLURM_PMI", "PMI_", "PMIX_",
    "OMPI_", "PRTE_", "HYDI_", "MV2_COMM_WORLD_", "JSM_NAMESPACE_", "FLUX_TASK_", "PALS_",
)  # fmt: skip
"""What other launchers tell the processes they start of rank, size and binding: it would contradict ours in a rank."""
_TUNING: Final = ("OMPI_MCA_", "PMIX_MCA_")
"""Their launchers set these as well, but a person may: they pass where the job itself names them."""

WORLD_SIZES: Final = (
    "WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE", "HOROVOD_SIZE",
)  # fmt: skip
"""Each says, in its launcher's words, how many ranks there are."""


def get(name: str, default: str = "") -> str:
    """The value of a variable of this process, or `default`."""
    return os.environ.get(name, default)


def put(name: str, value: str) -> None:
    """Set a variable for this process and its children."""
    os.environ[name] = value


def drop(name: str) -> None:
    """Unset a variable of this process if it is set."""
    os.environ.pop(name, None)


def replace_all(environment: Mapping[str, str]) -> None:
    """This process's environment becomes this one."""
    os.environ.clear()
    os.environ.update(environment)


def snapshot() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)


def chosen(names: Iterable[str]) -> dict[str, str]:
    """Those of these variables that this process has."""
    return {name: os.environ[name] for name in names if name in os.environ}


def owned(name: str) -> bool:
    """Does zrun itself say this to each rank? Nobody else can."""
    return name in TORCHRUN or name.startswith(OWN_PREFIXES)


def without_launchers(environment: Mapping[str, str], *, asked: bool = False) -> tuple[dict[str, str], list[str]]:
    """(what may pass to a job, names taken out because a launcher owns them); `asked`: the job itself names these."""
    kept: dict[str, str] = {}
    dropped: list[str] = []
    for name, value in environment.items():
        foreign = name in FOREIGN or name.startswith(FOREIGN_PREFIXES)
        if owned(name) or (foreign and not (asked and name.startswith(_TUNING))):
            dropped.append(name)
        else:
            kept[name] = value
    return kept, sorted(dropped)


def is_text(value: str) -> bool:
    """Can UTF-8 hold it? Else python shows bytes that are none as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def parted(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[bytes, bytes]]:
    """(variables that are text, the others as their bytes), for a wire that carries UTF-8 alone."""
    text = {name: value for name, value in environment.items() if is_text(name) and is_text(value)}
    others = {os.fsencode(name): os.fsencode(value) for name, value in environment.items() if name not in text}
    return text, others


def joined(text: Mapping[str, str], others: Mapping[bytes, bytes]) -> dict[str, str]:
    """What was parted, whole again."""
    return {**text, **{os.fsdecode(name): os.fsdecode(value) for name, value in others.items()}}
