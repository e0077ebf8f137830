"""Connecting: every address of the host, TLS, then the greeting.

RESP3 and the credentials go out together as HELLO; a server that refuses it is greeted as
before (AUTH, CLIENT SETNAME, PING), and one that says that it is a cluster's or a Sentinel is left.
The first reply may be an error that nobody asked for ("max number of clients"): it arrives in place
of the greeting's and is reported as what it says.

A function that provides credentials is asked once for each dial; the connection is good until a
little before they expire.

Source: https://redis.io/docs/latest/commands/hello/
"""

from __future__ import annotations

import random
import socket
import ssl
import time

from kvferry.base.credentials import Credentials, provided
from kvferry.base.errors import UnavailableError
from kvferry.client.pure.connection import (
    Connection,
    Disconnected,
    ReplyTimedOut,
    printable,
    sentence,
)
from kvferry.client.pure.resp import ErrorReply, ProtocolError, Reply
from kvferry.client.pure.tls import TlsConnection, TlsRefused, client_context, shake_hands
from kvferry.config import ClientConfig

__all__ = ["Backoff", "DialRefused", "dial"]

# New credentials are fetched when this much of their time is over.
_RENEWED_AT = 0.9


class DialRefused(Exception):
    """There is no connection to be had now: the server is away, or it refuses us.

    Attributes:
        kind: What it is to a caller whose batch it ends.
        final: Whether trying again soon will not help either.
    """

    def __init__(
        self, text: str, kind: type[UnavailableError] = UnavailableError, *, final: bool = False
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.final = final


class Backoff:
    """When to dial again: after a random wait below a ceiling that doubles ("full jitter").

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter", 2015.
    """

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s, self._max_s = min_s, max_s
        self._failures = 0
        self._until = 0.0
        self._last = DialRefused("")

    def check(self) -> None:
        """Raise DialRefused while it is too early, with the reason of the last failure."""
        if time.monotonic() < self._until:
            raise DialRefused(str(self._last), self._last.kind)

    def failed(self, why: DialRefused) -> None:
        """Wait before the next attempt; for the longest time if there is no hope."""
        ceiling_s = min(self._min_s * 2.0 ** min(self._failures, 60), self._max_s)
        self._failures += 1
        wait_s = self._max_s if why.final else random.uniform(ceiling_s / 8, ceiling_s)
        self._until = time.monotonic() + wait_s
        self._last = why

    def reset(self) -> None:
        """After success."""
        self._failures = 0
        self._until = 0.0


def dial(config: ClientConfig, deadline: float) -> Connection:
    """Connect and greet, within the connect timeout and the deadline.

    Name look-up is the system's and has its own time limits.

    Raises:
        DialRefused: No address accepted us, or the server refused us; the text says why.
        ReplyTimedOut: The deadline passed first.
    """
    asked = time.monotonic()
    credentials = _credentials(config)
    try:
        context = client_context(config) if config.tls else None
        addresses = _resolve(config)
    except TlsRefused as error:
        raise _refused(config, error) from error
    except OSError as error:
        raise DialRefused(f"{config.address} has no address: {error.strerror}") from error
    except UnicodeError as error:
        raise DialRefused(f"{config.address} can be no host name") from error
    limit = min(deadline, time.monotonic() + config.connect_timeout_s)
    why = Disconnected()
    for index, (family, address) in enumerate(addresses):
        # An address that swallows packets leaves the others their share of the time.
        now = time.monotonic()
        until = now + (limit - now) / (len(addresses) - index)
        try:
            connection = _open(config, family, address, context, until)
            _greet(connection, config, credentials, until)
        except Disconnected as error:
            why = error
        except OSError as error:
            why = Disconnected(sentence(error))
        except (ProtocolError, ReplyTimedOut) as error:
            why = Disconnected(str(error))
        else:
            if credentials is not None and credentials.expires_in_s is not None:
                connection.good_until = asked + _RENEWED_AT * credentials.expires_in_s
            return connection
        if time.monotonic() >= deadline:
            raise ReplyTimedOut("the deadline passed while connecting")
    raise _refused(config, why)


def _refused(config: ClientConfig, why: Disconnected) -> DialRefused:
    final = isinstance(why, TlsRefused)
    return DialRefused(f"cannot connect to {config.address}: {why}", why.kind, final=final)


def _credentials(config: ClientConfig) -> Credentials | None:
    if config.credentials is not None:
        try:
            return provided(config.credentials)
        except UnavailableError as error:
            raise DialRefused(str(error), type(error)) from None
    if config.password is None:
        return None
    return Credentials(config.username, config.password)


def _resolve(config: ClientConfig) -> list[tuple[int, object]]:
    if config.unix_path is not None:
        return [(socket.AF_UNIX, config.unix_path)]
    found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


def _open(
    config: ClientConfig,
    family: int,
    address: object,
    context: ssl.SSLContext | None,
    until: float,
) -> Connection:
    limits = config.tuning.stall_timeout_s, config.tuning.value_size_bytes_max
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(max(until - time.monotonic(), 0.001))
        sock.connect(address)  # type: ignore[arg-type]  # of the family's own type
        if context is None:
            return Connection(sock, *limits)
        secured = shake_hands(sock, context, config.tls_server_name or config.host, until)
        return TlsConnection(secured, *limits)
    except BaseException:
        sock.close()
        raise


def _greet(
    connection: Connection, config: ClientConfig, user: Credentials | None, until: float
) -> None:
    try:
        if config.tuning.protocol < 3 or not _hello(connection, config, user, until):
            _greet_resp2(connection, config, user, until)
        if config.db:
            _check(connection.call(b"SELECT", b"%d" % config.db, deadline=until), user)
        if not connection.is_clean():  # what is left would answer our first request
            raise Disconnected("the server sent more than it was asked for")
    except BaseException as error:
        connection.close()
        # In TLS 1.3 a server refuses us after our handshake, and its words may be lost on the way.
        mute = isinstance(error, Disconnected) and not isinstance(error, TlsRefused)
        if mute and config.tls and not config.tls_cert_file:
            hint = "right after the TLS handshake: it may want a client certificate"
            raise Disconnected(f"{error}, {hint}") from error
        raise


def _hello(
    connection: Connection, config: ClientConfig, user: Credentials | None, until: float
) -> bool:
    """False if the server refuses HELLO, and an older greeting may do."""
    args = [b"HELLO", b"3"]
    if user is not None:
        args += [b"AUTH", (user.username or "default").encode(), user.password.encode()]
    if config.tuning.client_name:
        args += [b"SETNAME", config.tuning.client_name.encode()]
    reply = connection.call(*args, deadline=until)
    if isinstance(reply, ErrorReply) and not reply.ends_greeting:
        return False
    _check(reply, user)
    facts = reply if isinstance(reply, list) else []
    for name, mode in zip(facts[::2], facts[1::2], strict=False):
        if name == b"mode" and mode in (b"cluster", b"sentinel"):
            text = f"{config.address} is a {str(mode, 'ascii')}'s, not one server"
            raise DialRefused(f"{text}; use kvferry.RedisClient", final=True)
    return True


def _greet_resp2(
    connection: Connection, config: ClientConfig, user: Credentials | None, until: float
) -> None:
    if user is not None:
        _check(_authenticate(connection, user, until), user)
    # Whether we are let in shows here, not at the first command of a batch.
    reply = connection.call(b"PING", deadline=until)
    if not (isinstance(reply, ErrorReply) and reply.code == "NOPERM"):  # PING may be forbidden
        _check(reply, user)
    if config.tuning.client_name:  # a name is a courtesy: some proxies do not take it
        connection.call(b"CLIENT", b"SETNAME", config.tuning.client_name.encode(), deadline=until)


def _authenticate(connection: Connection, user: Credentials, until: float) -> Reply:
    password = user.password.encode()
    if user.username is None:
        return connection.call(b"AUTH", password, deadline=until)
    reply = connection.call(b"AUTH", user.username.encode(), password, deadline=until)
    if user.username == "default" and isinstance(reply, ErrorReply) and not reply.ends_greeting:
        # The only form before Redis 6, and it means this user.
        return connection.call(b"AUTH", password, deadline=until)
    return reply


def _check(reply: Reply, user: Credentials | None) -> None:
    if isinstance(reply, ErrorReply):
        # Servers quote the arguments of a command that they do not like.
        text = reply.text
        if user is not None and user.password:
            text = text.replace(user.password, "***")
        raise DialRefused(printable(text), reply.kind)
