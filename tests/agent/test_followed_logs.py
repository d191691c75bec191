"""A log is followed while its middle is cut out, by one who keeps its place and by one who comes back with a cursor."""

import json
from pathlib import Path

import pytest

from zrun.agent.json_lines import JsonLines
from zrun.agent.log_file import LogFile
from zrun.agent.log_ledger import Ledger
from zrun.agent.log_lines import Place, Read
from zrun.core.log_files import Line, attempts
from zrun.core.log_merge import Filter, Follower, last_lines
from zrun.core.runfolder import RunFolder

LINES = JsonLines(Place("toy-abcdef", 1, "a", 0, 0, "stdout"))


@pytest.mark.parametrize("cursors", [False, True])
@pytest.mark.parametrize("every", [1, 7, 3000])
def test_following_gives_each_line_once_though_the_log_is_shortened_again_and_again(
    tmp_path: Path, every: int, cursors: bool
) -> None:
    folder = RunFolder(tmp_path / "toy-abcdef")
    log = LogFile(folder.rank_log(1, 0), 1 << 16, Ledger(tmp_path / "ledger"))
    follower = Follower(folder, Filter(), [])
    seen: list[Line] = []
    shortened = 0
    for number in range(3000):
        before = log.identity
        log.append(LINES.one(Read("info", f"line {number}"), float(number), number, None))
        shortened += log.identity[0] != before[0]
        if number % every == 0:
            seen += follower.new()
            if cursors:
                follower = Follower(folder, Filter(), [], follower.cursor)
    while came := follower.new():
        seen += came
    log.close()
    numbers = [int(line["msg"].split()[1]) for line in seen if line["msg"].startswith("line")]
    assert shortened > 5
    assert numbers == sorted(set(numbers)), "once, in order"
    assert numbers[-1] == 2999
    if every < 100:
        assert numbers == list(range(3000))
    else:
        assert any("left out" in line["msg"] for line in seen)


def test_a_log_shortened_by_one_agent_is_shortened_on_by_the_next(tmp_path: Path) -> None:
    folder, ledger = RunFolder(tmp_path / "toy-abcdef"), Ledger(tmp_path / "ledger")
    written = 0
    for number in range(2000):
        if number % 500 == 0:
            log = LogFile(folder.rank_log(1, 0), 1 << 16, ledger)
        line = LINES.one(Read("info", f"line {number}"), float(number), number, None)
        written += len(line)
        log.append(line)
        ledger.log_is(*log.identity)
        if number % 500 == 499:
            log.close()
    lines = last_lines(folder, attempts(folder), Filter(), None)
    kept = sum(len(LINES.one(Read("info", line["msg"]), float(line["step"]), line["step"], None)) for line in lines
               if "left_out" not in line)  # fmt: skip
    (note,) = [line for line in lines if "left_out" in line]
    assert f"{written - kept} bytes of log left out here" in note["msg"]
    assert json.dumps(note)
