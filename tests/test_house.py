"""The house rules a program can see: sizes, names of rooms, where the environment is read."""

import ast
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(p for root in ("runner", "agent", "dashboard") for p in (ROOT / root).rglob("*.py"))
DRAWERS = {"utils", "common", "helpers", "manager", "base", "misc", "types"}


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_no_file_is_over_450_lines_and_the_median_is_at_most_160() -> None:
    assert {str(p.relative_to(ROOT)): lines(p) for p in SOURCES if lines(p) > 450} == {}
    assert median(lines(p) for p in SOURCES) <= 160


def test_no_function_is_over_50_lines() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= 50
    ]
    assert long == []


def test_there_are_rooms_and_no_drawers() -> None:
    assert [str(p) for p in SOURCES if DRAWERS & set(p.relative_to(ROOT).with_suffix("").parts)] == []


def test_the_environment_is_touched_in_one_file_only() -> None:
    users = {str(p.relative_to(ROOT)) for p in SOURCES if "os.environ" in p.read_text() or "getenv" in p.read_text()}
    assert users <= {"runner/zrun/core/env.py"}


def test_every_module_says_what_it_is() -> None:
    assert [str(p.relative_to(ROOT)) for p in SOURCES if not ast.get_docstring(ast.parse(p.read_text()))] == []


def test_each_root_has_a_readme_that_names_its_files() -> None:
    for root in ("runner", "agent", "dashboard"):
        text = (ROOT / root / "README.md").read_text()
        missing = [
            str(p.relative_to(ROOT / root / "zrun"))
            for p in SOURCES
            if p.is_relative_to(ROOT / root) and p.name not in text
        ]
        assert missing == [], f"{root}/README.md does not mention these"
