"""What a rank finds in its environment: the launcher's own names once and right, the user's byte for byte."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parent / "scripts"
ZRUN = [sys.executable, "-m", "zrun.cli.main"]
MakeJob = Callable[..., Any]
HOSTILE = {
    "SLURM_CPU_BIND": "cores", "SLURM_CPU_BIND_LIST": "0x1", "RANK": "7", "LOCAL_RANK": "7", "WORLD_SIZE": "16",
    "MASTER_ADDR": "elsewhere", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "old", "TORCHELASTIC_ERROR_FILE": "/old",
    "SLURM_NTASKS": "8", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8", "PMI_RANK": "3", "PMIX_RANK": "3", "MV2_COMM_WORLD_RANK": "3", "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "4", "MPI_LOCALRANKID": "3", "HOROVOD_RANK": "3", "TORCHELASTIC_HEALTH_CHECK_PORT": "1",
}  # fmt: skip
OWN = {
    b"COMMAS": b"0,1", b"PAIRS": b"a=b c,d=e", b"LINES": b"x\ny\n", b"BYTES": b"\xff\xfe caf\xe9", b"TEXT": "é漢🙂".encode(),
    b"EMPTY": b"", b"LONG": b"x" * 100_000, b"DOLLARS": b"$HOME `ls` $(ls) \\ \" ' %s %d {} !!", b"dot.ted": b"1",
    b"lower": b"y", b"NAME\xff": b"z", b"WITH SPACE": b"q", b"CONTROL": b"\t\r\x01", b"SLURM_JOB_ID": b"77",
    b"SLURM_CPUS_PER_TASK": b"4", b"RANKS": b"3",
}  # fmt: skip


class Shown:
    """`show.py` in a folder of its own; `ranks` = what each of two ranks found."""

    def __init__(self, make_job: MakeJob, extra: str = "") -> None:
        self.job = make_job("show.py one 'two  words' --x=1", name="show", extra=extra)
        (self.job.folder / "show.py").write_bytes((SCRIPTS / "show.py").read_bytes())
        self.into = self.job.folder / "into"
        self.into.mkdir()
        self.env = {os.fsencode(k): os.fsencode(v) for k, v in self.job.env.items()}
        self.env |= {b"E2E_INTO": os.fsencode(self.into)}
        self.env.pop(b"OMP_NUM_THREADS")
        self.text = ""

    def run(self, *command: bytes | str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [os.fsencode(part) for part in command], cwd=self.job.folder, env=self.env, capture_output=True, timeout=150,
            check=False,
        )  # fmt: skip
        self.text = (done.stdout + done.stderr).decode("utf-8", "replace")
        assert done.returncode == 0, self.text
        ranks = [json.loads((self.into / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
        for path in self.into.iterdir():
            path.unlink()
        return ranks

    def launch(self, *options: bytes | str) -> list[dict[str, Any]]:
        return self.run(*ZRUN, "launch", "job.yaml", "--fresh", *options)


def of(rank: dict[str, Any]) -> dict[bytes, bytes]:
    return {name.encode("latin-1"): value.encode("latin-1") for name, value in rank["env"].items()}


def check_own_names(ranks: list[dict[str, Any]], expected: dict[bytes, bytes]) -> None:
    for rank in ranks:
        found = of(rank)
        assert {name: found.get(name) for name in expected} == expected


def check_one_consistent_set(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        found = rank["env"]
        assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == (str(number), str(number), "2")
        assert found["MASTER_ADDR"] == "127.0.0.1"
        assert int(found["MASTER_PORT"]) > 1024
        assert found["TORCHELASTIC_RUN_ID"] != "old"
        left = {name for name in HOSTILE if found.get(name) == HOSTILE[name]}
        assert not left, "another launcher's word reached a rank"
    assert ranks[0]["env"]["MASTER_PORT"] == ranks[1]["env"]["MASTER_PORT"]


def test_other_launchers_variables_are_left_out_and_the_users_own_pass_byte_for_byte(make_job: MakeJob) -> None:
    shown = Shown(
        make_job, 'env: {LR: 3e-4, odd.name: "a,b", L: "a\\nb", P: "%d $HOME ${HOME}", COMMAS: "from the file"}\n'
    )
    shown.env |= {os.fsencode(k): os.fsencode(v) for k, v in HOSTILE.items()} | OWN
    options: list[bytes | str] = [
        "-e",
        "COPIED=v,w=x",
        "-e",
        "TEXT",
        "-e",
        b"BYTES2=\xfe\x80=",
        "-e",
        "PAIRS=over,ridden",
    ]
    ranks = shown.launch(*options)
    check_one_consistent_set(ranks)
    check_own_names(ranks, OWN | {
        b"LR": b"3e-4", b"odd.name": b"a,b", b"L": b"a\nb", b"P": b"%d $HOME ${HOME}", b"COMMAS": b"from the file",
        b"COPIED": b"v,w=x", b"BYTES2": b"\xfe\x80=", b"PAIRS": b"over,ridden",
    })  # fmt: skip
    assert "left out of the ranks' environment" in shown.text
    assert "SLURM_NTASKS=8" in shown.text, "the person is told what disagrees"
    assert "the job has 2 ranks" in shown.text
    log = (shown.job.run_dir / "coordinator.log").read_text()
    assert all(name in log for name in ("SLURM_CPU_BIND", "RANK", "PMIX_RANK", "PET_NNODES")), "the list is logged"


@pytest.mark.long
def test_a_job_handed_to_a_coordinator_gets_the_submitters_variables_byte_for_byte(make_job: MakeJob) -> None:
    shown = Shown(make_job)
    home = shown.job.folder / "home"
    with (shown.job.folder / "service.out").open("w") as out:
        head = subprocess.Popen([*ZRUN, "coordinator", "--dir", str(home)], env=shown.job.env, stdout=out, stderr=out)
        node = None
        try:
            shown.job.until("the coordinator", (home / "coordinator.json").exists, 30)
            address = json.loads((home / "coordinator.json").read_text())["address"]
            shown.env[b"ZRUN_TOKEN_FILE"] = os.fsencode(home / "token")
            join = [*ZRUN, "agent", "--join", address, "--token-file", str(home / "token")]
            node = subprocess.Popen(join, env=shown.job.env, stdout=out, stderr=out)
            shown.env |= {os.fsencode(k): os.fsencode(v) for k, v in HOSTILE.items()} | OWN
            ranks = shown.launch("--coordinator", address, "-e", b"BYTES2=\xfe\x80=")
        finally:
            for process in (node, head):
                if process is not None:
                    process.terminate()
                    process.wait(30)
    check_one_consistent_set(ranks)
    check_own_names(ranks, OWN | {b"BYTES2": b"\xfe\x80="})
    assert "the job has 2 ranks" in shown.text


RUN_SPECIFIC = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
"""In both, with values of their own."""
STATED = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "PYTHONPATH",
    "PYTHONUNBUFFERED",
}  # fmt: skip
"""zrun's exceptions: NCCL must not end a process before its state is saved, and has to tell what it knows; the rooms of
a rank; prints at once."""


@pytest.mark.long
def test_a_rank_finds_the_same_as_under_torchrun_but_for_the_stated_exceptions(make_job: MakeJob) -> None:
    shown = Shown(make_job)
    ours = shown.launch()
    theirs = shown.run(
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "show.py", "one",
        "two  words", "--x=1",
    )  # fmt: skip
    for our, their in zip(ours, theirs, strict=True):
        ignored = RUN_SPECIFIC | STATED
        here = {k: v for k, v in our["env"].items() if k not in ignored and not k.startswith("ZRUN_")}
        there = {k: v for k, v in their["env"].items() if k not in ignored}
        for changed in ("TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "ROLE_NAME"):
            assert bool(here.pop(changed, None)) == bool(there.pop(changed, None)), changed
        assert here == there
        assert our["env"].keys() >= RUN_SPECIFIC
        assert our["env"]["OMP_NUM_THREADS"] == their["env"]["OMP_NUM_THREADS"] == "1"
        assert {k: our[k] for k in ("argv", "name", "cwd", "cpus")} == {
            k: their[k] for k in ("argv", "name", "cwd", "cpus")
        }
        assert Path(our["file"]).resolve() == Path(their["file"]).resolve()
        assert Path(our["path0"]).resolve() == Path(their["path0"]).resolve()


@pytest.mark.long
def test_a_cpu_mask_is_kept_as_under_torchrun_and_a_narrow_one_is_told(make_job: MakeJob) -> None:
    shown = Shown(make_job)
    cpu = min(os.sched_getaffinity(0))
    ranks = shown.run("taskset", "--cpu-list", str(cpu), *ZRUN, "launch", "job.yaml")
    assert [rank["cpus"] for rank in ranks] == [[cpu], [cpu]]
    assert "this shell may use 1 of" in shown.text


def test_a_name_that_zrun_gives_to_each_rank_is_refused_in_the_job_file(make_job: MakeJob) -> None:
    job = make_job("show.py", extra="env: {RANK: 7, PET_NNODES: 2, ZRUN_JOB: x}\n")
    (job.folder / "show.py").touch()
    done = job.zrun("launch", "job.yaml")
    assert done.returncode == 2
    for name in ("RANK", "PET_NNODES", "ZRUN_JOB"):
        assert f"{name} is set by zrun for each rank" in done.stderr
