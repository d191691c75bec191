"""What a keeper says, in the agent's log and without secrets, before anybody acts on it. Decides nothing."""

from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from zrun.core.redact import Redactor

IN_WORDS: Final = ("left", "removed", "holder")


def told(line: dict[str, Any], log: FilteringBoundLogger, hidden: Redactor) -> dict[str, Any]:
    """The line, with the secrets hidden that command lines and names may hold."""
    line = {**line, **{key: hidden.value(line[key]) for key in IN_WORDS if key in line}}
    if line.get("removed"):
        log.warning("swept", count=len(line["removed"]), what=line["removed"])
    if line.get("left"):
        log.error("left behind", what=line["left"])
    match line["said"]:
        case "ready":
            log.info("keeper ready", processes_found_by=line["means"])
        case "still":
            log.error("the keeper stood still: it is killed", for_s=line["for_s"])
        case "freed":
            log.warning("a process that could not be killed has ended", still=line["left"])
    return line
