"""Measures the links between local ranks with the sweep, keeps the result by host, and finds it again.

Knows nothing about models. Links between nodes are not measured here.
"""

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from zrun.core import durable
from zrun.plan import children
from zrun.plan.wire import ROUNDS


@dataclass(frozen=True, slots=True)
class Measurement:
    """Of one host. `intra`: bytes a second that one rank sends within the node; `rows` as they were timed."""

    host: str
    measured_at: str
    backend: str
    ranks: int
    intra: float
    latency_intra_s: float
    rows: list[dict[str, Any]]

    @property
    def origin(self) -> str:
        return f"measured on {self.host} at {self.measured_at} between {self.ranks} {self.backend} ranks"


def fitted(rows: list[dict[str, Any]], ranks: int) -> tuple[float, float]:
    """(bytes a second, seconds a hop): by collective from its largest and its smallest size; the median of them."""
    rates, hops = [], []
    for op in {str(row["op"]) for row in rows}:
        mine = sorted((row for row in rows if row["op"] == op), key=lambda row: int(row["bytes"]))
        small, large = mine[0], mine[-1]
        past = ROUNDS[op] * (ranks - 1) / ranks * (large["bytes"] - small["bytes"])
        # On a busy machine the small one may take as long as the large: then its own time is all there is to say.
        rates.append(past / max(large["seconds"] - small["seconds"], large["seconds"] * 0.01))
        hops.append(small["seconds"] / (ROUNDS[op] * (ranks - 1)))
    return median(rates), median(hops)


def measure(ranks: int, python: str, workdir: str, env: Mapping[str, str]) -> Measurement:
    """Runs the sweep between `ranks` processes of this machine, about half a minute. Raises as children.run does."""
    found = children.run(
        children.torchrun(python, ranks, "sweep.py", str(ranks)), workdir, {**env, **children.QUIET},
        "the sweep of collectives", f"it needs torch in {python} and room for {ranks} processes",
    )  # fmt: skip
    rate, latency = fitted(found["rows"], ranks)
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Measurement(socket.gethostname(), now, found["backend"], ranks, rate, latency, found["rows"])


def wraps(
    model: str, loss: str, micro_batch: int, ranks: int, python: str, workdir: str, env: Mapping[str, str]
) -> dict[str, Any]:
    """A few real steps for each way to wrap a user's model, on local ranks. Raises as children.run does."""
    found: dict[str, Any] = children.run(
        children.torchrun(python, ranks, "trial.py", model, loss, str(micro_batch), str(ranks)), workdir,
        {**env, **children.QUIET}, "the trial of wraps",
        f"{model} and {loss} are imported in {workdir} with {python}; the loss makes its input on the default device",
    )  # fmt: skip
    return found


def keep(path: Path, one: Measurement) -> None:
    """Beside those of other hosts; an older one of this host goes."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    durable.write_json(path, {**_all(path), one.host: asdict(one)})


def kept(path: Path, host: str | None = None) -> Measurement | None:
    """The one of this host, or of `host`."""
    value = _all(path).get(host or socket.gethostname())
    try:
        return Measurement(**value) if value else None
    except TypeError:
        return None  # written by another version


def _all(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
