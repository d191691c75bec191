"""What a person is told of the shell a job inherits from."""

import os

import pytest

from zrun.cli import inherited
from zrun.core import env
from zrun.core.errors import UsageError
from zrun.spec.job import JobSpec, spec_to_dict


def told(capsys: pytest.CaptureFixture[str], **spec: object) -> str:
    inherited.tell(spec_to_dict(JobSpec(name="a", run=["x.py"], **spec)))  # type: ignore[arg-type]
    return capsys.readouterr().err


@pytest.fixture(autouse=True)
def _many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*env.TORCHRUN, *env.WORLD_SIZES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)


def test_a_quiet_shell_is_nothing_to_hear_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, nproc_per_node=2) == ""


@pytest.mark.parametrize(("size", "nodes", "nproc", "said"), [
    ("2", (1, 1), 2, ""), ("8", (1, 1), 2, "the job has 2 ranks"), ("8", (2, 4), 2, ""),
    ("9", (2, 4), 2, "the job has 4 to 8 ranks"), ("8", (1, 1), 1, "the job has 1 rank"), ("8", (1, 1), "auto", ""),
    ("many", (1, 1), 2, ""),
])  # fmt: skip
def test_a_size_that_disagrees_with_the_job_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, size: str, nodes: tuple[int, int],
    nproc: int | str, said: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("SLURM_NTASKS", size)
    text = told(capsys, nodes_min=nodes[0], nodes_max=nodes[1], nproc_per_node=nproc)
    assert "left out of the ranks' environment, for zrun says who they are: SLURM_NTASKS" in text
    assert ("warning" in text) == bool(said)
    assert said in text


def test_a_cpu_mask_narrower_than_the_ranks_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(capsys, nproc_per_node=8) == ""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert "this shell may use 4 of 64 CPUs" in told(capsys, nproc_per_node=8)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert told(capsys, nproc_per_node=8) == "", "the whole machine is no mask"


def test_a_value_that_is_no_utf_8_is_inherited_instead_of_written_into_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("B", "old")
    spec = inherited.by_inheritance(JobSpec(name="a", run=["x.py"], env={"A": "é", "B": os.fsdecode(b"\xff")}))
    assert spec.env == {"A": "é"}
    assert os.environb[b"B"] == b"\xff"
    with pytest.raises(UsageError, match=r"run: .* is no UTF-8"):
        inherited.by_inheritance(JobSpec(name="a", run=["x.py", os.fsdecode(b"a\xff")]))
