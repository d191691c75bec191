"""The JSON schema of job.yaml, for editors and for `zrun schema`; made from the same table as the parser."""

from typing import Any

from zrun.spec.fields import JOB


def schema() -> dict[str, Any]:
    """Draft 2020-12, with descriptions and defaults."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "job.yaml of zrun",
        "description": "One job: what runs, where, and what happens when something goes wrong.",
        **JOB.schema(),
    }
