"""Flags are raised by the script, by signal handlers in the middle of that, and by threads: none is lost."""

import signal
import time
from pathlib import Path
from typing import Any

from zrun.core.deck import Flag, create_deck, deck_path
from zrun.core.deck_reader import DeckReader
from zrun.core.deck_writer import DeckWriter


def test_a_flag_that_a_signal_handler_raises_while_another_is_being_raised_stays_up(tmp_path: Path) -> None:
    create_deck(deck_path(tmp_path, 0), 0, 1, 0.0)
    writer, reader = DeckWriter(deck_path(tmp_path, 0)), DeckReader(deck_path(tmp_path, 0))
    rings = 0

    def ring(*_: Any) -> None:
        nonlocal rings
        rings += 1
        change = writer.raise_flag if rings % 2 else writer.lower_flag
        change(Flag.TERM_SEEN)

    before = signal.signal(signal.SIGALRM, ring)
    lost = 0
    deadline = time.monotonic() + 1.0
    try:
        while time.monotonic() < deadline:
            rung = rings
            signal.setitimer(signal.ITIMER_REAL, 0.00005)  # once: a handler must not be interrupted by itself
            while rings == rung:
                writer.raise_flag(Flag.IN_LOADER)
                writer.lower_flag(Flag.IN_LOADER)
            lost += (Flag.TERM_SEEN in reader.read().flags) != bool(rings % 2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rings > 100
    assert lost == 0
