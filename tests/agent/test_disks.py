"""Disks without room, found by the room they have, and said in words."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from zrun.agent.disks import full_disks


def disk(free_blocks: int, *, inodes: int = 1000, inodes_free: int = 10) -> SimpleNamespace:
    return SimpleNamespace(f_bavail=free_blocks, f_frsize=4096, f_blocks=256, f_files=inodes, f_favail=inodes_free)


def test_a_disk_with_room_is_no_news(tmp_path: Path) -> None:
    assert full_disks([tmp_path, tmp_path / "not" / "there", Path("/no/such/place")]) == []


def test_a_full_one_is_told_once_with_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: disk(0))
    assert full_disks([tmp_path / "ck", tmp_path]) == [f"{tmp_path} (0 bytes free of 1048576)"]


def test_one_without_inodes_and_one_that_counts_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: disk(200, inodes_free=0))
    assert full_disks([tmp_path]) == [f"{tmp_path} (no inodes free of 1000)"]
    monkeypatch.setattr(os, "statvfs", lambda _: disk(200, inodes=0, inodes_free=0))
    assert full_disks([tmp_path]) == []
