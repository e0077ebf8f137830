"""The redis driver: framed values on a Redis or Valkey server, a cluster, a Sentinel's master.

Stored as `CacheNamespace` stores them, so both see each other's values under one prefix, however
they are encoded. Values above 4 MiB lie in stripes under keys of their own. Who evicts is the
server (``maxmemory``), or the cache by `scan` and `batch_delete`; usage is what the server says
that all its data takes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from kvferry import _native
from kvferry.base.errors import DeadlineExceeded, KVFerryError, ServerError
from kvferry.chunks.generation import read_name
from kvferry.client.buffers import encode_key
from kvferry.client.commands import (
    Command,
    Reply,
    ask,
    ask_each,
    information,
    key_pages,
    primaries,
)
from kvferry.client.sync import RedisClient
from kvferry.config import ClientConfig
from kvferry.connectors.base import Key, NodeUsage, ScanBatch, Space, Usage
from kvferry.connectors.calls import lacks_room
from kvferry.connectors.native import ClientConnector, as_key
from kvferry.connectors.serde import codec_of

__all__ = ["DESCRIPTIONS_KEY", "RedisConnector"]

_log = logging.getLogger("kvferry.connectors")

# A hash of the identities (hex) and their descriptions.
DESCRIPTIONS_KEY = b"kvf:identities"
# A lock: its holder evicts, for all processes and identities of the store.
_LOCK_KEY = b"kvf:evicting"
# Behind the prefix of an identity: the generation that a clear for everybody has drawn.
_MARK = b"generation"
CONTROL_TIMEOUT_S = 1.0
_STRIPE = re.compile(rb"#[1-9][0-9]*\Z")
# Chunks of any identity of ours, their stripes too.
_CHUNK_GLOB = b"kvf:" + b"[0-9a-f]" * 32 + b":*"
_CHUNK = re.compile(rb"kvf:[0-9a-f]{32}:([0-9a-f]{32}:)?[0-9a-f]{32}(#[1-9][0-9]*)?\Z")
_AGE_AND_SIZE = ((b"OBJECT", b"IDLETIME"), (b"STRLEN",))
_GLOB = re.compile(rb"([*?\[\]\\^-])")


class RedisConnector(ClientConnector):
    """A store on a server; see `Connector`.

    Args:
        space: What it is opened with.
        config: How the server is reached.
        client: A client to share instead; the connector then leaves it open.
        serde: How values are written; all are read.

    Raises:
        ConfigError: There is no such serde, or none for this space.
    """

    def __init__(
        self,
        space: Space,
        config: ClientConfig,
        *,
        client: RedisClient | None = None,
        serde: str = "naive",
    ) -> None:
        self._codec = codec_of(serde, space)
        self._lock_token: bytes | None = None
        super().__init__(space, config, client=client)

    def _open(self, space: Space) -> _native.Connector:
        connector = super()._open(space)
        connector.write_as(self._codec)
        return connector

    def write_as(self, serde: str) -> None:
        """How values are written from now on; see `kvferry.connectors.serde`."""
        self._codec = codec_of(serde, self.space)
        self._handle().write_as(self._codec)

    def usage(self, timeout_s: float = CONTROL_TIMEOUT_S) -> Usage:
        """Data and limit of all primaries together; see `Connector`."""
        keys = capacity = 0
        limited, nodes = True, list[NodeUsage]()
        until = time.monotonic() + timeout_s
        for name in primaries(self._client, timeout_s):
            info, size = self._usage_of(name, until - time.monotonic())
            taken, most = info.get("used_memory", 0), info.get("maxmemory", 0)
            # The data set alone: overhead of the server does not shrink when values go.
            used = info.get("used_memory_dataset", taken)
            nodes.append(NodeUsage(name, used, most - taken if most else None))
            capacity += most
            limited &= most > 0
            keys += size
        used = sum(node.used_bytes for node in nodes)
        return Usage(used, capacity if limited else None, keys, tuple(nodes))

    def _usage_of(self, node: str, left_s: float) -> tuple[dict[str, int], int]:
        if left_s <= 0:
            raise DeadlineExceeded(f"{self.config.address} did not answer in time")
        told = information(self._client, "memory", node=node, timeout_s=left_s)
        size = ask(self._client, b"DBSIZE", node=node, timeout_s=left_s)
        info = {k: int(v) for k, v in told.items() if v.isascii() and v.isdigit()}
        return info, size if isinstance(size, int) else 0

    def scan(self, limit: int = 1000) -> Iterator[ScanBatch]:
        """SCAN of all primaries; ages are those of OBJECT IDLETIME. See `Connector`."""
        for node, keys in self._pages(self._pattern()):
            batch = self._with_ages(node, keys)
            for start in range(0, len(batch), limit):
                yield batch[start : start + limit]

    def _pattern(self) -> bytes:
        return _GLOB.sub(rb"\\\1", self.space.prefix.encode()) + b"*"

    def _pages(self, pattern: bytes) -> Iterator[tuple[str, list[bytes]]]:
        """Keys that match, a SCAN at a time, each time of one of the servers."""
        for node in primaries(self._client, CONTROL_TIMEOUT_S):
            for keys in key_pages(self._client, node, pattern, CONTROL_TIMEOUT_S):
                yield node, keys

    def _ask_each(self, node: str, commands: Sequence[Command]) -> list[tuple[bool, Reply]]:
        return ask_each(self._client, commands, node=node, timeout_s=CONTROL_TIMEOUT_S)

    def _with_ages(self, node: str, keys: list[bytes]) -> ScanBatch:
        whole = [key for key in keys if not _STRIPE.search(key)]
        ages = self._ask_each(node, [(b"OBJECT", b"IDLETIME", key) for key in whole])
        skipped = len(self.space.prefix.encode())
        return [
            (as_key(key[skipped:]), float(age) if isinstance(age, int) else 0.0)
            for key, (told, age) in zip(whole, ages, strict=True)
            if age is not None or not told  # gone; where frequency is kept instead, no age is told
        ]

    def descriptions(self) -> Mapping[bytes, str]:
        """See `Connector`."""
        found: dict[bytes, str] = {}
        for name, text in self._hash(DESCRIPTIONS_KEY):
            with contextlib.suppress(ValueError):  # not ours
                found[bytes.fromhex(name.decode())] = text.decode()
        return found

    def describe(self) -> None:
        """See `Connector`."""
        if not self.space.description:
            return
        name, text = self.space.identity.hex().encode(), self.space.description.encode()
        try:
            self._ask(b"HSET", DESCRIPTIONS_KEY, name, text)
        except KVFerryError as error:
            _log.info("%s: the identity is not described: %s", self.config.address, error)

    def undescribe(self) -> None:
        """See `Connector`."""
        with contextlib.suppress(KVFerryError):
            self._ask(b"HDEL", DESCRIPTIONS_KEY, self.space.identity.hex().encode())
            self._ask(b"DEL", self._notes_key)

    @property
    def _notes_key(self) -> bytes:
        return DESCRIPTIONS_KEY + b":" + self.space.identity.hex().encode()

    def note(self, name: str, text: str) -> None:
        """See `Connector`."""
        with contextlib.suppress(KVFerryError):
            self._ask(b"HSET", self._notes_key, name.encode(), text.encode())

    def notes(self) -> Mapping[str, str]:
        """See `Connector`."""
        return {
            name.decode(errors="replace"): text.decode(errors="replace")
            for name, text in self._hash(self._notes_key)
        }

    def _ask(self, verb: bytes, key: bytes, *arguments: bytes) -> Reply:
        return ask(self._client, verb, key, *arguments, key=key, timeout_s=CONTROL_TIMEOUT_S)

    def _hash(self, key: bytes) -> list[tuple[bytes, bytes]]:
        """The fields of a hash, with their values."""
        reply = self._ask(b"HGETALL", key)
        told = reply if isinstance(reply, list) else []
        texts = [each for each in told if isinstance(each, bytes)]
        return list(zip(texts[::2], texts[1::2], strict=False))

    def read_mark(self, timeout_s: float) -> bytes | None:
        """What lies under ``kvf:<identity>:generation``; see `kvferry.cache.store.generations`.

        Raises:
            UnavailableError, DeadlineExceeded, ServerError: The store does not say.
        """
        key = self.space.prefix.encode() + _MARK
        try:
            reply = ask(self._client, b"GET", key, key=key, timeout_s=timeout_s)
        except ServerError as error:
            if error.server_code != "WRONGTYPE":
                raise
            return b"another type"
        return reply if isinstance(reply, bytes) else None

    def write_mark(self, value: bytes, timeout_s: float, *, absent: bool) -> None:
        """Write that; `absent`: only where there is none. Raises as `read_mark`."""
        key = self.space.prefix.encode() + _MARK
        only = (b"NX",) if absent else ()
        ask(self._client, b"SET", key, value, *only, key=key, timeout_s=timeout_s)

    def delete_generations(self, which: Callable[[bytes], bool]) -> Iterator[int]:
        """Delete chunks of this identity, with their stripes, whose generation is one of these.

        Yields:
            How many keys went, again and again, so that a caller can do other things in between.

        Raises:
            UnavailableError, DeadlineExceeded, ServerError: The store does not say what it has.
        """
        skipped = len(self.space.prefix)
        for node, keys in self._pages(self._pattern()):
            names = ((key, read_name(_STRIPE.sub(b"", key[skipped:]))) for key in keys)
            gone = [(b"DEL", key) for key, name in names if name and which(name[1])]
            yield sum(reply == 1 for _, reply in self._ask_each(node, gone))

    def has_under(self, identity: bytes, key: Key) -> bool:
        """See `Connector`; of a striped value its first stripe is asked for."""
        name = f"kvf:{identity.hex()}:".encode() + encode_key(key)
        try:
            found = self._ask(b"EXISTS", name)
        except KVFerryError:
            return False
        return found == 1

    def lock_eviction(self, ttl_s: float) -> bool:
        """See `Connector`; the lock is a key that expires."""
        token, ttl_ms = os.urandom(16), b"%d" % max(1, int(ttl_s * 1e3))
        try:
            taken = self._ask(b"SET", _LOCK_KEY, token, b"NX", b"PX", ttl_ms)
        except KVFerryError as error:
            if lacks_room(str(error)):
                raise
            _log.info("%s: the lock of evictions cannot be had: %s", self.config.address, error)
            return False
        self._lock_token = token if taken is not None else None
        return taken is not None

    def unlock_eviction(self) -> None:
        """See `Connector`."""
        token, self._lock_token = self._lock_token, None
        with contextlib.suppress(KVFerryError):  # then it expires
            # A lock that expired meanwhile may be another's by now.
            if self._ask(b"GET", _LOCK_KEY) == token:
                self._ask(b"DEL", _LOCK_KEY)

    def evict_others(self, size_bytes: int, timeout_s: float) -> int:
        """See `Connector`. Stripes go one by one, and all of a value are of one age."""
        until, own = time.monotonic() + timeout_s, self.space.prefix.encode()
        found: list[tuple[int, str, int, bytes]] = []
        for node, keys in self._pages(_CHUNK_GLOB):
            others = [key for key in keys if _CHUNK.match(key) and not key.startswith(own)]
            told = self._ask_each(node, [(*v, key) for key in others for v in _AGE_AND_SIZE])
            numbers = [reply if isinstance(reply, int) else 0 for _, reply in told]
            pairs = zip(numbers[::2], numbers[1::2], others, strict=True)
            found += [(age, node, size, key) for age, size, key in pairs]
            if time.monotonic() >= until:
                break
        found.sort(key=lambda entry: entry[0])
        going: dict[str, list[Command]] = {}
        while found and size_bytes > 0:
            _, node, size, key = found.pop()
            going.setdefault(node, []).append((b"DEL", key))
            size_bytes -= size
        went = 0
        for node, commands in going.items():
            for start in range(0, len(commands), 1000):
                told = self._ask_each(node, commands[start : start + 1000])
                went += sum(reply == 1 for _, reply in told)
        return went
