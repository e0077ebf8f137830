"""What programs of ours that serve until a signal have in common."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvferry.errors import ConfigError

__all__ = ["check_state_file", "log_to_stderr", "signals_blocked"]


def check_state_file(path: Path) -> None:
    """Whether a state can be written there: known at the start, not when it would be lost.

    Raises:
        ConfigError: It cannot.
    """
    reason = ""
    if path.is_dir():
        reason = "it is a directory; name a file"
    elif not path.parent.is_dir():
        reason = f"there is no directory {path.parent}; make it"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        reason = f"the directory {path.parent} is not ours to write; name another file"
    if reason:
        raise ConfigError(f"state_file={str(path)!r} cannot be written: {reason}")


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
