"""The other commands: output, `--json`, exit codes, and what they must not import."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zrun.cli.commands import COMMANDS, GROUPS
from zrun.cli.main import main
from zrun.core.errors import Exit
from zrun.core.runfolder import RunFolder

MakeRun = Callable[..., RunFolder]
Captured = pytest.CaptureFixture[str]
HEAVY = {"pydantic", "ruamel", "msgspec", "structlog", "tenacity", "torch", "fastapi", "numpy", "sqlalchemy"}


@pytest.mark.parametrize(
    "arguments", [["status", "--json"], ["ls"], ["wait", "--timeout", "1ms"], ["logs"], ["--help"]]
)
def test_light_commands_import_nothing_heavy(make_run: MakeRun, coordinator: Any, arguments: list[str]) -> None:
    coordinator(make_run("gpt2-0000aa", state="RUNNING"))
    program = (
        "import sys\nfrom zrun.cli.main import main\ncode = main(sys.argv[1:])\n"
        f"print(sorted({HEAVY!r} & {{name.partition('.')[0] for name in sys.modules}}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


def test_status_starts_at_once(make_run: MakeRun) -> None:
    make_run("gpt2-0000aa", state="FAILED")
    took: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "zrun.cli.main", "status"], capture_output=True, check=True)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.5, "0.2 s on an idle machine; tests may share theirs"


def test_every_command_is_in_the_help_and_has_help(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    promised = ("launch status ls logs stop resume restart describe events top wait stacks incidents ckpt batches plan "
                "drill check init schema render doctor dashboard coordinator agent token completion")  # fmt: skip
    assert set(promised.split()) == set(COMMANDS)
    for name in COMMANDS:
        assert f"  {name} " in shown
        assert main([name, "--help"]) == 0


@pytest.mark.parametrize("name", ["top", "render", "doctor"])
def test_what_is_not_there_yet_says_so(capsys: Captured, name: str) -> None:
    assert main([*name.split(), "x", "--some=option"]) == 2
    assert "not yet" in capsys.readouterr().err


def test_no_such_command_option_or_job(capsys: Captured) -> None:
    assert main(["lunch"]) == 2
    assert main(["status", "--no-such"]) == 2
    assert main(["status", "nobody"]) == Exit.NOT_FOUND
    assert "Traceback" not in capsys.readouterr().err


def test_a_coordinator_that_is_not_there_is_3_and_a_wrong_token_4(
    make_run: MakeRun, coordinator: Any, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert main(["status", "--coordinator", "http://127.0.0.1:9"]) == Exit.UNREACHABLE
    assert "127.0.0.1:9" in capsys.readouterr().err
    fake = coordinator(make_run("gpt2-0000aa"))
    monkeypatch.setenv("ZRUN_COORDINATOR", fake.address)
    monkeypatch.setenv("ZRUN_TOKEN", "wrong")
    assert main(["status"]) == Exit.NOT_ALLOWED
    monkeypatch.setenv("ZRUN_TOKEN", "secret")
    assert main(["status", "gpt2"]) == 0
    assert main(["status", "--coordinator", "ftp://x"]) == 2


def test_status_shows_state_reason_ranks_attempts_and_incidents(
    make_run: MakeRun, coordinator: Any, capsys: Captured
) -> None:
    rank = {"rank": 0, "pid": 7, "phase": "step", "step": 5, "batch": "e0-s000005-00000000", "age_s": 0.02}
    coordinator(
        make_run("gpt2-0000aa"), nodes=[{"node": "a", "state": "ok", "ranks": [rank]}], metrics={"loss": 1.25},
        attempts=[{"attempt": 1, "outcome": None, "first_step": 1, "last_step": 5, "resumed_from": None}],
        incidents=[{"id": 1, "class": "hang", "rank": 0, "node": "a"}], restarts={"used": 1, "left": {"crash": 4}},
        checkpoints=[{"step": 4, "tier": "disk", "state": "complete"}],
    )  # fmt: skip
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    for text in ("gpt2-0000aa  RUNNING  2 ranks", "step 5/10", "loss 1.25", "e0-s000005-00000000", "attempt 1: running",
                 "incident 1: hang of rank 0 on node a", "newest checkpoint: step 4", "crash 4"):  # fmt: skip
        assert text in shown
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["live"] is True


def test_ls_shows_all_runs_and_filters_by_state(make_run: MakeRun, capsys: Captured) -> None:
    make_run("gpt2-0000aa", state="FAILED")
    make_run("gpt2-0000bb", state="SUCCEEDED")
    assert main(["ls", "--json"]) == 0
    assert [row["job"] for row in json.loads(capsys.readouterr().out)] == ["gpt2-0000bb", "gpt2-0000aa"]
    assert main(["ps", "-s", "failed"]) == 0
    shown = capsys.readouterr().out
    assert "gpt2-0000aa" in shown
    assert "gpt2-0000bb" not in shown


def test_ls_shows_labels_and_filters_by_them(
    make_run: MakeRun, coordinator: Any, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def listed(*more: str) -> list[tuple[str, Any]]:
        assert main(["ls", "--json", *more]) == 0
        return [(row["job"], row["labels"]) for row in json.loads(capsys.readouterr().out)]

    labels = {"team": "vision", "size": "small"}
    make_run("gpt2-0000aa", state="FAILED", spec={"labels": labels})
    folder = make_run("gpt2-0000bb", state="FAILED")
    assert listed() == [("gpt2-0000bb", {}), ("gpt2-0000aa", labels)]
    assert listed("--label", "team=vision", "--label", "size=small") == [("gpt2-0000aa", labels)]
    assert listed("--label", "team=text") == []
    assert main(["ls", "--label", "team"]) == 2
    fake = coordinator(folder, labels={"team": "text"}, run_dir="/no/such")
    monkeypatch.setenv("ZRUN_TOKEN", "secret")
    assert listed("--coordinator", fake.address, "--label", "team=text") == [("gpt2-0000bb", {"team": "text"})]


@pytest.mark.parametrize(
    ("state", "more", "code"),
    [("SUCCEEDED", {}, 0), ("FAILED", {}, 100), ("STOPPED", {}, 103), ("STOPPED", {"exit_code": 104}, 104),
     ("PREEMPTED", {}, 105)],
)  # fmt: skip
def test_wait_ends_with_the_code_of_the_state(make_run: MakeRun, state: str, more: dict[str, int], code: int) -> None:
    make_run("gpt2-0000aa", state=state, **more)
    assert main(["wait", "gpt2"]) == code


def test_wait_for_a_job_whose_folder_is_elsewhere_knows_that_its_time_was_over(
    make_run: MakeRun, coordinator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = coordinator(make_run("gpt2-0000aa"), state="STOPPED", run_dir="/no/such", timed_out=True)
    monkeypatch.setenv("ZRUN_TOKEN", "secret")
    assert main(["wait", "--coordinator", fake.address]) == Exit.TIMED_OUT
    fake.status = {**fake.status, "timed_out": False, "exit_code": 104}
    assert main(["wait", "--coordinator", fake.address]) == Exit.TIMED_OUT


def test_wait_ends_with_101_when_its_time_is_over(make_run: MakeRun, coordinator: Any) -> None:
    coordinator(make_run("gpt2-0000aa"))
    assert main(["wait", "--timeout", "300ms"]) == Exit.NOT_FINISHED
    assert main(["wait", "--timeout", "soon"]) == 2


def test_stop_and_restart_tell_the_coordinator_of_a_live_job_only(
    make_run: MakeRun, coordinator: Any, capsys: Captured
) -> None:
    make_run("old-0000aa", state="FAILED")
    assert main(["stop", "old"]) == 0
    assert "FAILED already" in capsys.readouterr().err
    assert main(["restart", "old"]) == 2
    assert "zrun resume old-0000aa" in capsys.readouterr().err
    make_run("dead-0000aa", state="RUNNING")
    assert main(["stop", "dead"]) == Exit.UNREACHABLE
    fake = coordinator(make_run("gpt2-0000aa"))
    assert main(["stop"]) == 0
    assert main(["cancel", "--now"]) == 0
    assert main(["restart"]) == 0
    assert fake.told == [("stop", {"now": False}), ("stop", {"now": True}), ("restart", {})]


def test_stacks_are_asked_for_and_waited_for(make_run: MakeRun, coordinator: Any, capsys: Captured) -> None:
    ranks = [{"rank": 0}, {"rank": 1}]
    fake = coordinator(make_run("gpt2-0000aa"), nodes=[{"node": "a", "ranks": ranks}])
    fake.answers["POST stacks"] = {"taken": "20260101-000000-001"}
    old = {"taken": "20260101-000000-000", "ranks": {"0": "old"}, "groups": [{"ranks": [0], "stack": "old"}]}
    new = {"taken": "20260101-000000-001", "ranks": {"0": "f", "1": "f"}, "groups": [{"ranks": [0, 1], "stack": "f"}]}
    path = "/api/jobs/gpt2-0000aa/stacks"
    fake.answers[path] = old
    fake.on_told = lambda _: fake.answers.update({path: new})
    assert main(["stacks", "--rank", "1"]) == 0
    assert capsys.readouterr().out == "rank 1:\n    f\n\n"


def test_incidents_show_the_cause_and_one_with_its_evidence(make_run: MakeRun, capsys: Captured) -> None:
    one = {"id": 1, "class": "crash", "rank": 1, "node": "a", "signal": "SIGKILL", "because": ["nobody else failed"],
           "detected_s": 0.02, "steps_lost": 3}  # fmt: skip
    folder = make_run("gpt2-0000aa", state="FAILED", incidents=[one])
    folder.incident(1).mkdir(parents=True)
    (folder.incident(1) / "roll-call.txt").write_text("1 of 2 ranks there\n")
    assert main(["incidents"]) == 0
    assert "crash of rank 1 on node a: killed by SIGKILL  (seen after 0.0s, 3 steps lost)" in capsys.readouterr().out
    assert main(["incidents", "1"]) == 0
    shown = capsys.readouterr().out
    assert "nobody else failed" in shown
    assert "1 of 2 ranks there" in shown
    assert main(["incidents", "gpt2", "7"]) == Exit.NOT_FOUND


def test_events_come_in_order_with_their_causes(make_run: MakeRun, capsys: Captured) -> None:
    folder = make_run("gpt2-0000aa", state="FAILED")
    folder.events.write_text(
        '{"ts": "t1", "n": 2, "event": "Submitted"}\n{"ts": "t1", "because": 2, "decision": "state"}\n'
    )
    assert main(["events"]) == 0
    assert capsys.readouterr().out == "t1  #2  Submitted\nt1  because #2  state\n"
    assert main(["events", "--json", "--tail", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["because"] == 2


def test_describe_shows_settings_and_what_is_not_in_force(make_run: MakeRun, capsys: Captured) -> None:
    folder = make_run("gpt2-0000aa", state="FAILED")
    folder.job_yaml.write_text("name: gpt2\n")
    assert main(["describe"]) == 0
    shown = capsys.readouterr().out
    assert "name: gpt2" in shown
    assert "not yet in force" in shown
    assert main(["describe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_in_force"]


def test_init_writes_a_file_that_check_accepts_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    folder = tmp_path / "My Project!"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.py").touch()
    assert main(["init"]) == 0
    assert main(["check"]) == 0
    assert "my-project: train.py" in capsys.readouterr().out
    before = Path("job.yaml").read_text()
    assert main(["init"]) == 2
    assert Path("job.yaml").read_text() == before
    assert main(["check", "--set", "nodes=1:2"]) == 2


def test_schema_token_and_completion(make_run: MakeRun, tmp_path: Path, capsys: Captured) -> None:
    assert main(["schema"]) == 0
    assert "properties" in json.loads(capsys.readouterr().out)
    make_run("gpt2-0000aa")
    assert main(["token", "gpt2"]) == 0
    assert capsys.readouterr().out == "secret\n"
    assert main(["token", "--dir", str(tmp_path / "home")]) == 0
    first = capsys.readouterr().out
    assert main(["token", "--dir", str(tmp_path / "home")]) == 0
    assert capsys.readouterr().out == first
    assert (tmp_path / "home" / "token").stat().st_mode & 0o777 == 0o600
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        assert "_ZRUN_COMPLETE" in capsys.readouterr().out


def test_schema_init_token_and_completion_speak_json(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    make_run("gpt2-0000aa")
    monkeypatch.chdir(tmp_path)
    said: dict[str, Any] = {}
    for command in ("schema", "init", "token", "token --dir home", "completion bash"):
        assert main([*command.split(), "--json"]) == 0
        said[command] = json.loads(capsys.readouterr().out)
    assert "properties" in said["schema"]
    assert said["init"] == {"file": "job.yaml"}
    assert said["token"] == {"job": "gpt2-0000aa", "token": "secret"}
    assert len(said["token --dir home"]["token"]) == 64
    assert "_ZRUN_COMPLETE" in said["completion bash"]["script"]


def test_zrun_alone_prints_the_help_in_groups_one_line_for_each_command(capsys: Captured) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == shown
    for title, entries in GROUPS.items():
        assert f"\n{title}:\n" in shown
        for name, entry in entries.items():
            assert f"  {name:<11}  {entry.help}\n" in shown


def test_dashboard_prints_the_address_of_a_live_job(make_run: MakeRun, coordinator: Any, capsys: Captured) -> None:
    fake = coordinator(make_run("gpt2-0000aa"))
    assert main(["dashboard"]) == 0
    assert capsys.readouterr().out == f"{fake.address}/login#token=secret\n"
    fake.stop()
    assert main(["dashboard"]) == Exit.UNREACHABLE


def test_programs_say_what_they_need(capsys: Captured, tmp_path: Path) -> None:
    assert main(["coordinator"]) == 2
    assert main(["agent", "--join", "http://127.0.0.1:9"]) == 2
    assert main(["agent", "--join", "http://127.0.0.1:9", "--token-file", str(tmp_path / "none")]) == 2
    assert main(["coordinator", "--dir", str(tmp_path), "--embedded", str(tmp_path)]) == 2
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["coordinator", "--dir", str(tmp_path / "home"), "--port", str(port)]) in {1, 2}
        assert f"zrun: cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_leaves_a_pipe_is_no_traceback(make_run: MakeRun, write_log: Callable[..., None]) -> None:
    write_log(make_run("gpt2-0000aa", state="FAILED"), 1, 0, ["x" * 200] * 1000)
    done = subprocess.run(
        f"{sys.executable} -m zrun.cli.main logs --tail 0 | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("[rank 0] xxx")
    assert done.stderr == ""


def test_colour_is_for_terminals_only(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    import pty

    make_run("gpt2-0000aa", state="FAILED")

    def shown() -> bytes:
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "rb", buffering=0) as reader:
            command = [sys.executable, "-m", "zrun.cli.main", "status"]
            subprocess.run(command, stdout=theirs, stderr=theirs, check=True)
            return reader.read(4096)

    monkeypatch.setenv("TERM", "xterm")
    assert b"\x1b[31mFAILED" in shown()
    monkeypatch.setenv("NO_COLOR", "1")
    assert b"\x1b" not in shown()
