"""What one keeper finds of another: cgroups as the machine lends them, and the lock file with what it says."""

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from zrun.agent import cgroup, kernel_tables, proc_table
from zrun.agent.keeper_lock import Inventory, KeeperLock, this_machine
from zrun.agent.leftovers import Leftovers


def mounted(monkeypatch: pytest.MonkeyPatch, mounts: str, groups: str) -> list[Path]:
    told = {"/proc/self/mountinfo": mounts, "/proc/self/cgroup": groups}
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self, *a, **k: told[str(self)] if str(self) in told else real(self, *a, **k)
    )
    return cgroup.own_folders()


V2 = "30 24 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 32 0:30 / /sys/fs/cgroup/{kind} rw - cgroup cgroup rw,{kind}\n"


@pytest.mark.parametrize(
    ("mounts", "groups", "found"),
    [
        (V2.format(root="/"), "0::/user.slice/job.scope\n", ["/sys/fs/cgroup/user.slice/job.scope"]),
        (V2.format(root="/docker/1"), "0::/docker/1/job\n", ["/sys/fs/cgroup/job"]),
        (V2.format(root="/"), "0::/../../elsewhere\n", []),
        (V2.format(root="/docker/1"), "0::/\n", []),
        (V1.format(kind="pids") + V1.format(kind="freezer"), "8:pids:/a\n6:freezer:/b\n4:memory:/c\n",
         ["/sys/fs/cgroup/freezer/b", "/sys/fs/cgroup/pids/a"]),
        (V1.format(kind="memory") + V1.format(kind="cpu"), "4:memory:/c\n1:cpu:/\n", []),
        ("", "", []),
    ],
)  # fmt: skip
def test_a_cgroup_is_looked_for_below_our_own_and_never_where_memory_is_counted(
    monkeypatch: pytest.MonkeyPatch, mounts: str, groups: str, found: list[str]
) -> None:
    assert [str(path) for path in mounted(monkeypatch, mounts, groups)] == found


def test_a_machine_that_lends_no_cgroup_fails_no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder that can be made but takes nobody, and one that cannot be made."""
    monkeypatch.setattr(cgroup, "own_folders", lambda: [tmp_path / "missing", Path("/proc")])
    assert cgroup.make("zrun-toy") is None
    taken: list[int] = []
    monkeypatch.setattr(cgroup, "own_folders", lambda: [tmp_path])
    monkeypatch.setattr(cgroup.JobCgroup, "enter", lambda _self: taken.append(1 // 0))
    assert cgroup.make("zrun-toy") is None
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_by_one_and_says_what_its_last_holder_wrote(tmp_path: Path) -> None:
    first, second = KeeperLock(tmp_path / "lock"), KeeperLock(tmp_path / "lock")
    assert first.take()
    assert not second.take()
    said = Inventory(this_machine(), (7, 70), 5.0, ["a", "b"], ["/sys/fs/cgroup/x"], [(8, 80)])
    first.write(said)
    assert second.read() == said
    first.close()
    assert second.take()
    second.close()


@pytest.mark.parametrize("text", ["", "12ab34cd\n", "{}", "[1]", '{"machine": 1}', "\xff\xfe"])
def test_a_lock_file_that_says_nothing_readable_is_as_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text, "latin-1")
    lock = KeeperLock(tmp_path / "lock")
    assert lock.read() == Inventory()
    lock.close()


def test_pids_of_another_machine_or_another_boot_mean_nothing(tmp_path: Path) -> None:
    lock = KeeperLock(tmp_path / "lock")
    lock.write(Inventory("another boot", (os.getpid(), 1), 5.0, ["a"], [], [(os.getpid(), 1)]))
    assert lock.read() == Inventory()
    assert json.loads((tmp_path / "lock").read_text())["boots"] == ["a"]
    lock.close()


def test_a_name_that_holds_a_pid_counts_only_if_that_process_was_ours_when_it_was_made(tmp_path: Path) -> None:
    own = _started()
    for seen, gone in (({os.getpid(): own}, 1), ({os.getpid(): own + 10**9}, 0), ({os.getpid() + 1: own}, 0)):
        path = tmp_path / f"torch_{os.getpid()}_17_0"
        path.write_text("x")
        removed, left = Leftovers(tmp_path, 0.0, seen).sweep()
        assert (len(removed), left, path.exists()) == (gone, [], not gone)


def test_what_is_older_than_the_job_or_held_by_anybody_stays(tmp_path: Path) -> None:
    path = tmp_path / f"torch_{os.getpid()}_17_0"
    path.write_text("x")
    seen = {os.getpid(): _started()}
    assert Leftovers(tmp_path, kernel_tables.born(path) + 60, seen).sweep() == ([], [])
    with path.open() as _held:
        assert Leftovers(tmp_path, 0.0, seen).sweep() == ([], [])
    assert len(Leftovers(tmp_path, 0.0, seen).sweep()[0]) == 1


def test_a_socket_is_known_by_the_folder_it_lies_in(tmp_path: Path) -> None:
    place = tmp_path / "pymp-abc"
    place.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "listener"))
        found = kernel_tables.unix_sockets(re.compile("pymp-.*"), [tmp_path])
        assert list(found.values()) == [place]
        assert set(found) <= kernel_tables.sockets_of(os.getpid())
        assert kernel_tables.unix_sockets(re.compile("other-.*"), [tmp_path]) == {}


def _started() -> int:
    found: Any = proc_table.stat(os.getpid())
    return int(found.started)
