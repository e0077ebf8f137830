"""The clock for upper bounds, which the suite of connectors brings with it."""

from __future__ import annotations

from kvferry.testing.clock import now_s

__all__ = ["now_s"]
