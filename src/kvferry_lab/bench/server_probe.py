"""Probes: second, independent connections to whatever a client under test is connected to.

A `ServerProbe` reads the server's CPU time and settings, and fetches stored values for verification
without the client that is being measured. `open_probe` makes one for the server, for the master
that Sentinels name, or for all shards of a cluster (`ClusterProbe`). Blocking; not thread-safe.
"""

from __future__ import annotations

import re
import socket
import time
from binascii import crc_hqx
from contextlib import ExitStack
from typing import Self, TypeAlias

from kvferry.base.errors import ServerError, UnavailableError
from kvferry.base.shown import reason_of
from kvferry.client.pure.connection import Disconnected
from kvferry.client.pure.resp import Reply
from kvferry.client.pure.tls import client_context, shake_hands
from kvferry.config import ClientConfig

__all__ = ["ClusterProbe", "ServerProbe", "open_probe", "server_of", "shards_of"]

Address: TypeAlias = tuple[str, int]
_TIMEOUT_S = 60.0
_SLOTS = 16384
_SETTINGS = ("io-threads", "maxmemory", "maxmemory-policy", "save")


class ServerProbe:
    """One RESP2 connection, with or without TLS; every command waits for its reply.

    For more than one server see `ClusterProbe`.
    """

    def __init__(self, config: ClientConfig) -> None:
        try:
            self._socket = _connect(config)
        except (OSError, Disconnected) as error:
            text = f"cannot connect to {config.address}: {reason_of(error)}"
            raise UnavailableError(text) from error
        self._stream = self._socket.makefile("rb")
        if config.password is not None:
            user = () if config.username is None else (config.username,)
            self.command("AUTH", *user, config.password)
        if config.db:
            self.command("SELECT", str(config.db))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._stream.close()
        self._socket.close()

    def command(self, *words: str | bytes) -> Reply:
        """Send one command and return its reply; an error reply raises ServerError."""
        parts = [word.encode() if isinstance(word, str) else word for word in words]
        self._socket.sendall(
            b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)
        )
        return self._reply()

    def get(self, key: str) -> bytes | None:
        """The value of a key."""
        value = self.command("GET", key)
        return value if isinstance(value, bytes) else None

    def set(self, key: str, value: bytes | memoryview) -> None:
        """Store a value."""
        self.command("SET", key, bytes(value))

    def delete(self, keys: list[str]) -> None:
        """Delete keys, a few hundred per command."""
        for start in range(0, len(keys), 256):
            self.command("UNLINK", *keys[start : start + 256])

    def info(self, section: str = "everything") -> dict[str, str]:
        """INFO as a dictionary."""
        text = self.command("INFO", section)
        lines = text.decode().splitlines() if isinstance(text, bytes) else []
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def cpu_s(self) -> float | None:
        """CPU time of the server since its start, all its threads; None where it hides it."""
        info = self.info("cpu")
        try:
            return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
        except (KeyError, ValueError):
            return None

    def facts(self) -> dict[str, str]:
        """Name, version, allocator, and the settings that a figure depends on."""
        info = self.info()
        kind = "valkey" if "valkey_version" in info else "redis"
        version = info.get(f"{kind}_version", "unknown")
        facts = {"server": f"{kind} {version}", "allocator": info.get("mem_allocator", "unknown")}
        for setting in _SETTINGS:
            facts[setting] = self._setting(setting)
        return facts

    def _setting(self, name: str) -> str:
        try:
            reply = self.command("CONFIG", "GET", name)
        except ServerError:  # managed servers have no CONFIG
            return "unknown"
        value = reply[1] if isinstance(reply, list) and len(reply) == 2 else b"unknown"
        return value.decode() if isinstance(value, bytes) else "unknown"

    def _reply(self) -> Reply:
        line = self._stream.readline()
        if not line.endswith(b"\r\n"):
            raise UnavailableError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise ServerError(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self._stream.read(size + 2)[:-2]
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        return rest


def _connect(config: ClientConfig) -> socket.socket:
    if config.unix_path is not None:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(_TIMEOUT_S)
        link.connect(config.unix_path)
        return link
    context = client_context(config) if config.tls else None
    link = socket.create_connection((config.host, config.port), _TIMEOUT_S)
    if context is not None:
        name = config.tls_server_name or config.host
        link = shake_hands(link, context, name, time.monotonic() + _TIMEOUT_S)
        link.settimeout(_TIMEOUT_S)
    return link


def open_probe(config: ClientConfig) -> ServerProbe:
    """A probe of the server, of the master that Sentinels name, or of all shards."""
    config = server_of(config)
    return ClusterProbe(config) if config.topology == "cluster" else ServerProbe(config)


def server_of(config: ClientConfig) -> ClientConfig:
    """Of Sentinels the settings for the master of this moment; else what was given.

    Raises:
        UnavailableError: No Sentinel answers, or none knows that master.
    """
    if config.topology != "sentinel":
        return config
    why = "none of them knows that master"
    for host, port in config.seeds:
        try:
            with ServerProbe(config.for_sentinel(host, port)) as probe:
                name = config.sentinel_master or ""
                reply = probe.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
        except UnavailableError as error:
            why = str(error)
            continue
        match reply:
            case [bytes() as found, bytes() as number]:
                return config.for_node(found.decode(), int(number))
    raise UnavailableError(f"cannot find {config.address}: {why}")


def shards_of(config: ClientConfig) -> int:
    """The number of servers that share the keys."""
    if config.topology != "cluster":
        return 1
    with ClusterProbe(config) as probe:
        return probe.shards


class ClusterProbe(ServerProbe):
    """One connection to each primary, as the cluster is now; it follows no changes.

    Commands without a key, and `facts`, are the first seed's that answers.
    """

    def __init__(self, config: ClientConfig) -> None:
        with ExitStack() as undo:
            host = self._enter_cluster(config)
            undo.callback(super().close)
            self._owners = _owners(self.command("CLUSTER", "SLOTS"), host)
            self._links: dict[Address, ServerProbe] = {}
            undo.callback(self._close_links)
            if len(self._owners) != _SLOTS:
                raise UnavailableError("the cluster does not serve all slots")
            for owner in dict.fromkeys(self._owners.values()):
                self._links[owner] = ServerProbe(config.for_node(*owner))
            undo.pop_all()

    @property
    def shards(self) -> int:
        """The number of primaries that serve slots."""
        return len(self._links)

    def close(self) -> None:
        self._close_links()
        super().close()

    def get(self, key: str) -> bytes | None:
        return self._of(key).get(key)

    def set(self, key: str, value: bytes | memoryview) -> None:
        self._of(key).set(key, value)

    def delete(self, keys: list[str]) -> None:
        for key in keys:  # one command may not name keys of several slots
            self._of(key).delete([key])

    def cpu_s(self) -> float | None:
        known = [cpu_s for link in self._links.values() if (cpu_s := link.cpu_s()) is not None]
        return sum(known) if len(known) == len(self._links) else None

    def facts(self) -> dict[str, str]:
        return {**super().facts(), "shards": str(self.shards)}

    def shard_of(self, key: str) -> Address:
        """The primary that has a key."""
        tag = re.match(r"[^{]*\{([^}]+)\}", key)
        return self._owners[crc_hqx((tag[1] if tag else key).encode(), 0) % _SLOTS]

    def _of(self, key: str) -> ServerProbe:
        return self._links[self.shard_of(key)]

    def _close_links(self) -> None:
        for link in self._links.values():
            link.close()

    def _enter_cluster(self, config: ClientConfig) -> str:
        """Connect to the first seed that answers; its host."""
        why: UnavailableError | None = None
        for host, port in config.seeds:
            try:
                super().__init__(config.for_node(host, port))
                return host
            except UnavailableError as error:
                why = error
        raise UnavailableError(f"cannot connect to {config.address}: {why}") from why


def _owners(reply: Reply, asked: str) -> dict[int, Address]:
    """The primary of each slot that has one, by CLUSTER SLOTS; a host that is empty was asked."""
    found: dict[int, Address] = {}
    for entry in reply if isinstance(reply, list) else []:
        match entry:
            case [int(first), int(last), [host, int(port), *_], *_]:
                name = host.decode() if isinstance(host, bytes) and host else asked
                found |= dict.fromkeys(range(first, last + 1), (name, port))
    return found
