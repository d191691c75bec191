"""What is made for the owner alone is so from its first moment, under any umask."""

import os
import stat
from pathlib import Path

import pytest

from zrun.core.private import make_folder, open_append, write_text


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_with_all_their_parents_and_files_are_the_owners_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b" / "c")
    make_folder(tmp_path / "a" / "b" / "c")
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    os.close(open_append(tmp_path / "log"))
    write_text(tmp_path / "text", "long text")
    write_text(tmp_path / "text", "x\udcff")
    assert (mode(tmp_path / "log"), mode(tmp_path / "text")) == (0o600, 0o600)
    assert (tmp_path / "text").read_text() == "x\\udcff"


def test_a_file_in_the_way_of_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file" / "below")
