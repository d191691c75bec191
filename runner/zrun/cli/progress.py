"""The one line that moves while a job runs: step, loss, speed, time left.

Knows nothing about where a status comes from.
"""

import sys
import time
from collections import deque
from typing import Any, Final, TextIO

from zrun.cli.screen import span

_WINDOW_S: Final = 30.0
_PLAIN_EVERY_S: Final = 5.0


class Progress:
    """Rewritten in place on a terminal, printed every 5 s elsewhere. `clear()` before any other output."""

    def __init__(self, stream: TextIO | None = None, *, now: float | None = None) -> None:
        self._stream = stream or sys.stderr
        self._in_place = self._stream.isatty()
        self._shown = ""
        self._printed_at = time.monotonic() if now is None else now
        self._printed_step = -1
        self._seen: deque[tuple[float, int]] = deque()
        self._attempt = 0

    def update(self, status: dict[str, Any], now: float) -> None:
        """Take in a status and show it if it is time to."""
        step = int(status.get("step") or 0)
        if status.get("attempt") != self._attempt or (self._seen and step < self._seen[-1][1]):
            self._attempt = int(status.get("attempt") or 0)
            self._seen.clear()
        running = status.get("state") == "RUNNING"
        if step and running and (not self._seen or step != self._seen[-1][1]):
            self._seen.append((now, step))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        if not running or not step:
            self.clear()
            return
        self._show(line(status, self._rate()), step, now)

    def _rate(self) -> float | None:
        """Steps per second over the last half minute."""
        if len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began else None

    def _show(self, text: str, step: int, now: float) -> None:
        if self._in_place:
            if text != self._shown:
                self._write(f"\r\x1b[K{text}")
                self._shown = text
        elif now - self._printed_at >= _PLAIN_EVERY_S and step != self._printed_step:
            self._write(text + "\n")
            self._printed_at, self._printed_step = now, step

    def clear(self) -> None:
        if self._in_place and self._shown:
            self._write("\r\x1b[K")
            self._shown = ""

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            pass  # the terminal hung up; the job is followed all the same


def line(status: dict[str, Any], rate: float | None) -> str:
    """`step 120/2000  loss 2.312  19.6 steps/s  ETA 1m 35s`."""
    step, total = int(status.get("step") or 0), int(status.get("total_steps") or 0)
    metrics = status.get("metrics") or {}
    step_s = status.get("step_s")
    if rate is None and step_s:
        rate = 1.0 / step_s
    parts = [f"step {step}/{total}" if total else f"step {step}"]
    losses = [name for name in ("loss", "eval_loss") if isinstance(metrics.get(name), int | float)]
    parts += [f"{name} {metrics[name]:.4g}" for name in losses]
    if isinstance(metrics.get("tokens_s"), int | float):
        parts.append(f"{metrics['tokens_s']:,.0f} tokens/s")
    if rate:
        parts.append(f"{rate:.3g} steps/s")
        if total > step:
            parts.append(f"ETA {span((total - step) / rate)}")
    return "  ".join(parts)
