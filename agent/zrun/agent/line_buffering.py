"""Line by line output of programs that are no python, for a job that asks for it: what coreutils' stdbuf does.

A C program whose output is a file keeps back 4 KiB of it, and takes them with it when it is killed. Knows nothing about
ranks.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from zrun.core.errors import LaunchError
from zrun.spec.job import JobSpec

_PLACES: Final = (
    "/usr/libexec/coreutils/libstdbuf.so", "/usr/lib/coreutils/libstdbuf.so", "/usr/lib64/coreutils/libstdbuf.so",
    "/usr/local/libexec/coreutils/libstdbuf.so",
)  # fmt: skip


def library() -> str | None:
    """libstdbuf.so of this node."""
    return next((place for place in _PLACES if Path(place).is_file()), None)


def check_library(spec: JobSpec) -> None:
    """Raises LaunchError."""
    if spec.logs.line_buffered and library() is None:
        raise LaunchError(
            "logs.line_buffered needs libstdbuf.so of GNU coreutils, and this node has none in /usr/libexec/coreutils",
            "install coreutils there, or take logs.line_buffered out",
        )


def preloaded(given: Mapping[str, str]) -> dict[str, str]:
    """The variables that make children write line by line; what the job preloads itself stays."""
    found = library()
    if found is None:
        return {}
    before = given.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{before}:{found}" if before else found, "_STDBUF_O": "L", "_STDBUF_E": "L"}
