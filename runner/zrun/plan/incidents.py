"""What this installation's own incidents say: how long until a fault was seen, and until the first new step.

Reads verdict.json of earlier runs. Knows nothing about plans.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

_ENOUGH: Final = 3
"""Fewer incidents are an anecdote."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians in seconds; None: fewer than three incidents tell."""

    incidents: int = 0
    detection_s: float | None = None
    restart_s: float | None = None


def measured(verdicts: Iterable[Path]) -> Measured:
    """Files that are missing or not whole are left out."""
    found = [one for path in verdicts for one in _incidents(path)]
    seen = [float(one["detected_s"]) for one in found if isinstance(one.get("detected_s"), int | float)]
    back = [float(one["recovered_s"]) for one in found if isinstance(one.get("recovered_s"), int | float)]
    return Measured(
        len(found), median(seen) if len(seen) >= _ENOUGH else None, median(back) if len(back) >= _ENOUGH else None
    )


def _incidents(path: Path) -> list[dict[str, Any]]:
    try:
        value = json.loads(path.read_text())
        return [one for one in value["incidents"] if isinstance(one, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []
