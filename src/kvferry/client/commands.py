"""Any command to a server, beside those of the cache: what it holds, its keys, its settings.

    client = kvferry.RedisClient(host="localhost")
    ask(client, b"GET", b"key", key=b"key")        # the reply; of a cluster's node that has the key
    for node in primaries(client):
        information(client, "memory", node=node)   # of each server by itself

They go over the connection of the client's small commands and are asked again as those are, so a
command must be idempotent. A bulk is bytes, a line of text str, an error inside a reply None, and
a map a flat list of keys and values. Threads may ask at a time. Each waits for its reply: for code
that cannot await.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from kvferry.base.errors import ServerError, UnavailableError
from kvferry.client.batch import BatchResult, Status, checked_timeout, from_native
from kvferry.client.handle import emit_log
from kvferry.client.native import NativeClient
from kvferry.config import ClientConfig

__all__ = [
    "Command",
    "Reply",
    "ask",
    "ask_each",
    "information",
    "key_pages",
    "primaries",
    "sparing",
]

Command: TypeAlias = "tuple[bytes, ...]"
Reply: TypeAlias = "str | bytes | int | bool | list[Reply] | None"

_BY_THE_SETTINGS = -1.0  # a deadline that native code takes from the settings


def sparing(config: ClientConfig) -> ClientConfig:
    """The settings of a client that asks commands and moves no values: few connections."""
    return config.replace(connections=1, workers=1, presence_prefix=None)


def ask(
    client: NativeClient,
    *words: bytes,
    key: bytes = b"",
    node: str = "",
    timeout_s: float | None = None,
) -> Reply:
    """The reply to one command.

    Args:
        client: Whom to ask.
        words: The command.
        key: In a cluster, its node is asked.
        node: That of `primaries` which is asked instead.
        timeout_s: Default: that of the settings.

    Raises:
        UnavailableError, ServerError, DeadlineExceeded: There is none.
    """
    result, replies = _call(client, [words], key, node, timeout_s)
    result.raise_for_errors()
    return replies[0]


def ask_each(
    client: NativeClient,
    commands: Sequence[Command],
    *,
    node: str = "",
    timeout_s: float | None = None,
) -> list[tuple[bool, Reply]]:
    """For each command whether it worked, and its reply; all are asked at a time.

    Args:
        client, node, timeout_s: See `ask`.
        commands: Of one server only.

    Raises:
        UnavailableError, DeadlineExceeded: It does not answer.
    """
    if not commands:
        return []
    result, replies = _call(client, commands, b"", node, timeout_s)
    if result.count(Status.TIMEOUT) or result.count(Status.UNAVAILABLE):
        result.raise_for_errors()
    return [(not status, reply) for status, reply in zip(result, replies, strict=True)]


def primaries(client: NativeClient, timeout_s: float | None = None) -> list[str]:
    """The servers that keys are on, as "host:port": of a cluster those that serve slots.

    Raises:
        UnavailableError, DeadlineExceeded: Nobody says.
    """
    native = client._handle()
    if not (found := native.primaries()):
        ask(client, b"PING", timeout_s=timeout_s)  # waits until that is known
        found = native.primaries()
    if not found:
        raise UnavailableError(f"{client.config.address}: no primary is known")
    return found


def information(
    client: NativeClient, *sections: str, node: str = "", timeout_s: float | None = None
) -> dict[str, str]:
    """What ``INFO`` says, e.g. ``redis_version``, ``maxmemory_policy``. See `ask`."""
    words = [section.encode() for section in sections]
    text = ask(client, b"INFO", *words, node=node, timeout_s=timeout_s)
    if not isinstance(text, bytes):
        raise ServerError("INFO was answered with something else than text")
    lines = text.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and line[0] != "#")


def key_pages(
    client: NativeClient, node: str, pattern: bytes, timeout_s: float
) -> Iterator[list[bytes]]:
    """The keys of a node that match, a SCAN at a time, each with that limit. Raises as `ask`."""
    cursor = b""
    while cursor != b"0":
        page = ask(
            client,
            *(b"SCAN", cursor or b"0", b"MATCH", pattern, b"COUNT", b"1000"),
            node=node,
            timeout_s=timeout_s,
        )
        match page:
            case [bytes(cursor), list(keys)]:
                yield [key for key in keys if isinstance(key, bytes)]
            case _:
                raise ServerError("SCAN was answered with something else than keys")


def _call(
    client: NativeClient,
    commands: Sequence[Command],
    key: bytes,
    node: str,
    timeout_s: float | None,
) -> tuple[BatchResult, list[Reply]]:
    limit_s = checked_timeout(timeout_s)
    native = client._handle()
    outcome, replies = native.call(
        commands, key, node, _BY_THE_SETTINGS if limit_s is None else limit_s
    )
    emit_log(client._log, native)
    return from_native(*outcome), replies
