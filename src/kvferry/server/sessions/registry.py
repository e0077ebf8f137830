"""Who may register, the shards that are there because an engine did, and who was refused.

A client that is refused asks again every few seconds. That is one line in the log, a warning, until
it is accepted, is refused for another kind of reason, or was silent for a while. A limited number
of clients is kept, and no others are logged: strangers cannot fill the log.
"""

from __future__ import annotations

import hmac
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from kvferry.base.errors import KVFerryError
from kvferry.base.shown import in_line
from kvferry.chunks.identity import Identity
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.config.server import ServerConfig
from kvferry.server import protocol as p
from kvferry.server.dispatch import RequestRefused
from kvferry.server.memory.pools import Pools
from kvferry.server.sessions.sessions import SESSIONS_MAX, Sessions
from kvferry.server.sessions.shard import IdentityShard, Loop, identity_of

__all__ = ["Registry"]

_log = logging.getLogger("kvferry.server")

_VERSIONS = (p.VERSION,)
# Identities of one server: each has threads, and connections to every store.
_SHARDS_MAX = 256
# How long the first engine of an identity waits for its stores to be opened: some milliseconds as a
# rule. A store that takes longer joins later.
_OPENING_S = 0.25
# A refused client asks again every 10 s (`_REFUSED_S` in client/session_thread.py); one that was
# silent for this long has gone.
_SILENT_S = 60.0
_REFUSED_MAX = 64  # clients that are kept
_WORD_MAX = 80  # characters of a name that a client gave
_TEXT_MAX = 400


class Registry:
    """From `Register` to `Registered`.

    Args:
        config: Of the server; read at each use, it may be replaced.
        incarnation: Of the server.
        pools, sessions: Of the server.
        loop: Of the server.

    Attributes:
        shards: By the digest of their identity.
        refusals: Who was refused, and why.

    Threads: any for `begin`, which may make memory; the loop's for the others.
    """

    def __init__(
        self,
        config: ServerConfig,
        incarnation: str,
        pools: Pools,
        sessions: Sessions,
        loop: Loop,
    ) -> None:
        self.config = config
        self.shards: dict[bytes, IdentityShard] = {}
        self.refusals = RefusedRegistrations()
        self._incarnation = incarnation
        self._pools = pools
        self._sessions = sessions
        self._loop = loop
        self._opening = threading.Lock()

    def admit(self, request: p.Hello | p.Register) -> None:
        """Whether this one may ask at all.

        Raises:
            RequestRefused: He does not know the token.
        """
        token = self.config.token
        if token is None or hmac.compare_digest(request.token.encode(), token.encode()):
            return
        what = "another token" if request.token else "no token"
        text = (
            f"it shows {what}: this server asks for one; give the engine the file of the server's "
            "token_file, as token_file or in KVFERRY_SERVER_TOKEN_FILE"
        )
        if isinstance(request, p.Register):
            self.refusals.add(request, "token", text)
        raise RequestRefused("token", text)

    def check(self, request: p.Register) -> None:
        """Whether there is any sense in opening a session.

        Raises:
            RequestRefused: There is not.
        """
        if request.version not in _VERSIONS:
            raise self._refused(
                request,
                "version",
                f"version {request.version} of the protocol is not spoken here; this server "
                f"({p.VERSION}) and its engines need the same release of kvferry",
            )
        if len(self._sessions.by_token) >= SESSIONS_MAX:
            text = f"there are {SESSIONS_MAX} sessions already"
            raise self._refused(request, "busy", text)

    def begin(self, request: p.Register) -> p.Reply:
        """A session, and where its memory is.

        Raises:
            RequestRefused: Such an identity is not served.
        """
        try:
            shard = self._shard(request)
        except (KVFerryError, OSError, MemoryError) as error:
            raise self._refused(request, "identity", str(error)) from error
        who = in_line(request.software)
        session = self._sessions.begin(shard, request.process, who, request.pid)
        self.refusals.accepted(request)
        pool, config = shard.memory.pool, self.config
        return p.Registered(
            request.id,
            version=p.VERSION,
            session=session.token,
            incarnation=self._incarnation,
            path=pool.segment.path,
            segment_bytes=pool.segment.size_bytes,
            page_stride=pool.stride,
            page_bytes=pool.chunk_bytes,
            pages=pool.pages.pages_count,
            lock=session.lock,
            heartbeat_s=config.tuning.heartbeat_s,
            lease_s=config.tuning.lease_s,
            prefault=pool.pages.granted_count == pool.pages.pages_count,
            shared=shard.shared,
        )

    def _shard(self, request: p.Register) -> IdentityShard:
        """The shard of an identity; opened when it is the first of its kind."""
        identity = identity_of(request.identity, request.digest)
        with self._opening:
            found = self.shards.get(request.digest)
            if found is None:
                if len(self.shards) >= _SHARDS_MAX:
                    text = f"there are {_SHARDS_MAX} identities already; restart the server"
                    raise self._refused(request, "busy", text)
                found = self.shards[request.digest] = IdentityShard(
                    identity, self.config, self._pools, self._loop
                )
                self._say_size(identity)
        found.opened.wait(max(0.0, found.began + _OPENING_S - time.monotonic()))
        return found

    def _say_size(self, identity: Identity) -> None:
        """Chunks of another length are served like all others; only people may wonder."""
        own, size = identity.layout.chunk_size, self.config.chunk_size
        if size is not None and own != size:
            _log.info(
                "%s (%s) has chunks of %d tokens, and not the %d of --chunk-size: its engine was "
                "told so, or its blocks need a multiple; it shares the pool with all others",
                identity.model,
                identity.digest.hex()[:12],
                own,
                size,
            )

    def _refused(self, request: p.Register, code: str, text: str) -> RequestRefused:
        self.refusals.add(request, code, text)
        return RequestRefused(code, text)


@dataclass(slots=True)
class _RefusedEngine:
    software: str
    pid: int
    model: str
    code: str
    text: str
    count: int
    at: float


class RefusedRegistrations:
    """Engines that are refused at present: for the log, `kvferry top` and metrics. Threads: any.

    Attributes:
        by_code: How many registrations were refused, by the code of their `Failure`.
    """

    def __init__(self) -> None:
        self.by_code: dict[str, int] = {}
        self._lock = threading.Lock()
        self._engines: dict[tuple[int, bytes], _RefusedEngine] = {}

    def add(self, request: p.Register, code: str, text: str) -> None:
        """A registration was refused."""
        model = request.identity.get("model")
        now = time.monotonic()
        one = _RefusedEngine(
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
            before = self._engines.get(_client_of(request))
            if before is not None:
                one.count += before.count
            elif len(self._engines) >= _REFUSED_MAX:
                return
            self._engines[_client_of(request)] = one
        if before is None or before.code != code:
            _log.warning(
                "an engine was refused: %s (pid %d) with %s: %s",
                one.software or "it",
                one.pid,
                one.model,
                one.text,
            )

    def accepted(self, request: p.Register) -> None:
        """A client that may have been refused has a session now."""
        with self._lock:
            self._engines.pop(_client_of(request), None)

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


def _client_of(request: p.Register) -> tuple[int, bytes]:
    return request.pid, request.digest[:DIGEST_BYTES]
