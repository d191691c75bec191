"""Runs as their ranks would have told them, without running anything."""

from pathlib import Path
from typing import Any

from zrun.drill.runs import Ran
from zrun.drill.traces import Traced


def traced(*attempts: tuple[int, int], ranks: int = 2, session: bool = True, **other: Any) -> Traced:
    """Each attempt from its first to its last step, a second a step. `loss_at={(rank, step): text}` says otherwise.

    `batch_at` likewise; `weights`: of every rank at the end; `stop={rank: step}`: the rank's last one in attempt 1.
    """
    found, at = Traced(), 0.0
    for number, (first, last) in enumerate(attempts, 1):
        for rank in range(ranks):
            found.take({"pid": 100 * number + rank, "world_size": ranks, "rank": rank}, number, rank)
        for step in range(first, last + 1):
            at += 1.0
            for rank in range(ranks):
                if number == 1 and step > other.get("stop", {}).get(rank, last):
                    continue
                batch = other.get("batch_at", {}).get((rank, step), f"e0-s{step:06d}-0000000{step % 10}")
                loss = other.get("loss_at", {}).get((rank, step), repr(1.0 / step))
                metrics = {"loss": loss, **other.get("metrics", {})}
                found.take(
                    {"at": at, "step": step, "batch": batch, "session": session, "metrics": metrics}, number, rank
                )
    for rank in range(ranks):
        state = other.get("weights", {"model/w": "aa", "optimizer/w": "bb"})
        found.take({"ended": attempts[-1][1], "state": state}, len(attempts), rank)
    return found


def ran(found: Traced, *, state: str = "SUCCEEDED", **other: Any) -> Ran:
    """`incidents`, `attempts`, `events`, `came` as they are in the run's folder."""
    verdict = {"state": state, "reason": "because", "incidents": other.get("incidents", []),
               "attempts": other.get("attempts", [{"attempt": 1, "resumed_from": None}])}  # fmt: skip
    return Ran(
        other.get("name", "disturbed"), 0, 12.0, found, Path("disturbed.log"), None, verdict, other.get("events", []),
        other.get("came", {}), too_long=other.get("too_long", False),
    )  # fmt: skip


def incident(number: int = 1, **other: Any) -> dict[str, Any]:
    return {
        "id": number, "class": "crash", "rank": 1, "ranks": [1], "attempt": number, "suspicion": False, "batch": None,
        "headline": "rank 1: killed by SIGKILL (step 5)", "detected_s": 0.03, "recovered_s": 1.0, "steps_lost": 0,
        "at": None,
    } | other  # fmt: skip
