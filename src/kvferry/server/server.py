"""The cache server: pools, shards, sessions and the loop, from start to end.

    server = Server(ServerConfig.load("kvferry.yaml"))
    server.run()            # until stop(), from a signal handler or another thread

A server that ends drains: it refuses new chunks, waits until stores have those they were promised,
for `drain_s` at most, and removes its segments. Engines go on without it.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import threading
import time
from pathlib import Path
from typing import Any

import zmq

from kvferry import __version__
from kvferry.engine import Engine
from kvferry.errors import ConfigError, StoreError, UsageError
from kvferry.server import restart
from kvferry.server.config import ServerConfig
from kvferry.server.dispatch import Dispatcher
from kvferry.server.handlers import Handlers
from kvferry.server.metrics import metrics_text
from kvferry.server.pools import Pools
from kvferry.server.protocol import MESSAGE_BYTES_MAX
from kvferry.server.reload import merged
from kvferry.server.sessions import Session, Sessions
from kvferry.server.shard import Shard

__all__ = ["Server"]

_log = logging.getLogger("kvferry.server")

# Messages that a client does not take; then further ones are dropped.
_QUEUE_MESSAGES = 1000
_BEAT_S = 2.0


class Server:
    """See the head of this module.

    Args:
        config: The settings.

    Attributes:
        config: The settings in force.
        endpoints: Where it listens, with the ports that it got.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.endpoints: list[str] = []
        self.incarnation = secrets.token_hex(8)
        self.state = "starting"
        self._began = time.monotonic()
        self._pools = Pools(config)
        self._sessions = Sessions(config.client_share, config.dead_after_s, self._session_ended)
        self._handlers = Handlers(config, self.incarnation, self._pools, self._sessions)
        self._dispatcher: Dispatcher | None = None
        self._stop = threading.Event()
        self._kept = False  # the segments, for the next server
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    # --- Life ---

    def run(self) -> None:
        """Serve until `stop`, then drain.

        Raises:
            StoreError: An endpoint cannot be listened on.
            ConfigError: A setting does not go with this host.
        """
        try:
            socket = self._bind()
            restart.begin(self.config, self._pools, self._sessions, self._handlers.shards)
            self._dispatcher = Dispatcher(socket, self._handlers.handle, self._sessions.tick)
            self.state = "ready"
            if not self._stop.is_set():
                self._dispatcher.run()
            self._drain()
        finally:
            self.state = "ended"
            self._context.destroy(linger=0)
            self._pools.close(keep=self._kept)

    def _bind(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        socket.setsockopt(zmq.SNDHWM, _QUEUE_MESSAGES)
        socket.setsockopt(zmq.RCVHWM, _QUEUE_MESSAGES)
        # Half-open connections of hosts that vanished, and what never says hello.
        socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
        if self.config.curve_key_file is not None:
            from kvferry.server.curve import apply_server

            apply_server(socket, self._context, self.config.curve_key_file)
        for endpoint in self.config.endpoints:
            if endpoint.startswith("ipc://"):
                _remove_stale(Path(endpoint.removeprefix("ipc://")))
            old = os.umask(0o177)  # an ipc socket is for its user alone
            try:
                socket.bind(endpoint)
            except zmq.ZMQError as error:
                raise StoreError(
                    f"cannot listen on {endpoint}: {error.strerror}; "
                    "choose another port, or end the server that has it"
                ) from None
            finally:
                os.umask(old)
            self.endpoints.append(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        return socket

    def stop(self) -> None:
        """Begin to drain. Threads: any; also a signal handler."""
        self._handlers.draining = True
        if self.state == "ready":
            self.state = "draining"
        self._stop.set()
        if self._dispatcher is not None:
            self._dispatcher.stop()

    def _drain(self) -> None:
        until = time.monotonic() + self.config.drain_s
        for session in list(self._sessions.by_token.values()):
            self._sessions.end(session, "shutdown")
        lost = 0
        for shard in self.shards:
            queued = sum(store.writer.queue_chunks for store in shard.engine.tiers)
            if not shard.engine.close(max(0.0, until - time.monotonic())):
                lost += min(
                    queued, sum(store.writer.queue_chunks for store in shard.engine.tiers) or queued
                )
        if lost:
            _log.warning(
                "%d chunks were not written to their stores within %g s", lost, self.config.drain_s
            )

        if self.config.state_file is not None:
            path, pools = self.config.state_file, self._pools
            self._kept = restart.keep(path, pools, self._sessions, self.shards)

    def reload(self) -> list[str]:
        """Read the settings anew and take over what can change; the changes in words."""
        if self.config.again is None:
            return ["nothing was read: the settings came from a program"]
        try:
            wanted = self.config.again()
        except (ConfigError, OSError) as error:
            _log.error("settings were not reloaded: %s", error)
            return [f"nothing was changed: {error}"]
        config, done = merged(self.config, wanted)
        self._take_over(config)
        for text in done:
            _log.info("reload: %s", text)
        return done

    def _take_over(self, config: ServerConfig) -> None:
        if config.engine.l1_bytes != self.config.engine.l1_bytes:
            self._pools.resize(config.engine.l1_bytes)
        self.config = self._handlers.config = config
        self._sessions.share, self._sessions.dead_after_s = (
            config.client_share,
            config.dead_after_s,
        )
        for shard in self.shards:
            shard.engine.config = config.engine

    def _session_ended(self, session: Session, why: str) -> None:
        if why in ("left", "shutdown"):
            _log.info("%s (pid %d) %s", session.software, session.pid, why)
        else:
            _log.warning("%s (pid %d) lost its session: %s", session.software, session.pid, why)

    # --- What others see ---

    @property
    def shards(self) -> list[Shard]:
        """All identities."""
        return list(self._handlers.shards.values())

    @property
    def ready(self) -> bool:
        """Whether engines are served."""
        return self.state == "ready"

    @property
    def alive(self) -> bool:
        """Whether the loop turns."""
        loop = self._dispatcher
        return loop is not None and time.monotonic() - loop.beat < _BEAT_S

    def engine(self, identity: str | None = None) -> Engine:
        """The engine of an identity.

        Args:
            identity: Its digest in hex, the beginning of it, or the model's name; None: the only
                one there is.

        Raises:
            UsageError: There is none, or more than one.
        """
        found = [
            shard
            for shard in self.shards
            if identity is None
            or shard.identity.model == identity
            or (identity and shard.identity.digest.hex().startswith(identity))
        ]
        if len(found) == 1:
            return found[0].engine
        known = ", ".join(
            f"{s.identity.digest.hex()[:8]} ({s.identity.model})" for s in self.shards
        )
        what = "no identity" if not found else f"{len(found)} identities"
        asked = "" if identity is None else f" for {identity!r}"
        raise UsageError(f"{what}{asked}; there are: {known or 'none yet, no engine has come'}")

    def status(self) -> dict[str, Any]:
        """What the server holds and does, as JSON has it."""
        return {
            "version": __version__,
            "incarnation": self.incarnation,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._began, 3),
            "state": self.state,
            "endpoints": list(self.endpoints),
            "identities": [shard.status() for shard in self.shards],
            **self.summary(),
        }

    def summary(self) -> dict[str, Any]:
        """The part of `status` that is no engine's."""
        loop = self._dispatcher
        return {
            "pool": self._pools.status(),
            "sessions": self._sessions.status(),
            "sessions_ended": dict(self._sessions.ended),
            "fenced_pages": self._sessions.fenced_pages,
            "protocol": loop.status() if loop else Dispatcher.nothing(),
        }

    def metrics_text(self) -> str:
        """All metrics in Prometheus' text format."""
        return metrics_text(self)


def _remove_stale(path: Path) -> None:
    """The socket file of a server that died; one of a living server is an error."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise StoreError(f"{path} is there and is no socket; choose another path")
    except FileNotFoundError:
        return
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot look at {path}: {error.strerror}") from None
        else:
            raise StoreError(f"a server listens on {path} already; end it or choose another path")
