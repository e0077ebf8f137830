"""What our programs have in common: their log, their signals, and the files that they write."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvferry.base.errors import ConfigError
from kvferry.base.threads import Guarded

__all__ = ["cannot_write", "check_state_file", "ending_at_once", "log_to_stderr", "signals_blocked"]


def cannot_write(path: Path) -> str:
    """Why no file can be written there, and what to do; empty: it can."""
    if path.is_dir():
        return "it is a directory; name a file"
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}; make it"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return "we may not write there; name another file"
    return ""


def check_state_file(path: Path) -> None:
    """Whether a state can be written there: known at the start, not when it would be lost.

    Raises:
        ConfigError: It cannot.
    """
    if reason := cannot_write(path):
        raise ConfigError(f"state_file={str(path)!r} cannot be written: {reason}")


def log_to_stderr(level: str) -> None:
    """Log from this level on, each line with its time; no text in a message begins another line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _OneLine(logging.Formatter):
    """Writes what cannot be printed as Python does: an end of a line is a backslash and an n."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = record.message
        if not text.isprintable():
            record.message = "".join(
                char if char.isprintable() else char.encode("unicode_escape").decode()
                for char in text
            )
        return super().formatMessage(record)


@contextmanager
def signals_blocked(signals: Collection[signal.Signals]) -> Iterator[None]:
    """No thread that starts meanwhile is interrupted by these signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ending_at_once(signals: Collection[signal.Signals]) -> Iterator[None]:
    """Meanwhile these signals, which all other threads block, end the process, whatever they do.

    For a start that has nothing to lose, and may fill memory for seconds.
    """
    ready, over = threading.Event(), threading.Event()

    def take() -> None:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        finally:
            ready.set()
        over.wait()
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    before = {number: signal.signal(number, signal.SIG_DFL) for number in signals}
    thread = Guarded(take, "start-signals", errand=True)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)
