"""The registry of runs, and which run a person means."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from zrun.cli import lookup, registry
from zrun.core.errors import NotFoundError, UsageError
from zrun.core.runfolder import RunFolder

MakeRun = Callable[..., RunFolder]


def test_a_run_is_found_again_newest_first_and_once(make_run: MakeRun) -> None:
    first, second = make_run("gpt2-0000aa"), make_run("gpt2-0000bb")
    assert [e.job for e in registry.known()] == [second.job, first.job]
    registry.remember(first.job, "gpt2", first.root)
    assert [e.job for e in registry.known()] == [first.job, second.job]


def test_a_run_whose_folder_is_gone_is_not_shown(make_run: MakeRun) -> None:
    folder = make_run("gpt2-0000aa")
    folder.root.rename(folder.root.with_name("elsewhere"))
    assert registry.known() == []


def test_a_broken_line_hides_no_other(make_run: MakeRun) -> None:
    make_run("gpt2-0000aa")
    with registry.registry_path().open("a") as file:
        file.write('{"job": "half\n[1]\nnull\n')
    make_run("gpt2-0000bb")
    assert [e.job for e in registry.known()] == ["gpt2-0000bb", "gpt2-0000aa"]


def test_the_registry_is_private(make_run: MakeRun) -> None:
    make_run("gpt2-0000aa")
    assert registry.registry_path().stat().st_mode & 0o777 == 0o600
    assert registry.registry_path().parent.stat().st_mode & 0o777 == 0o700


def test_a_relative_state_home_is_not_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert registry.registry_path() == tmp_path / ".local/state/zrun/runs.jsonl"


def test_lines_written_at_the_same_time_all_arrive_and_a_long_file_is_compacted(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_LONGEST", 5)
    folders = [make_run(f"job{n}-0000aa") for n in range(4)]

    def remember(folder: RunFolder) -> None:
        for _ in range(20):
            registry.remember(folder.job, "job", folder.root)

    threads = [threading.Thread(target=remember, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {e.job for e in registry.known()} == {folder.job for folder in folders}
    assert len(registry.registry_path().read_text().splitlines()) < 80


@pytest.mark.parametrize(
    ("job", "chosen"),
    [(None, "gpt2-0000cc"), ("gpt2-0000aa", "gpt2-0000aa"), ("gpt2", "gpt2-0000cc"), ("llama-0", "llama-0000bb"),
     ("gpt2-0000a", "gpt2-0000aa")],
)  # fmt: skip
def test_a_job_is_meant_by_id_name_or_unique_beginning(job: str | None, chosen: str) -> None:
    known = [("gpt2-0000cc", "gpt2"), ("llama-0000bb", "llama"), ("gpt2-0000aa", "gpt2")]
    assert lookup.choose(job, known) == chosen


def test_what_means_no_job_or_several_is_said() -> None:
    known = [("gpt2-0000cc", "gpt2"), ("gpt2-0000aa", "gpt2")]
    with pytest.raises(UsageError, match="begins 2 jobs: gpt2-0000cc, gpt2-0000aa"):
        lookup.choose("gpt", known)
    with pytest.raises(NotFoundError, match="no job is called 'bert'"):
        lookup.choose("bert", known)
    with pytest.raises(NotFoundError, match="no job yet"):
        lookup.choose(None, [])


def test_a_finished_run_is_read_from_its_verdict(make_run: MakeRun) -> None:
    make_run("gpt2-0000aa", state="FAILED", exit_code=100)
    found = lookup.find("gpt2").status()
    assert (found["state"], found["exit_code"], found["live"]) == ("FAILED", 100, False)


def test_an_unfinished_run_without_coordinator_says_that_it_was_interrupted(make_run: MakeRun) -> None:
    folder = make_run("gpt2-0000aa", state="RUNNING")
    folder.coordinator.write_text(json.dumps({"address": "http://127.0.0.1:9", "pid": 1}))
    found = lookup.find(None).status()
    assert found["live"] is False
    assert "no coordinator is alive" in found["reason"]
