"""What programs of ours that serve until a signal have in common."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager

__all__ = ["log_to_stderr", "signals_blocked"]


def log_to_stderr(level: str) -> None:
    """Log from this level on, each line with its time."""
    text = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=level.upper(), format=text, stream=sys.stderr)


@contextmanager
def signals_blocked(signals: Collection[signal.Signals]) -> Iterator[None]:
    """No thread that starts meanwhile is interrupted by these signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
