"""What a server's /metrics say of its cache."""

from __future__ import annotations

import http.client
import re
import urllib.request

__all__ = ["capacity_tokens", "retrieves"]

_CAPACITY = re.compile(r'^kvferry_demo_capacity_tokens\{tier="[^"]*"\} ([0-9.e+]+)$', re.MULTILINE)
_RETRIEVES = r"^kvferry_retrieve_seconds_{}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$"
_LIMIT_S = 10.0
_SIZE_BYTES_MAX = 4 << 20


def capacity_tokens(base_url: str) -> int | None:
    """Tokens that the largest tier can hold; None: the server does not say.

    Args:
        base_url: With the version; metrics are beside it.
    """
    found = [int(float(value)) for value in _CAPACITY.findall(_text(base_url))]
    return max(found, default=None)


def retrieves(base_url: str) -> tuple[float, float]:
    """How long requests have waited for the cache so far, in seconds, and how many; 0, 0: the
    server does not say."""
    text = _text(base_url)
    seconds, count = (
        sum(map(float, re.findall(_RETRIEVES.format(name), text, re.MULTILINE)))
        for name in ("sum", "count")
    )
    return seconds, count


def _text(base_url: str) -> str:
    url = base_url.rstrip("/").removesuffix("/v1") + "/metrics"
    try:
        with urllib.request.urlopen(url, timeout=_LIMIT_S) as reply:
            return str(reply.read(_SIZE_BYTES_MAX).decode(errors="replace"))
    except (OSError, http.client.HTTPException):
        return ""
