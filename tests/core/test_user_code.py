"""Whose code a frame is, by its path alone."""

import sysconfig
from pathlib import Path

import pytest

from zrun.core.user_code import UserCode, shown

STDLIB = sysconfig.get_paths()["stdlib"]
CODE = UserCode(("/home/u/project/",), ("/opt/zrun/agent/zrun/worker/",))


@pytest.mark.parametrize(
    ("file", "theirs"),
    [
        ("/home/u/project/train.py", True),
        ("/home/u/project/lib/model.py", True),
        ("/home/u/other/module.py", True),
        ("train.py", True),
        ("/home/u/project/runs/toy-1/rank-path/zrun/worker/session.py", False),
        ("/home/u/project/.venv/lib/python3.11/site-packages/torch/nn/linear.py", False),
        ("/home/u/project/.venv/lib/python3.11/json/decoder.py", False),
        ("/usr/lib/python3/dist-packages/yaml/reader.py", False),
        (f"{STDLIB}/json/decoder.py", False),
        ("/opt/zrun/agent/zrun/worker/session.py", False),
        ("<string>", False),
        ("<frozen runpy>", False),
    ],
)
def test_the_longer_match_wins_and_installed_code_is_nobodys(file: str, theirs: bool) -> None:
    assert CODE.has(file) is theirs


def test_a_script_inside_the_standard_library_is_the_users_all_the_same() -> None:
    assert UserCode((f"{STDLIB}/mine/",)).has(f"{STDLIB}/mine/train.py")
    assert not UserCode(("/",)).has(f"{STDLIB}/json/decoder.py")


DUMP = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/home/u/project/beside.py", line 1 in run

Current thread 0x00007f02 (most recent call first):
  File "/home/u/project/.venv/lib/python3.11/site-packages/torch/x.py", line 9 in all_reduce
  File "/home/u/project/data.py", line 10 in load
  File "/home/u/project/train.py", line 3 in <module>
"""
SPIED = """Process 12: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 12 (idle): "MainThread"
    sleep (/usr/lib/python3.11/x.py:4)
    load (/home/u/project/data.py:10)
    <module> (/home/u/project/train.py:3)
Thread 13 (idle): "zrun-watcher"
    run (/home/u/project/beside.py:1)
"""


@pytest.mark.parametrize("text", [DUMP, SPIED, "Fatal Python error: Segmentation fault\n\n" + DUMP])
def test_the_users_innermost_line_is_found_in_both_kinds_of_stack(text: str) -> None:
    place = CODE.in_stack(text)
    assert place == ("/home/u/project/data.py", 10)
    assert shown(place, Path("/home/u/project")) == "data.py:10"
    assert shown(place, Path("/elsewhere")) == "/home/u/project/data.py:10"


def test_a_stack_without_a_line_of_the_users_names_none() -> None:
    assert CODE.in_stack("no stack could be had\n") is None
    assert CODE.in_stack('Thread 0x1 (most recent call first):\n  File "/usr/lib/python3.11/a.py", line 1 in f') is None
