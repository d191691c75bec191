"""The names that tell jobs, nodes and attempts apart; knows nothing about what they do."""

import re
import secrets
from typing import Final, NewType

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
Rank = NewType("Rank", int)
Attempt = NewType("Attempt", int)
"""One incarnation of all workers of a job; counts from 1, 0 means none."""

NO_ATTEMPT: Final = Attempt(0)
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label: what a job may be called."""
JOB_ID: Final = re.compile(r"[a-z0-9][-a-z0-9]{0,67}-[0-9a-f]{4,8}")


def new_job_id(name: str) -> JobId:
    """`gpt2` -> `gpt2-7f3a91`: unique enough for one runs folder, short enough to type."""
    return JobId(f"{name}-{secrets.token_hex(3)}")


def new_boot() -> str:
    """Names one life of an agent process, so that an order for its dead self can be told apart."""
    return secrets.token_hex(6)
