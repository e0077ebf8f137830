"""Engines that asked for a session and were refused: what the log, `kvferry top` and metrics say.

A client that is refused asks again every few seconds. That is one line in the log, a warning, until
it is accepted, is refused for another kind of reason, or was silent for a while. A limited number
of clients is kept, and no others are logged: strangers cannot fill the log.

Threads: any.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from kvferry.base.shown import in_line
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.server.protocol import Register

__all__ = ["RefusedRegistrations"]

_log = logging.getLogger("kvferry.server")

# Clients ask again every 10 s.
_SILENT_S = 60.0
_KEPT_MAX = 64
_WORD_MAX = 80
_TEXT_MAX = 400


@dataclass(slots=True)
class _Engine:
    software: str
    pid: int
    model: str
    code: str
    text: str
    count: int
    at: float


class RefusedRegistrations:
    """See the module.

    Attributes:
        by_code: How many registrations were refused, by the code of their `Failure`.
    """

    def __init__(self) -> None:
        self.by_code: dict[str, int] = {}
        self._lock = threading.Lock()
        self._engines: dict[tuple[int, bytes], _Engine] = {}

    def add(self, request: Register, code: str, text: str) -> None:
        """It was refused."""
        model = request.identity.get("model")
        now = time.monotonic()
        one = _Engine(
            in_line(request.software, _WORD_MAX),
            request.pid,
            in_line(model if isinstance(model, str) else "?", _WORD_MAX),
            code,
            in_line(text, _TEXT_MAX),
            1,
            now,
        )
        with self._lock:
            self.by_code[code] = self.by_code.get(code, 0) + 1
            self._forget(now)
            before = self._engines.get(_key(request))
            if before is not None:
                one.count += before.count
            elif len(self._engines) >= _KEPT_MAX:
                return
            self._engines[_key(request)] = one
        if before is None or before.code != code:
            _log.warning(
                "an engine was refused: %s (pid %d) with %s: %s",
                one.software or "it",
                one.pid,
                one.model,
                one.text,
            )

    def accepted(self, request: Register) -> None:
        """It has a session now."""
        with self._lock:
            self._engines.pop(_key(request), None)

    def status(self) -> dict[str, Any]:
        """The count by code, and engines that are refused at present."""
        now = time.monotonic()
        with self._lock:
            self._forget(now)
            engines = [
                {
                    "software": one.software,
                    "pid": one.pid,
                    "model": one.model,
                    "code": one.code,
                    "text": one.text,
                    "count": one.count,
                    "silent_s": round(now - one.at, 3),
                }
                for one in self._engines.values()
            ]
            return {"by_code": dict(self.by_code), "engines": engines}

    def _forget(self, now: float) -> None:
        for key in [key for key, one in self._engines.items() if now - one.at > _SILENT_S]:
            del self._engines[key]


def _key(request: Register) -> tuple[int, bytes]:
    return request.pid, request.digest[:DIGEST_BYTES]
