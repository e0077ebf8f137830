"""Connecting: every address of the host, then the greeting.

RESP3 and the credentials go out together as HELLO; a server that does not know it is greeted as
before (AUTH, CLIENT SETNAME, PING). The first reply may be an error that nobody asked for ("max
number of clients"): it arrives in place of the greeting's and is reported as what it says.

Source: https://redis.io/docs/latest/commands/hello/
"""

from __future__ import annotations

import random
import socket
import time

from kvferry.client.pure_connection import Connection, Disconnected, TimedOut, printable
from kvferry.client.pure_resp import ErrorReply, ProtocolError, Reply
from kvferry.config import ClientConfig

__all__ = ["Backoff", "Refused", "dial"]

_NO_HELLO = ("ERR unknown command", "ERR wrong number of arguments", "ERR syntax error", "NOPROTO")


class Refused(Exception):
    """There is no connection to be had now: the server is away, or it refuses us."""


class Backoff:
    """When to dial again: after a random wait below a ceiling that doubles ("full jitter").

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter", 2015.
    """

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s, self._max_s = min_s, max_s
        self._failures = 0
        self._until = 0.0
        self._why = ""

    def check(self) -> None:
        """Raise Refused while it is too early, with the reason of the last failure."""
        if time.monotonic() < self._until:
            raise Refused(self._why)

    def failed(self, why: str) -> None:
        """Wait before the next attempt."""
        ceiling_s = min(self._min_s * 2.0 ** min(self._failures, 60), self._max_s)
        self._failures += 1
        self._until = time.monotonic() + random.uniform(ceiling_s / 8, ceiling_s)
        self._why = why

    def reset(self) -> None:
        """After success."""
        self._failures = 0
        self._until = 0.0


def dial(config: ClientConfig, deadline: float) -> Connection:
    """Connect and greet, within the connect timeout and the deadline.

    Name look-up is the system's and has its own time limits.

    Raises:
        Refused: No address accepted us, or the server refused us; the text says why.
        TimedOut: The deadline passed first.
    """
    try:
        addresses = _resolve(config)
    except OSError as error:
        raise Refused(f"{config.address} has no address: {error.strerror}") from error
    limit = min(deadline, time.monotonic() + config.connect_timeout_s)
    why = ""
    for index, (family, address) in enumerate(addresses):
        # An address that swallows packets leaves the others their share of the time.
        now = time.monotonic()
        until = now + (limit - now) / (len(addresses) - index)
        try:
            return _open(config, family, address, until)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
        except (Disconnected, ProtocolError, TimedOut) as error:
            why = str(error)
        if time.monotonic() >= deadline:
            raise TimedOut("the deadline passed while connecting")
    raise Refused(f"cannot connect to {config.address}: {why}")


def _resolve(config: ClientConfig) -> list[tuple[int, object]]:
    if config.unix_path is not None:
        return [(socket.AF_UNIX, config.unix_path)]
    found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


def _open(config: ClientConfig, family: int, address: object, until: float) -> Connection:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(max(until - time.monotonic(), 0.001))
        sock.connect(address)  # type: ignore[arg-type]  # of the family's own type
        connection = Connection(sock, config.stall_timeout_s, config.value_size_bytes_max)
        _greet(connection, config, until)
        if not connection.is_clean():  # what is left would answer our first request
            raise Disconnected("the server sent more than it was asked for")
        return connection
    except BaseException:
        sock.close()
        raise


def _greet(connection: Connection, config: ClientConfig, until: float) -> None:
    if config.protocol < 3 or not _hello(connection, config, until):
        _greet_resp2(connection, config, until)
    if config.db:
        reply = connection.call(b"SELECT", b"%d" % config.db, deadline=until)
        _check(reply, config)


def _hello(connection: Connection, config: ClientConfig, until: float) -> bool:
    """False if the server does not know HELLO, or not this version."""
    args = [b"HELLO", b"3"]
    if config.password is not None:
        args += [b"AUTH", (config.username or "default").encode(), config.password.encode()]
    if config.client_name:
        args += [b"SETNAME", config.client_name.encode()]
    reply = connection.call(*args, deadline=until)
    if isinstance(reply, ErrorReply) and reply.text.startswith(_NO_HELLO):
        return False
    _check(reply, config)
    return True


def _greet_resp2(connection: Connection, config: ClientConfig, until: float) -> None:
    if config.password is not None:
        user = [config.username.encode()] if config.username is not None else []
        reply = connection.call(b"AUTH", *user, config.password.encode(), deadline=until)
        _check(reply, config)
    # Whether we are let in shows here, not at the first command of a batch.
    reply = connection.call(b"PING", deadline=until)
    if not (isinstance(reply, ErrorReply) and reply.code == "NOPERM"):  # PING may be forbidden
        _check(reply, config)
    if config.client_name:  # a name is a courtesy: some proxies do not take it
        connection.call(b"CLIENT", b"SETNAME", config.client_name.encode(), deadline=until)


def _check(reply: Reply, config: ClientConfig) -> None:
    if isinstance(reply, ErrorReply):
        # Servers quote the arguments of a command that they do not like.
        text = reply.text.replace(config.password, "***") if config.password else reply.text
        raise Refused(printable(text))
