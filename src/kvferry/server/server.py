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
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kvferry import __version__
from kvferry.base.errors import ConfigError, StoreError, UsageError
from kvferry.base.threads import failures
from kvferry.cache import TieredCache
from kvferry.config.server import ServerConfig
from kvferry.config.setting import GB, Settings, specs
from kvferry.metrics.collector import exposition, text_of
from kvferry.metrics.series import Family, family_of
from kvferry.rpc.listener import Listener
from kvferry.server.dispatch import Dispatcher
from kvferry.server.memory import restart
from kvferry.server.memory.pools import Pools
from kvferry.server.sessions.handlers import Handlers
from kvferry.server.sessions.registry import Registry
from kvferry.server.sessions.sessions import Session, Sessions
from kvferry.server.sessions.shard import IdentityShard, Loop
from kvferry.server.sessions.store_watch import StoreWatch

__all__ = ["Server"]

_log = logging.getLogger("kvferry.server")

# The loop turns at least every `TICK_S` (0.25 s); silent for this long, it hangs.
_BEAT_S = 2.0
_SECRET = ("token", "http_token")
# Settings of the cache that can change while the server runs, as secrets can; the rest needs a
# restart.
_LIVE_OF_CACHE = ("lookup_timeout_s", "retrieve_timeout_s", "max_local_cpu_size")


class Server:
    """See the head of this module.

    Threads: `run` is the loop's; the rest is for any, and waits for no loop: what it says was true
    a moment ago.

    Args:
        config: The settings.

    Attributes:
        config: The settings in force.
        endpoints: Where it listens, with the ports that it got.
        state: "starting", "ready", "draining" or "ended".
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.endpoints: list[str] = []
        self.incarnation = secrets.token_hex(8)
        self.state = "starting"
        self._began = time.monotonic()
        self._pools = Pools(config)
        self._sessions = Sessions(config.tuning.dead_after_s, self._session_ended)
        self._listener = Listener()
        self._loop = Loop(self._listener.watch, lambda steps: self._dispatcher.in_background(steps))
        self._registry = Registry(config, self.incarnation, self._pools, self._sessions, self._loop)
        self._handlers = Handlers(config, self.incarnation, self._registry, self._sessions)
        self._watch = StoreWatch(config.cache.stores, lambda: self.shards)
        self._dispatcher = Dispatcher(self._listener, self._handlers.handle, self._sessions.tick)
        self._stop = threading.Event()
        self._kept = False  # the segments, for the next server

    # --- Life ---

    def run(self) -> None:
        """Serve until `stop`, then drain.

        Raises:
            StoreError: An endpoint cannot be listened on.
            ConfigError: A setting does not go with this host.
        """
        try:
            self.endpoints = [self._listen(each) for each in self.config.endpoints]
            restart.begin(
                self.config,
                self._pools,
                self._sessions,
                self._registry.shards,
                self._loop,
            )
            self._watch.start()
            sizes = (self._pools.granted_bytes / GB, self._pools.budget_bytes / GB)
            _log.info("memory for chunks: %.2f GB now, at most %.2f GB", *sizes)
            self.state = "ready"
            if not self._stop.is_set():
                self._dispatcher.run()
            self._drain()
        finally:
            self.state = "ended"
            self._watch.stop()
            self._listener.close()
            self._pools.close(keep=self._kept)

    def _listen(self, endpoint: str) -> str:
        try:
            return self._listener.listen(endpoint)
        except OSError as error:
            raise StoreError(
                f"cannot listen at {endpoint}: {error.strerror or error}; choose another --port or "
                "--ipc, or end the server that has it"
            ) from None

    def stop(self) -> None:
        """Begin to drain. Threads: any, but no signal handler."""
        self._handlers.draining = True
        if self.state == "ready":
            self.state = "draining"
        self._stop.set()
        self._dispatcher.stop()

    def _drain(self) -> None:
        """Let go of the engines, and have the stores get what they were promised."""
        until = time.monotonic() + self.config.tuning.drain_s
        for session in list(self._sessions.by_token.values()):
            self._sessions.end(session, "shutdown")
        self._listener.close()  # engines see at once that they are on their own
        for shard in self.shards:
            if not shard.cache.close(max(0.0, until - time.monotonic())):
                _log.warning(
                    "%s: not all chunks were written to its stores within %g s",
                    shard.identity.model,
                    self.config.tuning.drain_s,
                )
        self._dispatcher.close()
        if self.config.state_file is not None:
            path, pools = Path(self.config.state_file), self._pools
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
        config, done = _merged(self.config, wanted)
        self._take_over(config)
        for text in done:
            _log.info("reload: %s", text)
        return done

    def _take_over(self, config: ServerConfig) -> None:
        if config.cache.l1_bytes != self.config.cache.l1_bytes:
            self._pools.resize(config.cache.l1_bytes)
        self.config = self._handlers.config = self._registry.config = config
        for shard in self.shards:
            shard.cache.config = config.cache

    def _session_ended(self, session: Session, why: str, held: int) -> None:
        who = f"{session.software} (pid {session.pid})"
        if why in ("left", "shutdown") or (why == "gone" and not held):
            _log.info("%s: its session ended: %s", who, why)
        else:
            _log.warning("%s lost its session: %s; it held %d pages", who, why, held)

    # --- What others see ---

    @property
    def shards(self) -> list[IdentityShard]:
        """All identities."""
        return list(self._registry.shards.values())

    @property
    def ready(self) -> bool:
        """Whether engines are served."""
        return self.state == "ready"

    @property
    def alive(self) -> bool:
        """Whether the loop turns."""
        return time.monotonic() - self._dispatcher.beat < _BEAT_S

    @property
    def degraded(self) -> list[str]:
        """Stores that cannot be asked at present."""
        return self._watch.degraded()

    def cache(self, identity: str | None = None) -> TieredCache:
        """The cache of an identity.

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
            return found[0].cache
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
        return {
            "pool": self._pools.status(),
            "stores": self._watch.status(),
            "sessions": self._sessions.status(),
            "sessions_ended": dict(self._sessions.ended),
            "fenced_pages": self._sessions.fenced_pages,
            "refusals": self._registry.refusals.status(),
            "protocol": self._dispatcher.status(),
        }

    def metrics_text(self) -> str:
        """All series of the server and of its caches, one for each identity, as Prometheus reads
        them."""
        caches = [shard.cache.metrics for shard in self.shards]
        own = text_of(_families(self.summary(), ready=self.ready))
        return own + (exposition(caches) if caches else "")


# --- Metrics ---


_family = partial(family_of, "kvferry_server_")


def _families(status: Mapping[str, Any], *, ready: bool) -> list[Family]:
    """What the server itself counts, beside what each identity's cache does."""
    protocol, pool = status["protocol"], status["pool"]
    return [
        _family("requests", "counter", "Messages by kind.", protocol["requests"], "kind"),
        _family("failures", "counter", "Refusals by code.", protocol["failures"], "code"),
        _family("received_bytes", "counter", "Bytes of requests.", protocol["received_bytes"]),
        _family("sent_bytes", "counter", "Bytes of replies.", protocol["sent_bytes"]),
        _family("waiting", "gauge", "Requests that wait or are worked on.", protocol["waiting"]),
        _family("sessions", "gauge", "Engines that are registered.", len(status["sessions"])),
        _family("sessions_ended", "counter", "Ends of sessions.", status["sessions_ended"], "why"),
        _family(
            "refused_engines",
            "counter",
            "Registrations that were refused, by code.",
            status["refusals"]["by_code"],
            "code",
        ),
        _family("fenced_pages", "gauge", "Pages of the dead.", status["fenced_pages"]),
        _family("pool_bytes", "gauge", "Limit of the pool.", pool["bytes"]),
        _family("pool_granted_bytes", "gauge", "Memory behind it.", pool["granted_bytes"]),
        _family(
            "store_available",
            "gauge",
            "1: the store can be asked.",
            {name: int(bool(s["available"])) for name, s in status["stores"].items()},
            "store",
        ),
        _family(
            "store_refuses",
            "gauge",
            "1: it did not take what it was given last.",
            {name: int(bool(s["refuses"])) for name, s in status["stores"].items()},
            "store",
        ),
        _family("ready", "gauge", "1: engines are served.", int(ready)),
        _family("thread_failures", "counter", "Faults in threads.", failures(), "thread"),
    ]


# --- Reload ---


def _merged(config: ServerConfig, wanted: ServerConfig) -> tuple[ServerConfig, list[str]]:
    """The settings in force from now on, and in words what differs from before."""
    texts: list[str] = []
    cache = config.cache
    for name, old, new in _differences(cache, wanted.cache):
        if name in _LIVE_OF_CACHE:
            cache = cache.replace(**{name: new})
        texts.append(_described(name, old, new, name in _LIVE_OF_CACHE))
    config = config.replace(cache=cache)
    for name, old, new in _differences(config, wanted):
        if name in ("cache", "again"):
            continue
        if name in _SECRET:
            config = config.replace(**{name: new})
        texts.append(_described(name, old, new, name in _SECRET))
    return config, texts


def _differences(one: Settings, other: Settings) -> list[tuple[str, Any, Any]]:
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in specs(type(one))]
    return [(name, old, new) for name, old, new in pairs if old != new]


def _described(name: str, old: object, new: object, live: bool) -> str:
    if not live:
        return f"{name} has changed and needs a restart"
    return f"{name} has changed" if name in _SECRET else f"{name} is {new} now, was {old}"
