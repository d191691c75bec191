"""What no machine can take: half characters, endless values, files that are none, interpreters that run no Python."""

import os
import sys
from pathlib import Path

import pytest

from zrun.core.errors import SpecError
from zrun.spec import here
from zrun.spec.load import load_job
from zrun.spec.problem import Wrong
from zrun.spec.units import duration_s

GOOD = "name: gpt2\nrun: train.py\n"


def mistakes(folder: Path, text: str, *, on_this_machine: bool = False) -> tuple[str, ...]:
    (folder / "job.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        load_job(folder / "job.yaml", caller_env={}, on_this_machine=on_this_machine)
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('name: a\nrun: "toy.py \\ud800"\n', "2:6"),
        ('name: a\nrun: "toy.py \\0"\n', "2:6"),
        ('name: a\nrun: [toy.py, "\\udfff"]\n', "2:6"),
        ('run: a.py\nname: "a\\ud800"\n', "2:7"),
        (GOOD + 'workdir: "\\ud83d\\ude00"\n', "3:10"),
        (GOOD + 'python: "/bin/p\\0"\n', "3:9"),
        (GOOD + 'env: {A: "x\\ud800"}\n', "3:10"),
        (GOOD + 'env: {A: "x\\0"}\n', "3:10"),
        (GOOD + 'labels: {a: "\\ud800"}\n', "3:13"),
        (GOOD + 'setup: "echo \\0"\n', "3:8"),
        (GOOD + 'checkpoint: {dir: "c\\ud800"}\n', "3:19"),
        (GOOD + 'secrets: ["\\ud800"]\n', "3:11"),
    ],
)
def test_characters_no_file_system_takes_are_refused_at_their_place(tmp_path: Path, text: str, place: str) -> None:
    (found,) = mistakes(tmp_path, text, on_this_machine=True)
    assert found.startswith(f"{tmp_path}/job.yaml:{place}: ")
    assert "holds characters no file system takes" in found
    found.encode()


@pytest.mark.parametrize(
    "line", ["run: {}", "run: torchrun t.py {}", "run: A={}", "name: {}", "nodes: {}", "workdir: {}", "{}: 1",
             "python: /{}", "seed: {}", "launcher: {}", "rng: {}", "env: {{{}.x: 1}}", "placement: {{interface: {}}}"]
)  # fmt: skip
def test_an_endless_value_is_refused_in_short_lines(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").touch()
    base = {"name": "name: a", "run": "run: train.py"}
    base.pop(line.partition(":")[0], None)
    text = "\n".join([*base.values(), line.format("x" * 50_000)]) + "\n"
    found = mistakes(tmp_path, text, on_this_machine=True)
    shown = "\n".join(found).replace(str(tmp_path), "")
    assert max(map(len, shown.splitlines())) < 600
    assert len(shown) < 2000


def test_a_path_too_long_for_the_file_system_is_a_mistake_with_its_place(tmp_path: Path) -> None:
    (found,) = mistakes(tmp_path, "name: a\nrun: " + "x" * 300 + "\n", on_this_machine=True)
    assert f"{tmp_path}/job.yaml:2:6: run: no file (File name too long)" in found
    (found,) = mistakes(tmp_path, GOOD + "workdir: " + "x" * 300 + "\n", on_this_machine=True)
    assert ":3:10: workdir: no folder (File name too long)" in found
    with pytest.raises(SpecError, match="File name too long") as caught:
        load_job(tmp_path / ("x" * 100_000))
    assert len(str(caught.value)) < 400


def test_a_pipe_or_a_device_is_refused_without_reading_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(SpecError, match="not a file"):
            load_job(path)


@pytest.mark.parametrize("text", ["1-99:00:00", "1-24:00:00", "1-00:60:00", "1-00:00:60", "00:60:00", "1-24", "1-1:60",
                                  "1-99:99:99"])  # fmt: skip
def test_a_clock_that_no_clock_shows_is_no_duration(text: str) -> None:
    with pytest.raises(Wrong, match=r"has [0-9]+ (hours|minutes|seconds)"):
        duration_s(text)


def test_hours_may_be_many_where_no_days_are_counted() -> None:
    assert duration_s("72:00:00") == 3 * 86400.0
    assert duration_s("1-23:59:59") == 2 * 86400.0 - 1


def program(folder: Path, text: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_runs_no_python_is_refused_with_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()

    def shown(python: Path | str) -> str:
        (found,) = mistakes(tmp_path, GOOD + f"python: {python}\n", on_this_machine=True)
        assert found.startswith(f"{tmp_path}/job.yaml:3:9: python: ")
        return found

    assert "/bin/false runs no Python: exit code 1, and it said nothing" in shown("/bin/false")
    assert "/bin/true runs no Python: exit code 0" in shown("/bin/true")
    assert "exit code 7, 'no licence'" in shown(program(tmp_path, "echo no licence >&2; exit 7"))
    assert "no program 'python-of-nobody' in your PATH" in shown("python-of-nobody")
    (tmp_path / "data").touch()
    assert "Permission denied" in shown(tmp_path / "data")


def test_a_python_that_does_not_answer_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "_PYTHON_WITHIN_S", 0.2)
    (tmp_path / "train.py").touch()
    python = program(tmp_path, "sleep 600 & sleep 600")
    (found,) = mistakes(tmp_path, GOOD + f"python: {python}\n", on_this_machine=True)
    assert "it was not done within 0 s" in found


def test_a_python_that_runs_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(GOOD + f"python: {sys.executable}\n")
    assert load_job(tmp_path / "job.yaml", caller_env={}, on_this_machine=True).python == sys.executable
