"""What a launch understands, refuses, continues and begins anew; nothing is trained here."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from zrun.cli import lookup, runs, starting, supervisor
from zrun.cli.main import main
from zrun.core.errors import UsageError, ZrunError
from zrun.core.manifest import Manifest
from zrun.core.runfolder import RunFolder
from zrun.spec.job import Checkpoint

MakeRun = Callable[..., RunFolder]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('hello')\n")
    path = tmp_path / "job.yaml"
    path.write_text("name: gpt2\nrun: train.py --lr 1\nnproc_per_node: 2\n")
    return path


@contextmanager
def lock(folder: RunFolder) -> Iterator[None]:
    handle = supervisor.hold_lock(folder)
    try:
        yield
    finally:
        os.close(handle)


def choose(folder: RunFolder, *, fresh: bool = False, slurm_job: str = "") -> runs.Choice:
    return runs.choose(folder.root.parent, "gpt2", fresh=fresh, slurm_job=slurm_job)


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "STOPPED"])
def test_after_a_run_that_is_over_a_new_one_begins_and_names_the_old_one(make_run: MakeRun, state: str) -> None:
    choice = choose(make_run("gpt2-0000aa", state=state))
    assert choice.folder is None
    assert f"gpt2-0000aa, is {state}" in choice.says
    assert "zrun resume gpt2-0000aa" in choice.says


@pytest.mark.parametrize("state", ["PREEMPTED", "RUNNING", ""])
def test_a_preempted_or_interrupted_run_is_continued(make_run: MakeRun, state: str) -> None:
    folder = make_run("gpt2-0000aa", state=state)
    assert choose(folder).folder == folder
    assert choose(folder, fresh=True).folder is None


def test_a_live_run_is_refused_whether_supervised_or_only_answering(
    make_run: MakeRun, coordinator: Callable[..., Any]
) -> None:
    folder = make_run("gpt2-0000aa", state="RUNNING")
    with lock(folder), pytest.raises(UsageError, match="gpt2-0000aa is live"):
        choose(folder)
    fake = coordinator(folder)
    with pytest.raises(UsageError, match="gpt2-0000aa is live"):
        choose(folder)
    fake.stop()
    assert choose(folder).folder == folder


def test_the_run_launched_last_counts_and_a_requeued_job_finds_its_own(make_run: MakeRun) -> None:
    old, new = make_run("gpt2-0000aa", state="PREEMPTED"), make_run("gpt2-0000bb", state="PREEMPTED")
    make_run("llama-0000cc", state="PREEMPTED")
    os.utime(old.spec_json, (1, 1))
    (old.root / runs.SLURM_FILE).write_text("42\n")
    assert choose(new).folder == new
    assert choose(new, slurm_job="42").folder == old
    assert choose(new, slurm_job="43").folder == new


def test_a_run_of_which_only_the_folder_was_made_is_passed_over(make_run: MakeRun) -> None:
    folder = make_run("gpt2-0000aa", state="FAILED")
    (folder.root.parent / "gpt2-0000bb").mkdir()
    (folder.root.parent / "a-file").touch()
    assert "gpt2-0000aa" in choose(folder).says


def test_a_runs_folder_is_private_and_so_are_those_made_above_it(tmp_path: Path) -> None:
    folder = runs.make_folder(tmp_path / "team" / "runs", "gpt2")
    assert (tmp_path / "team").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "team" / "runs").stat().st_mode & 0o777 == 0o700
    runs.write_job(folder, {"name": "gpt2"}, "name: gpt2\n", "42")
    assert folder.root.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in folder.root.iterdir()} == {0o600}
    assert len(lookup.token_in(folder)) == 64


def test_resuming_takes_back_that_the_job_is_over(make_run: MakeRun) -> None:
    folder = make_run("gpt2-0000aa", state="FAILED", exit_code=100, attempts=[{"attempt": 1}])
    starting.ask_resume(folder, {"spec": {}})
    verdict = lookup.read_json(folder.verdict)
    assert (verdict["state"], verdict["exit_code"], verdict["attempts"]) == ("PENDING", None, [{"attempt": 1}])
    assert lookup.read_json(folder.root / "resume.json") == {"spec": {}}


def write_checkpoint(directory: Path, name: str, job: str = "") -> None:
    made = Manifest(job=job or f"{name}-0000aa", name=name, attempt=1, step=5, batch=None, world_size=1, strategy="ddp",
                    saved_at="2026-01-01T00:00:00Z", files=[], tensors={}, values={})  # fmt: skip
    folder = directory / "step-000005"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(made.to_json())


def test_another_jobs_checkpoints_are_refused_unless_asked_for(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    write_checkpoint(directory, "llama")
    there = Checkpoint(dir=str(directory))
    for resume in ("auto", "never"):
        with pytest.raises(UsageError, match="holds checkpoints of llama, not of gpt2"):
            runs.check_checkpoints(Checkpoint(dir=str(directory), resume=resume), "gpt2", None, fresh=False)
    runs.check_checkpoints(there, "gpt2", None, fresh=True)
    runs.check_checkpoints(Checkpoint(dir=str(directory), resume=str(directory)), "gpt2", None, fresh=False)
    runs.check_checkpoints(there, "llama", "llama-0000aa", fresh=False)
    runs.check_checkpoints(Checkpoint(), "gpt2", None, fresh=False)


def test_another_run_of_the_same_name_is_refused_its_checkpoints_before_anything_starts(
    job_file: Path, make_run: MakeRun, capsys: Captured
) -> None:
    directory = job_file.parent / "shared"
    write_checkpoint(directory, "gpt2")
    job_file.write_text(f"{job_file.read_text()}checkpoint: {{dir: {directory}}}\n")
    for command in ("launch", "check"):
        assert main([command, str(job_file)]) == 2
        told = capsys.readouterr().err
        assert "holds checkpoints of gpt2-0000aa, another run of gpt2" in told
        assert "zrun resume gpt2-0000aa" in told
        assert "--fresh" in told
        assert f"resume: {directory}" in told
    assert list((job_file.parent / "runs").iterdir()) == []
    runs.check_checkpoints(Checkpoint(dir=str(directory), resume="never"), "gpt2", None, fresh=False)  # put aside
    make_run("gpt2-0000aa", state="PREEMPTED")
    assert main(["check", str(job_file)]) == 0, "launch would go on with the run they are of"


def test_dry_run_prints_the_job_as_understood_and_starts_nothing(job_file: Path, capsys: Captured) -> None:
    assert main(["launch", str(job_file), "--dry-run", "--json", "--set", "seed=7", "-e", "A=b", "--", "--more"]) == 0
    spec = json.loads(capsys.readouterr().out)
    assert (spec["run"], spec["seed"], spec["env"]) == (["train.py", "--lr", "1", "--more"], 7, {"A": "b"})
    assert main(["launch", str(job_file), "--dry-run"]) == 0
    assert "nproc_per_node: 2" in capsys.readouterr().out
    assert not (job_file.parent / "runs").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: gpt2\nrun: none.py\n", "none.py"),
        ("name: gpt2\nrun: train.py\nnum_nodes: 2\n", "job.yaml:3:1"),
        ("name: gpt2\nrun: train.py\nworkdir: /no/such\n", "/no/such"),
        ("name: gpt2\nrun: train.py\nnodes: 1:2\n", "not yet"),
        (": :\n", "job.yaml"),
    ],
)
def test_a_wrong_file_starts_nothing_and_is_exit_2(job_file: Path, capsys: Captured, text: str, said: str) -> None:
    job_file.write_text(text)
    assert main(["launch", str(job_file)]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert not (job_file.parent / "runs").exists()


def test_a_missing_file_an_unwritable_folder_and_what_is_not_yet_are_exit_2(job_file: Path, capsys: Captured) -> None:
    assert main(["launch", "nothing.yaml"]) == 2
    assert main(["launch", str(job_file), "--on", "slurm"]) == 2
    assert "not yet" in capsys.readouterr().err
    assert main(["launch", str(job_file), "--run-dir", "/proc/runs"]) == 2
    assert "--run-dir" in capsys.readouterr().err


def test_a_live_run_is_refused_by_the_command(job_file: Path, make_run: MakeRun, capsys: Captured) -> None:
    folder = make_run("gpt2-0000aa", state="RUNNING")
    with lock(folder):
        assert main(["launch", str(job_file)]) == 2
        assert main(["resume", "gpt2"]) == 2
    told = capsys.readouterr().err
    assert "zrun stop gpt2-0000aa" in told
    assert "zrun restart gpt2-0000aa" in told


def test_a_succeeded_run_is_not_resumed(make_run: MakeRun, capsys: Captured) -> None:
    make_run("gpt2-0000aa", state="SUCCEEDED")
    assert main(["resume", "gpt2"]) == 2
    assert "nothing to go on with" in capsys.readouterr().err


class Watched:
    """Takes the viewer's place: nothing is started."""

    def __init__(self, target: lookup.Target, **_: Any) -> None:
        self.job = target.job

    def run(self) -> int:
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zrun.cli.launch.Viewer", Watched)
    monkeypatch.setattr("zrun.cli.resume.Viewer", Watched)


@pytest.mark.usefixtures("started")
def test_a_run_does_not_go_on_without_its_secrets(
    job_file: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    make_run("gpt2-0000aa", state="PREEMPTED", spec={"secrets": ["HF_KEY", "WANDB_KEY"]})
    monkeypatch.setenv("WANDB_KEY", "x")
    assert main(["resume", "gpt2"]) == 2
    told = capsys.readouterr().err
    assert "secret HF_KEY is not set in your environment" in told
    assert "export HF_KEY=..." in told
    job_file.write_text("name: gpt2\nrun: train.py\nsecrets: [HF_KEY, WANDB_KEY]\n")
    assert main(["launch", str(job_file)]) == 2
    assert "HF_KEY" in capsys.readouterr().err
    monkeypatch.setenv("HF_KEY", "")
    assert main(["resume", "gpt2"]) == 0


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("state", ["PREEMPTED", "FAILED", "RUNNING"])
def test_resume_allows_a_changed_key_and_says_so_in_the_job(make_run: MakeRun, state: str) -> None:
    folder = make_run("gpt2-0000aa", state=state)
    assert main(["resume", "gpt2", "--allow-changed", "lr", "--allow-changed", "data"]) == 0
    spec = lookup.read_json(folder.spec_json)
    assert spec == {"name": "gpt2", "run": ["train.py"], "allow_changed": ["lr", "data"]}
    assert lookup.read_json(supervisor.resume_path(folder)) == {"spec": spec}
    supervisor.resume_path(folder).unlink()
    assert main(["resume", "gpt2"]) == 0
    assert lookup.read_json(folder.spec_json) == spec


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("state", ["PREEMPTED", "RUNNING", ""])
def test_a_job_that_changed_is_told_to_the_coordinator_of_any_run_that_goes_on(
    job_file: Path, make_run: MakeRun, state: str
) -> None:
    folder = make_run("gpt2-0000aa", state=state)
    asked = supervisor.resume_path(folder)
    assert main(["launch", str(job_file), "--allow-changed", "lr"]) == 0
    told = lookup.read_json(asked)["spec"]
    assert (told["run"], told["allow_changed"]) == (["train.py", "--lr", "1"], ["lr"])
    assert lookup.read_json(folder.spec_json) == told
    for given in ([], ["--set", "seed=7"], ["--set", "seed=7", "-e", "A=b"], ["--", "--more"]):
        asked.unlink()
        assert main(["launch", str(job_file), *given]) == 0
        assert lookup.read_json(asked)["spec"] == lookup.read_json(folder.spec_json), given
    asked.unlink()
    folder.verdict.write_text('{"state": "RUNNING"}')
    assert main(["launch", str(job_file), "--", "--more"]) == 0
    assert not asked.exists(), "nothing changed, and the run was not over"


def test_a_coordinator_elsewhere_is_told_what_may_have_changed(
    make_run: MakeRun, coordinator: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = coordinator(make_run("gpt2-0000aa"), state="FAILED")
    monkeypatch.setenv("ZRUN_TOKEN", "secret")
    assert main(["resume", "gpt2", "--coordinator", fake.address, "--allow-changed", "lr"]) == 100
    (what, body), *_ = fake.told
    assert what == "resume"
    assert body["options"]["spec"]["allow_changed"] == ["lr"]


def test_a_coordinator_that_cannot_start_is_shown_with_the_end_of_its_log(make_run: MakeRun) -> None:
    folder = make_run("gpt2-0000aa")
    (folder.root / "coordinator.log").write_text("Traceback\nModuleNotFoundError: no sqlalchemy\n")
    (folder.root / "supervisor.json").write_text(json.dumps({"failed": "the coordinator died 5 times in a row"}))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(ZrunError, match=r"(?s)died 5 times in a row.*no sqlalchemy"):
        starting.wait_for_answer(lookup.Target(folder.job, "gpt2", folder), ended)


def test_a_job_is_handed_to_a_coordinator_without_launchers_variables_and_secrets_apart(
    job_file: Path, make_run: MakeRun, coordinator: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = coordinator(make_run("other-0000aa"), state="SUCCEEDED")
    fake.answers["POST jobs"] = {"job": "gpt2-0000bb"}
    job_file.write_text("name: gpt2\nrun: train.py\nsecrets: [KEY]\n")
    monkeypatch.setenv("ZRUN_TOKEN", "secret")
    monkeypatch.setenv("KEY", "s3cret")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    fake.status = {**fake.status, "job": "gpt2-0000bb"}
    assert main(["launch", str(job_file), "--coordinator", fake.address]) == 0
    (what, body), *_ = fake.told
    assert what == "jobs"
    assert body["secrets"] == {"KEY": "s3cret"}
    assert not {"KEY", "MASTER_ADDR", "ZRUN_TOKEN"} & set(body["env"])
    assert Path(body["run_dir"]).parent == job_file.parent / "runs"
    assert "s3cret" not in (Path(body["run_dir"]) / "spec.json").read_text()
