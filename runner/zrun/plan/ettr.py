"""How often to save and which part of the time will have been training: Young, Daly, and their sensitivity.

Pure arithmetic over exponentially distributed failures. Sources are in docs/plan.md, "Interval" and "ETTR".
"""

import math
from dataclasses import dataclass, replace
from typing import Final

DAY_S: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Weather:
    """What the machines do to the job, and what each failure and each checkpoint costs; failures in 1000 node-days."""

    nodes: int
    failures: float
    detection_s: float
    restart_s: float
    stall_s: float
    lag_s: float = 0.0
    """A checkpoint written in the background counts only this much after the step it holds."""

    @property
    def mttf_s(self) -> float:
        """Of the job: any node's failure ends it (Kokolis et al. 2025)."""
        return DAY_S * 1000 / (self.nodes * self.failures) if self.failures else math.inf

    @property
    def down_s(self) -> float:
        """Lost by one failure beside the work since the last checkpoint."""
        return self.detection_s + self.restart_s + self.lag_s


def young_s(stall_s: float, mttf_s: float) -> float:
    """sqrt(2 d M): time of work between two checkpoints (Young 1974)."""
    return math.sqrt(2 * stall_s * mttf_s)


def daly_s(stall_s: float, mttf_s: float) -> float:
    """The higher-order estimate (Daly 2006): for stalls that are not small against the mean time to failure."""
    if math.isinf(mttf_s):
        return math.inf
    if stall_s >= 2 * mttf_s:
        return mttf_s
    x = stall_s / (2 * mttf_s)
    return math.sqrt(2 * stall_s * mttf_s) * (1 + math.sqrt(x) / 3 + x / 9) - stall_s


def ettr(interval_s: float, weather: Weather) -> float:
    """t / (M e^(R/M) (e^((t+d)/M) - 1)): Daly's complete model, failures during restarts included."""
    mttf, stall = weather.mttf_s, weather.stall_s
    if interval_s <= 0:
        return 0.0
    if math.isinf(mttf):
        return 1.0 if math.isinf(interval_s) else interval_s / (interval_s + stall)
    exponent = (weather.down_s + interval_s + stall) / mttf
    if exponent > 700:
        return 0.0  # e^700 is where floats end: such a job never gets through an interval
    wall = mttf * math.exp(weather.down_s / mttf) * math.expm1((interval_s + stall) / mttf)
    return interval_s / wall


def closed_form(interval_s: float, weather: Weather) -> float:
    """(1 - (R + t/2) / M) / (1 + d/t): the form for small losses of Kokolis et al. 2025, to compare with theirs."""
    if math.isinf(weather.mttf_s):
        return ettr(interval_s, weather)
    return max(0.0, (1 - (weather.down_s + interval_s / 2) / weather.mttf_s) / (1 + weather.stall_s / interval_s))


def best_interval_s(weather: Weather, *, at_least_s: float = 0.0) -> float:
    """Daly's, but no shorter than a save takes: the next one would begin before it is done."""
    return max(daly_s(weather.stall_s, weather.mttf_s), at_least_s)


DETECTIONS_S: Final = (1.0, 10.0, 60.0, 600.0, 1800.0)
"""Up to torch's default collective timeouts of 10 (NCCL) and 30 minutes (gloo)."""
RESTARTS_S: Final = (1.0, 10.0, 60.0, 300.0, 1200.0)


def sensitivity(interval_s: float, weather: Weather) -> list[dict[str, float]]:
    """ETTR for other times of detection and restart, the rest as it is."""
    return [
        {
            "detection_s": seen,
            "restart_s": back,
            "ettr": ettr(interval_s, replace(weather, detection_s=seen, restart_s=back)),
        }
        for seen in DETECTIONS_S
        for back in RESTARTS_S
    ]
