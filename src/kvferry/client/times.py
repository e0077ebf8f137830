"""The times that a call may be given, checked before anything is sent."""

from __future__ import annotations

from kvferry.base.errors import UsageError
from kvferry.base.shown import shown
from kvferry.config.client import TTL_S_MAX

__all__ = ["LIMIT_S_MAX", "checked_timeout", "ttl_ms"]

LIMIT_S_MAX = 1e9  # 30 years: endless to a caller, and still a number to a system call


def ttl_ms(ttl_s: float | None) -> int | None:
    """A time to live in whole milliseconds.

    Raises:
        UsageError: It is below a millisecond, or endless: that is ``None``.
    """
    if ttl_s is None:
        return None
    if not 0.001 <= ttl_s <= TTL_S_MAX:
        raise UsageError(
            f"ttl_s={shown(ttl_s)} is no time to live; use 0.001 to {TTL_S_MAX:g} s, or None"
        )
    return round(ttl_s * 1000)


def checked_timeout(timeout_s: float | None) -> float | None:
    """A caller's limit for a batch, at most `LIMIT_S_MAX`; ``None``: by the settings.

    Raises:
        UsageError: It is zero, negative, or not a number.
    """
    if timeout_s is None:
        return None
    if not timeout_s > 0:
        raise UsageError(
            f"timeout_s={shown(timeout_s)} leaves no time; use a number above 0 or None"
        )
    return min(timeout_s, LIMIT_S_MAX)
