"""Our log lines where vLLM's are: else nobody would see them in its workers."""

from __future__ import annotations

import logging

__all__ = ["show_logs"]


def show_logs() -> None:
    """Have the loggers of kvferry write as vLLM's do, if nobody has told them where to write."""
    ours, theirs = logging.getLogger("kvferry"), logging.getLogger("vllm")
    if ours.hasHandlers() or not theirs.handlers:
        return
    for handler in theirs.handlers:
        ours.addHandler(handler)
    if ours.level == logging.NOTSET:
        ours.setLevel(theirs.getEffectiveLevel())
    ours.propagate = False
