"""What a right job file becomes, with overrides, variables and arguments from the command line."""

from pathlib import Path

import pytest

from zrun.core.errors import SpecError
from zrun.spec.job import Backoff, JobSpec, Rule, spec_from_dict, spec_to_dict
from zrun.spec.load import load_job
from zrun.spec.write import not_in_force, starter_yaml, to_yaml

GOOD = "name: gpt2\nrun: train.py --lr 1e-4\n"
FULL = r"""
version: 1
name: llama-7b
nproc_per_node: 8
run: -m train.main --config 'configs/7b x.yaml'
workdir: /shared/llama
setup: |
  pip install -r requirements.txt
  printf 'a\tb'
env: {NCCL_DEBUG: WARN, LR: 3e-4, OCTAL: 010, NO: no, V: 1.10, QUOTED: "a: b", NULLISH: '~', YES: true}
secrets: [WANDB_API_KEY]
python: .venv/bin/python
launcher: torchrun
seed: 7
standby: {enabled: false}
resources: {gpus: 8, memory: 512GiB, shm: 64GiB, disk: 2TB}
watchdog: {on_hang: stop, patience: 45s, step: 1h, setup: auto, phases: {tokenize: 1h}, min_step: 500ms}
restart:
  policy: never
  budgets: {crash: unlimited, oom: 0}
  backoff: {node: 5s, hang: 1s..1m}
  rules: [{match: {exit_code: 2}, do: fail}, {match: {signal: SIGSEGV}, do: restart}, {match: {class: oom}, do: fail}]
checkpoint: {dir: /ckpt, every: 10m, memory_every: off, keep: {every: off}, resume: ./old}
preempt: {signals: [SIGUSR2], grace: 1-00:00:00}
max_duration: 7d
stop_grace: 0s
labels: {team: nlp, a.b: 1}
"""


def load(folder: Path, text: str, **options: object) -> JobSpec:
    file = folder / "job.yaml"
    file.write_text(text)
    return load_job(file, **{"caller_env": {}, **options})  # type: ignore[arg-type]


def test_a_minimal_file_is_all_defaults(tmp_path: Path) -> None:
    expected = JobSpec(name="gpt2", run=["train.py", "--lr", "1e-4"], workdir=str(tmp_path))
    assert load(tmp_path, GOOD) == expected


def test_a_full_file_is_understood(tmp_path: Path) -> None:
    spec = load(tmp_path, FULL)
    assert spec.run == ["-m", "train.main", "--config", "configs/7b x.yaml"]
    assert spec.env == {
        "NCCL_DEBUG": "WARN", "LR": "3e-4", "OCTAL": "010", "NO": "no", "V": "1.10", "QUOTED": "a: b", "NULLISH": "~",
        "YES": "true",
    }  # fmt: skip
    assert spec.python == "/shared/llama/.venv/bin/python"
    assert spec.setup == "pip install -r requirements.txt\nprintf 'a\\tb'\n"
    assert spec.resources.disk_bytes == 2 * 10**12
    assert (spec.watchdog.patience_s, spec.watchdog.step_s, spec.watchdog.setup_s) == (45.0, 3600.0, None)
    assert spec.watchdog.save_s == 1800.0
    assert spec.restart.budgets.crash is None
    assert spec.restart.budgets.node is None
    assert (spec.restart.budgets.oom, spec.restart.budgets.hang) == (0, 5)
    assert spec.restart.backoff == {"crash": Backoff(1, 60), "node": Backoff(5, 5), "hang": Backoff(1, 60)}
    assert spec.restart.rules == [
        Rule("fail", exit_code=2),
        Rule("restart", signal="SIGSEGV"),
        Rule("fail", fault="oom"),
    ]
    assert (spec.checkpoint.every_steps, spec.checkpoint.every_s) == (None, 600.0)
    assert spec.checkpoint.keep.every_steps is None
    assert spec.checkpoint.resume == f"{tmp_path}/old"
    assert spec.preempt.signals == ["USR2"]
    assert spec.preempt.grace_s == 86400.0
    assert spec.labels == {"team": "nlp", "a.b": "1"}


def test_a_spec_travels_as_a_dictionary_and_as_yaml_without_a_change(tmp_path: Path) -> None:
    for text in (GOOD, FULL):
        spec = load(tmp_path, text)
        assert spec_from_dict(spec_to_dict(spec)) == spec
        assert load(tmp_path, to_yaml(spec)) == spec


def test_the_written_job_names_every_default(tmp_path: Path) -> None:
    text = to_yaml(load(tmp_path, GOOD))
    for line in (
        "nodes: 1",
        "patience: auto",
        "crash: 1s..1m",
        "every: 500 steps",
        "max_duration: off",
        "node: unlimited",
    ):
        assert line in text


def test_a_value_of_a_secret_is_never_written(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD + "secrets: [KEY]\n", caller_env={"KEY": "hunter2"})
    assert "hunter2" not in to_yaml(spec)
    assert "hunter2" not in str(spec_to_dict(spec))


def test_empty_blocks_and_lists_are_their_defaults(tmp_path: Path) -> None:
    text = GOOD + "watchdog:\nenv:\nsecrets:\nrestart: {rules: , backoff: }\nplan:\n"
    assert load(tmp_path, text) == load(tmp_path, GOOD)


def test_anchors_are_served(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD + "env: &e {A: 1}\nlabels: *e\n")
    assert spec.labels == spec.env == {"A": "1"}


def test_run_as_a_list_is_taken_word_for_word(tmp_path: Path) -> None:
    spec = load(tmp_path, "name: a\nrun: [train.py, --x, 'a && b', 010]\n")
    assert spec.run == ["train.py", "--x", "a && b", "010"]


def test_a_byte_order_mark_and_windows_line_ends_are_no_trouble(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"\xef\xbb\xbfname: a\r\nrun: train.py\r\nnodez: 1\r\n")
    with pytest.raises(SpecError) as caught:
        load_job(file)
    assert caught.value.problems[0].startswith(f"{file}:3:1: unknown field 'nodez'")


def test_overrides_are_yaml_and_the_last_one_wins(tmp_path: Path) -> None:
    spec = load(
        tmp_path,
        GOOD + "restart: {max_restarts: 5, lease: 4s}\nenv: {A: 1}\n",
        overrides=[
            "restart.max_restarts=3", "restart.max_restarts=4", "env.LR=010", "watchdog.phases.tokenize=1h", "name=other",
            "labels.a.b=x=y", "preempt.signals=[USR1]", "run=new.py --x 1", "seed=3",
        ],
    )  # fmt: skip
    assert (spec.restart.max_restarts, spec.restart.lease_s) == (4, 4.0)
    assert spec.env == {"A": "1", "LR": "010"}
    assert spec.watchdog.phases_s == {"tokenize": 3600.0}
    assert spec.labels == {"a.b": "x=y"}
    assert (spec.name, spec.run, spec.seed) == ("other", ["new.py", "--x", "1"], 3)
    assert spec.preempt.signals == ["USR1"]


def test_an_override_does_not_reach_through_an_anchor(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD + "env: &e {A: 1}\nlabels: *e\n", overrides=["env.A=2"])
    assert (spec.env, spec.labels) == ({"A": "2"}, {"A": "1"})


def test_an_override_mends_what_the_file_has_wrong(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD + "seed: x\n", overrides=["seed=3"]).seed == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("foo", "--set foo: not a setting"),
        ("=3", "--set =3: not a setting"),
        ("a..b=3", "--set a..b=3: not a setting"),
        ("restart.max_restart=3", "--set restart.max_restart=3: unknown field 'restart.max_restart'"),
        ("seed=x", "--set seed=x: seed: 'x' is not a whole number"),
        ("seed=", "--set seed=: seed has no value"),
        ("seed=[1", "--set seed=[1: not YAML"),
        ("seed.x=1", "--set seed.x=1: '5' stands where 'x' would go"),
        ("launcher=exec", "--set launcher=exec: launcher: exec is not yet served"),
    ],
)
def test_a_wrong_override_is_reported_under_its_own_name(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, GOOD + "seed: 5\n", overrides=[override])
    assert caught.value.problems[0].startswith(message)
    assert len(caught.value.problems) == 1


def test_variables_are_copied_or_set_byte_for_byte(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD + "env: {A: file}\n", env=["A", "B=0,1", "C=", "D=x=y\n"], caller_env={"A": "a=b c\n"})
    assert spec.env == {"A": "a=b c\n", "B": "0,1", "C": "", "D": "x=y\n"}
    with pytest.raises(SpecError) as caught:
        load(tmp_path, GOOD, env=["NOPE", "RANK=1", "1X=2"])
    assert [one.splitlines()[0] for one in caught.value.problems] == [
        "-e NOPE: NOPE is not set in your environment",
        "-e RANK: RANK is set by zrun for each rank",
        "-e 1X: '1X' is not the name of a variable",
    ]


def test_arguments_and_allowed_changes_are_taken_as_they_are(tmp_path: Path) -> None:
    spec = load(tmp_path, GOOD, args=["--x", "a && b"], allow_changed=["model"])
    assert spec.run == ["train.py", "--lr", "1e-4", "--x", "a && b"]
    assert spec.allow_changed == ["model"]


@pytest.mark.parametrize(
    "line",
    [
        "launcher: exec", "nodes: 1:2", "nodes: 3:4", "placement: {spares: 1}",
        "placement: {hosts: [a]}", "placement: {exclude: [a]}", "placement: {labels: {a: b}}", "restart: {fence: lease}",
        "standby: {cuda: true}",
        "notify: [{on: [hang], url_secret: X}]",
        "placement: {interface: eth0}",
    ],
)  # fmt: skip
def test_what_is_not_served_yet_is_refused_where_it_was_written(tmp_path: Path, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, GOOD + line + "\n")
    assert len(caught.value.problems) == 1
    assert "not yet" in caught.value.problems[0]
    assert "job.yaml:3:" in caught.value.problems[0]


@pytest.mark.parametrize(
    "line",
    [
        "rng: derived", "rng: stream", "launcher: auto", "launcher: warm", "launcher: torchrun", "nodes: 1", "nodes: 1:1",
        "placement: {spares: 0, hosts: [], exclude: [], labels: {}}", "restart: {fence: confirm}", "data: {on_bad_loss: off}",
        "standby: {cuda: false, enabled: false, max_memory: 8GiB}",
        "placement: {interface: auto}", "checkpoint: {memory_every: auto}", "checkpoint: {memory_every: off}",
        "checkpoint: {memory_every: 10 steps}", "checkpoint: {memory_every: 30s}",
        "checkpoint: {dir: 's3://b/x', resume: 'gs://b/y'}", "checkpoint: {dir: 'file:///shared/a'}",
        "notify: []", "plan: {}", "plan: {params: 27B, memory: 80GB}",
    ],
)  # fmt: skip
def test_a_default_is_never_refused(tmp_path: Path, line: str) -> None:
    load(tmp_path, GOOD + line + "\n")


def test_defaults_promised_but_not_in_force_are_listed(tmp_path: Path) -> None:
    listed = not_in_force(load(tmp_path, GOOD))
    assert [one.split(" (not yet")[0] for one in listed] == [
        "checkpoint.memory_every: auto",
    ]
    text = GOOD + "checkpoint: {memory_every: off}\n"
    assert not_in_force(load(tmp_path, text)) == []


def test_the_starter_is_a_right_file(tmp_path: Path) -> None:
    text = starter_yaml("my-job", "train.py")
    assert text.startswith("# yaml-language-server: $schema=")
    spec = load(tmp_path, text)
    assert (spec.name, spec.run) == ("my-job", ["train.py"])
    load(tmp_path, text.replace("\n# nproc", "\nnproc").replace("\n# env", "\nenv").replace("\n# max", "\nmax"))


@pytest.mark.parametrize(
    ("line", "do", "factor"),
    [("skip", "skip", None), ("stop", "stop", None), ("off", "off", None), ("{factor: 3}", "skip", 3.0), ("{}", "skip", None),
     ("{do: stop, factor: 2.5}", "stop", 2.5), ("{do: stop}", "stop", None)],
)  # fmt: skip
def test_bad_losses_are_off_or_have_a_rule(tmp_path: Path, line: str, do: str, factor: float | None) -> None:
    spec = load(tmp_path, GOOD + f"data: {{on_bad_loss: {line}}}\n")
    assert (spec.data.on_bad_loss, spec.data.bad_loss_factor) == (do, factor)
    assert load(tmp_path, to_yaml(spec)) == spec


@pytest.mark.parametrize(
    "line",
    ["ignore", "[skip]", "{do: off}", "{factor: 1}", "{factor: x}", "{spike: 3}", "{factor: '3'}", "{factor: nan}"],
)
def test_a_rule_for_bad_losses_that_says_nothing_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, GOOD + f"data: {{on_bad_loss: {line}}}\n")
    assert len(caught.value.problems) == 1
    assert "job.yaml:3:" in caught.value.problems[0]
