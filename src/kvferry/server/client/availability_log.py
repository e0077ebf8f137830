"""What a client tells people: one line when the server goes, one when it is back.

Threads: one, that of the session.
"""

from __future__ import annotations

import logging
import time

__all__ = ["AvailabilityLog"]

_log = logging.getLogger("kvferry.server.client")
# A server that is back sooner was hardly away.
_PATIENCE_S = 1.0


class AvailabilityLog:
    """One warning for each absence, one error for each refusal."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._since = time.monotonic()
        self._told = False
        self._refusal = ""

    def missed(self, why: str, *, at_once: bool = False) -> None:
        """There is no server; not to be told yet if that began just now."""
        late = time.monotonic() > self._since + _PATIENCE_S
        if not self._told and not self._refusal and (at_once or late):
            _log.warning("no cache server at %s (%s): going on without cache", self._url, why)
            self._told = True

    def refused(self, why: str) -> None:
        """There is one, and it does not work with us."""
        if self._refusal != why:
            _log.error("the cache server at %s is of no use to us: %s", self._url, why)
        self._refusal = why

    def there(self) -> None:
        """There is one."""
        if self._told or self._refusal:
            _log.info("the cache server at %s is back", self._url)
        self._told, self._refusal = False, ""

    def gone(self) -> None:
        """There is none from now on."""
        self._since = time.monotonic()
