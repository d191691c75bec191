"""How much memory may still be taken: the tightest bound around this process counts."""

from pathlib import Path

import pytest

from zrun.state.free_memory import free_memory


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    made = tmp_path / "proc"
    (made / "self").mkdir(parents=True)
    (made / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    return made


def put(folder: Path, **values: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("__", ".")).write_text(value + "\n")


def test_without_cgroups_it_is_what_the_machine_has(proc: Path, tmp_path: Path) -> None:
    assert free_memory(proc, tmp_path / "none") == 4000 << 10


def test_a_limit_further_out_counts_as_well(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/pod/job\n")
    groups = tmp_path / "groups"
    put(groups / "pod" / "job", memory__max="max", memory__current="100")
    put(groups / "pod", memory__max="3000", memory__current="1000")
    assert free_memory(proc, groups) == 2000
    put(groups / "pod" / "job", memory__max="500")
    assert free_memory(proc, groups) == 400


def test_cgroups_of_the_first_kind_are_asked_too(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("9:name=systemd:/\n4:cpu,memory:/box\n")
    put(tmp_path / "groups" / "memory", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="7")
    put(tmp_path / "groups" / "memory" / "box", memory__limit_in_bytes="900", memory__usage_in_bytes="1000")
    assert free_memory(proc, tmp_path / "groups") == 0


def test_what_cannot_be_read_bounds_nothing(tmp_path: Path) -> None:
    assert free_memory(tmp_path, tmp_path) == 1 << 62
    (tmp_path / "meminfo").write_text("MemAvailable:\n")
    assert free_memory(tmp_path, tmp_path) == 1 << 62
