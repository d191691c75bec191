"""What a wrong job file is told: every mistake at once, each with its place, its line and the way out."""

from pathlib import Path

import pytest

from zrun.core.errors import Exit, SpecError
from zrun.spec.load import load_job

GOOD = "name: gpt2\nrun: train.py --lr 1e-4\n"


def mistakes(folder: Path, text: str | bytes, **options: object) -> tuple[str, ...]:
    file = folder / "job.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(SpecError) as caught:
        load_job(file, caller_env={}, **options)  # type: ignore[arg-type]
    assert caught.value.exit_code == Exit.WRONG_USE
    return caught.value.problems


def only(folder: Path, text: str | bytes) -> str:
    found = mistakes(folder, text)
    assert len(found) == 1, found
    return found[0]


def test_a_mistake_shows_file_line_column_the_line_a_caret_and_the_way_out(tmp_path: Path) -> None:
    shown = only(tmp_path, GOOD + "nodes: 4:2\n")
    assert shown.splitlines() == [
        f"{tmp_path}/job.yaml:3:8: nodes: MIN:MAX is reversed",
        "    3 | nodes: 4:2",
        "      |        ^^^",
        "    expected: a number of nodes, or MIN:MAX such as 3:4",
        "    try: 2:4",
    ]


def test_all_mistakes_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "name: My_Job\nnum_nodes: 2\nrun: torchrun train.py\nmax_duration: 5\nwatchdog: {enabled: no, stap: 1s}\n"
    found = mistakes(tmp_path, text)
    places = [one.split(": ", 1)[0].removeprefix(f"{tmp_path}/job.yaml:") for one in found]
    assert places == ["1:7", "2:1", "3:6", "4:15", "5:21", "5:25"]


@pytest.mark.parametrize(
    ("line", "way_out"),
    [
        ("num_nodes: 2", "SkyPilot calls it that; here it is nodes"),
        ("envs: {A: b}", "SkyPilot calls it that; here it is env"),
        ("nnodes: 2", "torchrun calls it that; here it is nodes"),
        ("max_retries: 3", "TorchX calls it that; here it is restart.max_restarts"),
        ("replicas: 3", "JobSet calls it that; here it is nodes"),
        ("nproc: 3", "torchrun calls it that; here it is nproc_per_node"),
        ("nproc-per-node: 3", "here it is written nproc_per_node"),
        ("num_processes: 3", "Accelerate calls it that and counts the whole job; here it is nproc_per_node, counted per node"),
        ("timeout: 3", "other tools call it that; here it is watchdog.step"),
        ("command: x", "Kubeflow calls it that; here it is run"),
        ("entrypoint: x", "TorchX calls it that; here it is run"),
        ("retry: x", "dstack calls it that; here it is restart"),
        ("master_port: 1", "torchrun calls it that; zrun has no such field and needs none"),
        ("min_step: 2s", "it belongs under watchdog.min_step"),
        ("step: 2s", "it belongs under watchdog.step"),
        ("enabled: true", "it belongs under standby.enabled or watchdog.enabled"),
        ("restarts: {}", "did you mean restart?"),
        ("watchdog: {seed: 3}", "it belongs at the top, as seed"),
        ("restart: {max_restart: 3}", "did you mean max_restarts?"),
        ("restart: {rules: [{match: {code: 2}, do: fail}]}", "did you mean exit_code?"),
        ("<<: {}", "merge keys are not part of YAML 1.2; write the fields out"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_translated_placed_or_guessed(tmp_path: Path, line: str, way_out: str) -> None:
    shown = mistakes(tmp_path, GOOD + line + "\n")[0]
    assert "unknown field" in shown
    assert shown.endswith(f"try: {way_out}")


def test_an_unknown_field_like_nothing_lists_the_fields(tmp_path: Path) -> None:
    assert "expected: one of max_size" in only(tmp_path, GOOD + "logs: {qqqq: 3}\n")


@pytest.mark.parametrize(
    ("run", "way_out"),
    [
        ("torchrun --nproc-per-node 8 train.py --lr 1e-4", "run: train.py --lr 1e-4"),
        ("python train.py 'a b'", "run: train.py 'a b'"),
        ("/usr/bin/python3.11 -m pkg.train --x 1", "run: -m pkg.train --x 1"),
        ("python -m torch.distributed.run --nnodes 2 -m pkg.train", "run: -m pkg.train"),
        ("-m torch.distributed.launch t.py", "run: t.py"),
        ("accelerate launch --num_processes 2 t.py", "run: t.py"),
        ("bash run.sh", "name the python script itself; what prepares a node belongs under setup, variables under env"),
        ("--nproc-per-node 8 t.py", "the number of workers is nproc_per_node; run begins with the script or -m module"),
        ("A=1 t.py", "env: {A: 1}"),
        ("t.py && echo done", "put it in quotes if the script wants it"),
        ("-m", "-m train.main --config configs/7b.yaml"),
    ],
)
def test_a_run_line_for_another_launcher_is_refused_with_what_to_write(tmp_path: Path, run: str, way_out: str) -> None:
    assert only(tmp_path, f"name: a\nrun: {run}\n").endswith(f"try: {way_out}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("restart: {max_restarts: three}", "restart.max_restarts: 'three' is not a whole number"),
        ("restart: {max_restarts: '3'}", "restart.max_restarts: '3' in quotes is text"),
        ("restart: {max_restarts: -1}", "restart.max_restarts: -1 is too small"),
        ("seed: 99999999999999999999", "seed: 99999999999999999999 is too large"),
        ("version: 2", "version: 2 is too large"),
        ("watchdog: {enabled: no}", "watchdog.enabled: 'no' is neither true nor false"),
        ("watchdog: {enabled: True}", "watchdog.enabled: 'True' is neither true nor false"),
        ("watchdog: {on_hang: explode}", "watchdog.on_hang: 'explode' is not one of them"),
        ("watchdog: {phases: {step: 1h}}", "watchdog.phases: step is a phase of zrun's own"),
        ("watchdog: 5", "watchdog: '5' is not a block"),
        ("watchdog: {min_step: 0s}", "watchdog.min_step: '0s' must be longer than nothing"),
        ("restart: {lease: 1ms}", "restart.lease: '1ms' is too short"),
        ("restart: {backoff: {crash: 60s..1s}}", "restart.backoff.crash: MIN..MAX is reversed"),
        ("restart: {backoff: {crush: 1s}}", "restart.backoff: 'crush' is not a class of fault"),
        ("restart: {budgets: {crash: lots}}", "restart.budgets.crash: 'lots' is not a whole number"),
        ("restart: {rules: [{match: {}, do: fail}]}", "restart.rules[0].match: none of the conditions"),
        (
            "restart: {rules: [{match: {exit_code: 1, signal: KILL}, do: fail}]}",
            "restart.rules[0].match: several of the",
        ),
        ("restart: {rules: [{match: {regex: '('}, do: fail}]}", "restart.rules[0].match.regex: '(' is not a regular"),
        (
            "restart: {rules: [{match: {signal: BOOM}, do: fail}]}",
            "restart.rules[0].match.signal: 'BOOM' is not a signal",
        ),
        ("restart: {rules: [{do: fail}]}", "match is missing"),
        ("restart: {rules: {match: {exit_code: 1}, do: fail}}", "restart.rules: a block of fields is not a list"),
        ("preempt: {signals: [KILL]}", "preempt.signals[0]: KILL cannot announce a preemption"),
        ("preempt: {signals: TERM}", "preempt.signals: 'TERM' is not a list"),
        ("checkpoint: {every: 500}", "checkpoint.every: 500 has no unit"),
        ("checkpoint: {keep: {last: 0}}", "checkpoint.keep.last: 0 is too small"),
        ("checkpoint: {resume: no}", "checkpoint.resume: 'no' is neither auto, never nor a path"),
        ("checkpoint: {dir: ''}", "checkpoint.dir: '' is not a path"),
        ("env: {1X: a}", "env: '1X' is not the name of a variable"),
        ("env: {RANK: 3}", "env: RANK is set by zrun for each rank"),
        ("env: {A: }", "env.A has no value"),
        ("env: {A: [1]}", "env.A: a list cannot stand here"),
        ("env: [A]", "env: a list is not a block"),
        ("secrets: [A, A]", "secrets names one variable twice"),
        ("nproc_per_node: 0", "nproc_per_node: 0 is too small"),
        ("nproc_per_node: all", "nproc_per_node: 'all' is not a whole number"),
        ("seed:", "seed has no value"),
        ("seed: null", "seed has no value"),
        ("max_duration: 0s", "max_duration: '0s' must be longer than nothing"),
    ],
)
def test_a_wrong_value_is_named_with_its_field(tmp_path: Path, line: str, message: str) -> None:
    assert f": {message}" in only(tmp_path, GOOD + line + "\n")


def test_a_secret_in_env_is_refused_at_its_place(tmp_path: Path) -> None:
    shown = only(tmp_path, GOOD + "secrets: [KEY]\nenv: {KEY: abc}\n")
    assert "job.yaml:4:12: KEY is a secret and stands in env too" in shown


def test_missing_fields_are_named(tmp_path: Path) -> None:
    for text in ("", "# nothing\n", "---\n", "seed: 1\n"):
        assert [one.splitlines()[0].split(": ", 1)[1] for one in mistakes(tmp_path, text)] == [
            "name is missing",
            "run is missing",
        ]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (GOOD + "seed: 1\nseed: 2\n", "4:1", "'seed' stands twice (first in line 3)"),
        (GOOD + "env:\n  A: 1\n  A: 2\n", "5:3", "'env.A' stands twice (first in line 4)"),
        (GOOD + "env:\n\tA: 1\n", "4:1", "a tab between fields or in front of them"),
        (GOOD + "seed:\t1\n", "3:6", "a tab between fields or in front of them"),
        (GOOD + "env: {A: 'x\n", "", "not YAML"),
        (GOOD + "a: b: c\n", "3:5", "a second ': ' on one line, or a line indented too far"),
        (GOOD + "seed: !!int '3'\n", "3:7", "an explicit tag (!...)"),
        (GOOD + "env: !!python/object:os.system {A: 1}\n", "3:6", "an explicit tag (!...)"),
        (GOOD + "env: *x\n", "3:6", "*x has no anchor"),
        (GOOD + "plan: &x {a: *x}\n", "3:14", "*x stands inside &x: it would hold itself"),
        (GOOD + "--- \na: 1\n", "3:1", "a second document"),
        (GOOD + "env: {[a]: 1}\n", "3:7", "a field name that is a list or a block"),
        (GOOD + "plan: " + "[" * 40 + "]" * 40 + "\n", "3:38", "nested deeper than 32 levels"),
        ("- a\n", "1:1", "a list is not a job"),
        ("hello\n", "1:1", "'hello' is not a job"),
        (b"name: a\nrun: \xff.py\n", "2:6", "not UTF-8"),
        (b"name: a\x00\n", "1:8", "a character that YAML does not allow"),
        ("name: a\nrun: b.py\n#" + "x" * (1 << 20), "3:1048559", "the file goes on after 1 MiB"),
    ],
)
def test_what_is_not_yaml_for_a_job_is_refused_with_its_place(
    tmp_path: Path, text: str | bytes, place: str, message: str
) -> None:
    first = mistakes(tmp_path, text)[0].splitlines()[0]
    assert first.startswith(f"{tmp_path}/job.yaml:{place}")
    assert message in first


def test_anchors_that_expand_hugely_are_refused(tmp_path: Path) -> None:
    lines = ["plan:", "  a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 20)]
    shown = only(tmp_path, GOOD + "\n".join(lines))
    assert "the file expands to more than 20,000 values here" in shown


def test_a_thousand_mistakes_are_cut_short(tmp_path: Path) -> None:
    found = mistakes(tmp_path, GOOD + "".join(f"field{n}x: 1\n" for n in range(5000)))
    assert len(found) == 100 or found[-1].startswith("... and")
    assert len(found) <= 101


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    text = "\n".join(mistakes(tmp_path, GOOD + '"\\e]0;evil\\a": "x"\n'))
    assert "\x1b" not in text
    assert "\a" not in text


def test_a_file_that_cannot_be_read_is_one_clear_sentence(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.yaml", "no such file"), (tmp_path, "cannot be read")):
        with pytest.raises(SpecError, match=words):
            load_job(path)


def test_what_is_missing_on_this_machine_is_found_when_asked(tmp_path: Path) -> None:
    (tmp_path / "trian.py").touch()
    text = "name: a\nrun: train.py\npython: .venv/bin/python\nsecrets: [KEY]\n"
    found = mistakes(tmp_path, text, on_this_machine=True)
    assert len(found) == 3
    assert found[0].endswith("try: did you mean trian.py?")
    assert "python: no file" in found[1]
    assert "secret 'KEY' is not set" in found[2]
    assert "no folder" in mistakes(tmp_path, GOOD + "workdir: nowhere\n", on_this_machine=True)[0]
