"""What a server's /metrics say of the size of its cache."""

from __future__ import annotations

import contextlib
import http.client
import re
import urllib.request

__all__ = ["capacity_tokens"]

_CAPACITY = re.compile(r'^kvferry_demo_capacity_tokens\{tier="[^"]*"\} ([0-9.e+]+)$', re.MULTILINE)
_LIMIT_S = 10.0
_SIZE_BYTES_MAX = 4 << 20


def capacity_tokens(base_url: str) -> int | None:
    """Tokens that the largest tier can hold; None: the server does not say.

    Args:
        base_url: With the version; metrics are beside it.
    """
    url = base_url.rstrip("/").removesuffix("/v1") + "/metrics"
    with contextlib.suppress(OSError, http.client.HTTPException):
        with urllib.request.urlopen(url, timeout=_LIMIT_S) as reply:
            text = reply.read(_SIZE_BYTES_MAX).decode(errors="replace")
        found = [int(float(value)) for value in _CAPACITY.findall(text)]
        return max(found, default=None)
    return None
