"""Stages and jobs, as the tests of the worker and those of whole jobs have them."""

from tests.e2e.conftest import make_job, make_job_once
from tests.worker.conftest import make_stage, stage

__all__ = ["make_job", "make_job_once", "make_stage", "stage"]
