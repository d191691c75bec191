"""What torchrun and its ranks are given, and what is refused before anything starts."""

import errno
import os
from pathlib import Path

import pytest

from zrun.agent import evidence, launch, preflight
from zrun.agent.once import Once
from zrun.agent.vitals import read
from zrun.core import env
from zrun.core.errors import LaunchError
from zrun.core.runfolder import RunFolder
from zrun.core.settings import RankSettings
from zrun.spec.job import JobSpec, Resources
from zrun.wire.order import LaunchPlan, Peer
from zrun.wire.report import Vitals

PLAN = LaunchPlan(
    attempt=2, node_rank=0, nnodes=1, nproc=2, master_addr="127.0.0.1", master_port=0, peers=[Peer("a")], cause="crash",
    quarantined=["e0-s000004-7f3a9c21"],
)  # fmt: skip


def where(tmp_path: Path) -> launch.Where:
    return launch.Where(RunFolder(tmp_path / "run"), "toy-abcdef", "a", 2, "0123456789ab")


def test_user_values_pass_byte_for_byte_and_launcher_names_do_not(tmp_path: Path) -> None:
    given = {"A": "0,1", "B": "a=b c", "C": "x\ny", "RANK": "7", "MASTER_PORT": "1", "SLURM_NTASKS": "8"}
    spec = JobSpec(name="toy", run=["train.py"], env={"D": "ü", "TORCHELASTIC_RUN_ID": "old"}, seed=3, rng="stream")
    got, dropped = launch.environment(spec, PLAN, where(tmp_path), given, {"KEY": "s3cret"})
    assert {name: got[name] for name in "ABCD"} == {"A": "0,1", "B": "a=b c", "C": "x\ny", "D": "ü"}
    assert dropped == ["MASTER_PORT", "RANK", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID"]
    assert not set(dropped) & set(got)
    assert (got["KEY"], got[env.ATTEMPT], got[env.RESTART_CAUSE], got[env.SEED]) == ("s3cret", "2", "crash", "3")
    assert got[env.MARK] == "toy-abcdef/2/0123456789ab"
    assert got[env.SHM_DIR] == "/dev/shm/zrun-toy-abcdef-2-0123"
    told = RankSettings.from_json(got[env.SETTINGS])
    assert (told.quarantined, told.rng) == (["e0-s000004-7f3a9c21"], "stream")
    assert got[env.CHECKPOINT_DIR] == str(tmp_path / "run" / "checkpoints")


def test_the_command_is_a_static_torchrun_without_restarts() -> None:
    spec = JobSpec(name="toy", run=["-m", "train.main", "--lr", "1"], python="/usr/bin/python3")
    text = " ".join(launch.command(spec, PLAN, "toy-abcdef", 2, 4711, Path("/run/own")))
    assert text.startswith("/usr/bin/python3 -m torch.distributed.run --nnodes 1 --node-rank 0 --nproc-per-node 2")
    assert "--rdzv-backend static --master-addr 127.0.0.1 --master-port 4711 --rdzv-id toy-abcdef-2" in text
    assert text.endswith("--monitor-interval 3600 --log-dir /run/own/torchrun -m zrun.worker -m train.main --lr 1")


def test_a_rank_finds_the_rooms_it_may_import_and_no_other(tmp_path: Path) -> None:
    launch.link_rank_path(tmp_path)
    launch.link_rank_path(tmp_path)
    rooms = {path.name for path in (tmp_path / "zrun").iterdir()}
    assert {"core", "worker"} <= rooms <= set(launch.RANK_ROOMS)
    assert (tmp_path / "zrun" / "core" / "deck.py").exists()


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"workdir": "/nowhere"}, "workdir /nowhere is not a folder"),
        ({"run": ["absent.py"]}, "absent.py does not exist"),
        ({"python": "/no/python"}, "python /no/python does not exist"),
    ],
)
def test_what_cannot_be_launched_is_said_in_words(tmp_path: Path, spec: dict[str, object], text: str) -> None:
    (tmp_path / "train.py").touch()
    values = {"name": "toy", "run": ["train.py"], "workdir": str(tmp_path), **spec}
    job = JobSpec(**values)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match=text):
        preflight.check_script(job, launch.python_of(job))


def test_everything_that_is_short_is_named_at_once(tmp_path: Path) -> None:
    wanted = Resources(gpus=64, memory_bytes=1 << 60, shm_bytes=1 << 60, disk_bytes=1)
    with pytest.raises(LaunchError, match=r"64 GPUs wanted, 0 here; memory: .* shared memory: "):
        preflight.check_resources(wanted, read(0), tmp_path, Path("/dev/shm"))


def test_ports_are_free_and_differ() -> None:
    assert len({launch.free_port() for _ in range(8)}) > 1


def test_equal_stacks_stand_once() -> None:
    text = evidence.grouped(
        {0: "Thread 0x7f01\n f", 1: "Thread 0x7f02\n f", 2: "Thread 0x7f03\n g", 3: "Thread 0x14\n f"}
    )
    assert text.startswith("== ranks 0-1, 3 ==\n")
    assert "== rank 2 ==" in text
    assert text.count(" f") == 1


def test_this_machine_has_vitals() -> None:
    vitals = read(0)
    assert vitals.agent_pid == os.getpid()
    assert vitals.cores > 0


def test_nccl_is_told_to_end_no_process_whatever_the_caller_says(tmp_path: Path) -> None:
    spec = JobSpec(name="toy", run=["train.py"], env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"})
    got, _ = launch.environment(spec, PLAN, where(tmp_path), {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, {})
    assert got["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_gpus_that_are_not_there_are_refused_and_auto_takes_one_rank() -> None:
    plan = LaunchPlan(
        attempt=1, node_rank=0, nnodes=1, nproc=0, master_addr="127.0.0.1", master_port=0, peers=[Peer("a")]
    )
    with pytest.raises(LaunchError, match="nproc_per_node is gpu, but this node has no GPU"):
        launch.ranks_here(JobSpec(name="toy", run=["train.py"], nproc_per_node="gpu"), plan, 0)
    assert launch.ranks_here(JobSpec(name="toy", run=["train.py"], nproc_per_node="gpu"), plan, 4) == 4
    assert launch.ranks_here(JobSpec(name="toy", run=["train.py"]), plan, 0) == 1


def test_a_node_is_measured_once_so_that_a_jobs_own_checkpoints_do_not_end_it(tmp_path: Path) -> None:
    wanted, roomy = Resources(memory_bytes=1000), Vitals(memory_bytes=2000)
    with pytest.raises(LaunchError, match="too small"):
        Once(tmp_path).check_resources(wanted, Vitals(memory_bytes=10), tmp_path, tmp_path)
    Once(tmp_path).check_resources(wanted, roomy, tmp_path, tmp_path)
    Once(tmp_path).check_resources(wanted, Vitals(memory_bytes=10), tmp_path, tmp_path)


def test_setup_is_wanted_until_these_very_commands_succeeded(tmp_path: Path) -> None:
    first, second = (JobSpec(name="toy", run=["train.py"], setup=text) for text in ("one", "two"))
    assert not Once(tmp_path).setup_wanted(JobSpec(name="toy", run=["train.py"]))
    assert Once(tmp_path).setup_wanted(first)
    Once(tmp_path).setup_succeeded("one")
    assert not Once(tmp_path).setup_wanted(first)
    assert Once(tmp_path).setup_wanted(second)


def test_a_full_disk_is_called_one_and_one_that_is_read_only_is_not(tmp_path: Path) -> None:
    full = launch.explained(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert full.startswith(f"disk full: No space left on device at {tmp_path} (")
    assert full.endswith(" bytes free)")
    said = launch.explained(OSError(errno.EROFS, "Read-only file system", "/a/b"), tmp_path)
    assert said == "cannot write: Read-only file system at /a/b"


def test_a_place_that_cannot_be_made_on_a_full_disk_is_a_launch_error_that_begins_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(launch, "make_folder", full)
    with pytest.raises(LaunchError, match=r"^disk full: No space left on device at .*/attempt-2 \(\d+ bytes free\): "):
        launch.make_places(where(tmp_path), [])


def test_nccl_is_told_to_dump_what_it_knows_unless_the_submitter_says_otherwise(tmp_path: Path) -> None:
    spec = JobSpec(name="toy", run=["train.py"], env={"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "60"})
    got, _ = launch.environment(spec, PLAN, where(tmp_path), {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, {})
    assert (got["TORCH_NCCL_DUMP_ON_TIMEOUT"], got["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]) == ("0", "60")
    assert got["TORCH_FR_DUMP_TEMP_FILE"] == str(where(tmp_path).attempt_dir / "flight" / "rank_")
