"""What the node machine has to know of a job: limits and wishes in its own words. Pure."""

from typing import Any, Final

from zrun.spec.job import JobSpec

EXIT_S: Final = 60.0


def limits_of(spec: JobSpec) -> dict[str, Any]:
    """Arguments of NodeMachine and of SpecChanged, but for `setup`, which is this node's affair."""
    limits = spec.watchdog
    return {
        "setup_s": limits.setup_s if limits.enabled else None,
        "exit_s": EXIT_S if limits.exit_s is None else limits.exit_s,
        "standby_bytes": spec.standby.max_memory_bytes if _wants_standbys(spec) else 0,
    }


def _wants_standbys(spec: JobSpec) -> bool:
    return spec.standby.enabled and spec.launcher in ("auto", "warm")
