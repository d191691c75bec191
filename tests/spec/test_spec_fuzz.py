"""Whatever a file holds, the answer is a job or a SpecError; whatever a job holds, it can be written and read again."""

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from zrun.core.errors import SpecError
from zrun.spec import job
from zrun.spec.fields import paths
from zrun.spec.load import load_job
from zrun.spec.write import to_yaml

NAMES = [*sorted({one.rsplit(".", 1)[-1] for one in paths()}), "num_nodes", "<<", "A", "match"]
VALUES = [
    "1", "0", "-1", "1e400", "nan", "true", "no", "auto", "off", "unlimited", "5s", "1h30m", "3:4", "1s..60s", "8GiB", "[]",
    "{}", "~", "''", '"\\U0010ffff"', "train.py", "-m a", "'a b", "&x [1]", "*x", "!!int 3", "500 steps", "s3://b", "|\n  x\n",
    "[a, {b: c}]", "\t", "{a: {b: {c: d}}}", "? a", "0x1f", "1_000", "9" * 400, "é", "@", "`", "%", "--- ", "...",
]  # fmt: skip


def attempt(data: bytes, *overrides: str) -> job.JobSpec | None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.yaml"
        file.write_bytes(data)
        try:
            return load_job(file, overrides=overrides, caller_env={})
        except SpecError as error:
            if not error.problems:
                raise
            return None


@given(st.binary(max_size=400))
@example(b'a: "\\U99999999"')
@example(b"%YAML 9.9\n---\na: 1\n")
@example(b"%TAG ! tag:x,2000:\n--- !a b\n")
@example(b"\xef\xbb\xbf")
@example(b"&a *a")
@example(b"? ? ? a")
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_refused_with_reasons(data: bytes) -> None:
    attempt(data)


LINES = st.lists(
    st.tuples(st.sampled_from(["", "  ", "    ", "- ", "  - "]), st.sampled_from(NAMES), st.sampled_from(VALUES)),
    max_size=12,
)


@given(LINES, st.booleans())
@settings(max_examples=120, deadline=None)
def test_any_yaml_is_a_job_or_refused_with_reasons(lines: list[tuple[str, str, str]], named: bool) -> None:
    text = "name: a\nrun: t.py\n" if named else ""
    text += "".join(f"{indent}{name}: {value}\n" for indent, name, value in lines)
    spec = attempt(text.encode())
    if spec is not None:
        assert attempt(to_yaml(spec).encode()) == spec


@given(st.sampled_from(paths()), st.one_of(st.sampled_from(VALUES), st.text(max_size=20)))
@settings(max_examples=120, deadline=None)
def test_any_override_is_served_or_refused_with_reasons(path: str, value: str) -> None:
    spec = attempt(b"name: a\nrun: t.py\n", f"{path}={value}")
    if spec is not None:
        assert attempt(to_yaml(spec).encode()) == spec


SECONDS = st.integers(1000, 10**9).map(lambda value: value / 1000)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
JOBS = st.builds(
    job.JobSpec,
    name=st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True),
    run=st.lists(TEXTS, max_size=3).map(lambda rest: ["train.py", *rest]),
    workdir=st.just("/w"),
    nproc_per_node=st.one_of(st.sampled_from(["auto", "gpu", "cpu"]), st.integers(1, 64)),
    setup=st.one_of(st.none(), TEXTS.filter(bool)),
    env=st.dictionaries(st.from_regex(r"X[A-Z0-9_]{0,8}", fullmatch=True), TEXTS, max_size=3),
    seed=st.integers(0, 2**63 - 1),
    resources=st.builds(job.Resources, memory_bytes=st.one_of(st.none(), st.integers(0, 2**62))),
    watchdog=st.builds(job.Watchdog, patience_s=st.one_of(st.none(), SECONDS), step_s=st.one_of(st.none(), SECONDS)),
    restart=st.builds(
        job.Restart,
        max_restarts=st.integers(0, 100),
        budgets=st.builds(job.Budgets, crash=st.one_of(st.none(), st.integers(0, 9))),
        rules=st.lists(st.builds(job.Rule, do=st.just("fail"), exit_code=st.integers(1, 255)), max_size=2),
    ),
    max_duration_s=st.one_of(st.none(), SECONDS),
    labels=st.dictionaries(st.from_regex(r"[a-z.]{1,8}", fullmatch=True), TEXTS.filter(bool), max_size=2),
)


@given(JOBS)
@settings(max_examples=50, deadline=None)
def test_any_job_written_is_read_back_the_same(spec: job.JobSpec) -> None:
    text = to_yaml(spec)
    assert attempt(text.encode()) == spec, text
