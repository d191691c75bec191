"""The import hook: what a script imports is followed, what it does not import is never touched."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from zrun.core.settings import RankSettings
from zrun.worker import late_imports
from zrun.worker.late_imports import FOLLOWED, LateImports
from zrun.worker.rank import ThisRank
from zrun.worker.step_count import StepCount

PROBE = "zrun.integrations.probe"


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """`pack.part` and `broken` can be imported and are in the table; what was followed comes in the list."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "part.py").write_text("VALUE = 1\n")
    (tmp_path / "wrong.py").write_text("raise KeyError('its own')\n")
    told: list[str] = []
    probe = ModuleType(PROBE)

    def follow(module: Any, *_: Any) -> None:
        told.append(f"{module.__name__} {getattr(module, 'VALUE', None)}")
        if getattr(module, "VALUE", None) != 1:
            raise AttributeError("no such method")

    probe.__dict__["follow"] = follow
    monkeypatch.setitem(sys.modules, PROBE, probe)
    for name in ("pack.part", "wrong"):
        monkeypatch.setitem(FOLLOWED, name, "probe")
    monkeypatch.syspath_prepend(tmp_path)
    rank = ThisRank(0, 1, 1, RankSettings())
    hook = LateImports(rank, StepCount(rank))
    monkeypatch.setattr(sys, "meta_path", [hook, *sys.meta_path])
    yield told
    for name in ("pack.part", "pack", "wrong"):
        sys.modules.pop(name, None)


def test_a_module_is_followed_after_it_was_executed_and_looks_as_without_us(followed: list[str]) -> None:
    part = __import__("pack.part").part
    assert followed == ["pack.part 1"]
    assert part.__spec__.loader.get_source("pack.part") == "VALUE = 1\n"
    assert type(part.__loader__).__name__ == "SourceFileLoader"


def test_a_module_that_cannot_be_imported_raises_what_it_raises(followed: list[str]) -> None:
    with pytest.raises(KeyError, match="its own"):
        __import__("wrong")
    with pytest.raises(ModuleNotFoundError):
        __import__("pack.nowhere")
    assert followed == []


def test_an_integration_that_fails_is_a_warning_and_no_import_error(
    followed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pack" / "part.py").write_text("VALUE = 22\n")
    assert __import__("pack.part").part.VALUE == 22
    assert followed == ["pack.part 22"]
    assert "zrun: warning: pack.part is not followed: AttributeError: no such method" in capsys.readouterr().err


def test_following_imports_no_framework_and_no_integration_that_nobody_needs() -> None:
    code = (
        "import sys; from zrun.core.settings import RankSettings; from zrun.worker import late_imports, step_count;"
        "from zrun.worker.rank import ThisRank; rank = ThisRank(0, 1, 1, RankSettings());"
        "late_imports.watch(rank, step_count.StepCount(rank));"
        "print([m for m in sys.modules if m.split('.')[0] in ('transformers', 'accelerate', 'lightning')"
        " or m in ('zrun.integrations.lightning', 'zrun.integrations.hf_trainer')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_every_integration_in_the_table_is_there() -> None:
    folder = Path(late_imports.__file__).parents[1] / "integrations"
    assert [name for name in FOLLOWED.values() if not (folder / f"{name}.py").exists()] == []
