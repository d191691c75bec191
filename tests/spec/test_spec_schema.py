"""The JSON schema and the page of documentation say what the parser does."""

from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from ruamel.yaml import YAML

from zrun.core.errors import SpecError
from zrun.spec.block import REQUIRED, Block
from zrun.spec.docs import render_docs
from zrun.spec.fields import JOB, paths
from zrun.spec.job import JobSpec
from zrun.spec.load import load_job
from zrun.spec.names import FOREIGN
from zrun.spec.schema import schema
from zrun.spec.write import to_yaml

ROOT = Path(__file__).resolve().parents[2]


def validator() -> Any:
    return jsonschema.Draft202012Validator(schema())


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_a_written_job_with_all_defaults_is_valid_by_the_schema() -> None:
    text = to_yaml(JobSpec(name="a", run=["train.py"], workdir="/w"))
    validator().validate(YAML(typ="safe", pure=True).load(text))


def test_every_default_is_valid_where_it_stands() -> None:
    def walk(form: dict[str, Any]) -> int:
        count = 0
        for part in form.get("properties", {}).values():
            if "default" in part:
                jsonschema.Draft202012Validator(part).validate(part["default"])
                count += 1
            count += walk(part)
        return count

    assert walk(schema()) > 50


@pytest.mark.parametrize(
    "lines",
    [
        "nodes: '4:2:1'", "nodes: 0", "seed: -1", "seed: abc", "max_duration: 5", "max_duration: 5 minutes", "typo: 1",
        "watchdog: {stap: 1s}", "watchdog: {enabled: no}", "restart: {rules: [{do: fail}]}", "restart: {budgets: {crash: x}}",
        "env: [1]", "secrets: KEY", "checkpoint: {every: 500}", "resources: {memory: 512}", "launcher: fast",
    ],
)  # fmt: skip
def test_schema_and_parser_refuse_the_same(tmp_path: Path, lines: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: a\nrun: t.py\n{lines}\n")
    with pytest.raises(SpecError):
        load_job(file)
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(YAML(typ="safe", pure=True).load(file.read_text()))


def test_the_table_covers_every_attribute_of_the_job() -> None:
    def attributes(block: Block) -> set[str]:
        return {name for one in block.fields for name in one.targets}

    assert attributes(JOB) | {"allow_changed"} == set(JobSpec.__struct_fields__)
    for one in JOB.fields:
        if isinstance(one.kind, Block):
            assert attributes(one.kind) == set(one.kind.struct.__struct_fields__), one.name  # type: ignore[attr-defined]


def test_every_field_is_described_and_only_name_and_run_are_required() -> None:
    assert all(one.doc for one in JOB.fields)
    assert [one.name for one in JOB.fields if JOB.default(one) is REQUIRED] == ["name", "run"]


def test_names_of_other_tools_lead_to_fields_that_exist() -> None:
    known = {*paths(), "-"}
    assert {here for _, here in FOREIGN.values()} <= known


def test_the_page_of_documentation_is_the_generated_one() -> None:
    assert (ROOT / "docs" / "job-yaml.md").read_text() == render_docs(), "python -m zrun.spec.docs > docs/job-yaml.md"
