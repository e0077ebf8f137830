"""The way of an instance to a port of a controller, and who may speak on it.

Each side proves with HMAC-SHA-256 over both nonces that it knows the secret, which itself is never
sent. Where no secret is configured, the secret is that of this user's processes on this host, and
the address at the controller's end is proved as well: loopback passes the address on unchanged, and
whoever takes another port there cannot stand between two that know each other. Messages after the
greeting are neither encrypted nor signed: on a network that others write to, use a tunnel.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Sequence
from typing import Self, TypeVar

from msgspec.structs import replace

from kvferry.base.errors import ConfigError, UnavailableError
from kvferry.base.local_secret import NONCE_BYTES, local_proof
from kvferry.base.shown import in_line
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.rpc.channel import Channel, NoServer
from kvferry.rpc.link import encode
from kvferry.sharing.membership.messages import (
    VERSION,
    Challenge,
    CommandDone,
    InstanceHello,
    InstanceRefused,
    InstanceWelcome,
    Malformed,
    Message,
    decoded,
)

__all__ = [
    "NONCE_BYTES",
    "OTHER_SECRET",
    "ControllerLink",
    "InstanceProcess",
    "RefusedError",
    "host_and_port",
    "proof",
]

M = TypeVar("M")

# A host that is away answers nothing, and may be back long before the kernel gives up.
_CONNECT_TIMEOUT_S = 1.5
_ELSEWHERE = "another user, container or version needs p2p_secret_file, its controller secret_file"
OTHER_SECRET = f"the secret is another one: {_ELSEWHERE}"


class RefusedError(UnavailableError):
    """A controller does not take what was said; `code` says why, for programs."""

    def __init__(self, refused: InstanceRefused) -> None:
        # An older one's is another sentence.
        text = OTHER_SECRET if refused.code == "secret" else in_line(refused.text)
        super().__init__(f"the controller: {text}")
        self.code = refused.code


class InstanceProcess:
    """Who speaks: an instance, its rank, and the incarnation of this process."""

    def __init__(self, instance: str, rank: int, incarnation: bytes | None = None) -> None:
        self.instance = instance
        self.rank = rank
        self.incarnation = incarnation or secrets.token_bytes(DIGEST_BYTES)


def proof(
    secret: str, side: str, nonces: bytes, hello: InstanceHello, at: Sequence[object]
) -> bytes:
    """What shows that a side ("instance" or "controller") knows the secret.

    Args:
        secret: What is configured; empty: nothing, see the module.
        side: Whose proof it is.
        nonces: Of controller and instance.
        hello: What the instance says of itself.
        at: Host and port of the controller's end of the connection, as the system has them.

    Raises:
        ConfigError: The secret of this user's processes cannot be used.
    """
    who = f"{side}\0{hello.port}\0{hello.rank}\0{hello.instance}".encode()
    text = b"kvferry membership v1\0" + nonces + hello.incarnation + who
    if secret:
        return hmac.digest(secret.encode(), text, "sha256")
    return local_proof(f"membership at {at[0]} {at[1]}", text)


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of HOST:PORT or [IPV6]:PORT.

    Raises:
        Malformed: It is neither.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise Malformed("an address is HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


class ControllerLink:
    """A connection to a port of a controller. One thread at a time.

    Args:
        channel: It is connected.
        timeout_s: For each call.
    """

    def __init__(self, channel: Channel, timeout_s: float) -> None:
        self._channel = channel
        self._timeout_s = timeout_s

    @classmethod
    def open(
        cls, address: str, port: str, me: InstanceProcess, secret: str, timeout_s: float
    ) -> tuple[Self, InstanceWelcome]:
        """Connect, and show each other the secret.

        Raises:
            OSError: It cannot be reached, or our secret cannot; `RefusedError` if it does not want
                us.
            Malformed: It is no controller, or does not know the secret.
        """
        host_and_port(address)
        began = time.monotonic()
        connect_until = began + min(timeout_s, _CONNECT_TIMEOUT_S)
        try:
            channel = Channel(f"tcp://{address}", None, connect_until, began + timeout_s)
        except NoServer as error:
            raise Malformed(f"no controller of this version listens there: {error}") from None
        link = cls(channel, timeout_s)
        try:
            challenge = link.receive(Challenge)
            if challenge.version != VERSION:
                raise Malformed(f"the controller speaks version {challenge.version}")
            nonce, at = secrets.token_bytes(NONCE_BYTES), channel.peer
            hello = InstanceHello(VERSION, port, me.instance, me.rank, me.incarnation, nonce, b"")
            nonces = challenge.nonce + nonce
            shown = proof(secret, "instance", nonces, hello, at)
            welcome = link.ask(replace(hello, proof=shown), InstanceWelcome)
            expected = proof(secret, "controller", nonces, hello, at)
            if not hmac.compare_digest(welcome.proof, expected):
                raise Malformed(f"who listens there does not know the secret: {_ELSEWHERE}")
        except ConfigError as error:
            link.close()
            raise UnavailableError(str(error)) from None
        except BaseException:
            link.close()
            raise
        return link, welcome

    @classmethod
    def ask_reply(
        cls,
        address: str,
        me: InstanceProcess,
        secret: str,
        timeout_s: float,
        message: object,
        kind: type[M],
    ) -> M:
        """Ask one thing of the port "reply"; raises as `open` and `ask`."""
        link, _ = cls.open(address, "reply", me, secret, timeout_s)
        try:
            return link.ask(message, kind)
        finally:
            link.close()

    def send(self, message: object) -> None:
        """Send a message.

        Raises:
            OSError: It did not work in time.
        """
        self._channel.send(encode(message), time.monotonic() + self._timeout_s)

    def ask(self, message: object, kind: type[M]) -> M:
        """Send one, and wait for its answer; raises as `send` and `receive`."""
        self.send(message)
        return self.receive(kind)

    def receive(self, kind: type[M]) -> M:
        """The next message, which is of this kind.

        Raises:
            OSError: None came in time; `RefusedError` if that is what came.
            Malformed: It is another one, or none.
        """
        frame = self._channel.receive(time.monotonic() + self._timeout_s)
        if frame is None:
            raise TimeoutError("the controller is silent")
        return _of_kind(frame, kind)

    def check(self) -> None:
        """Whether it is there, as far as is known without asking.

        Raises:
            OSError: It has ended; `RefusedError` if the controller said why.
            Malformed: It said something else.
        """
        frame = self._channel.receive(time.monotonic())
        if frame is not None:
            _of_kind(frame, CommandDone)

    def close(self) -> None:
        """End it."""
        self._channel.close()


def _of_kind(frame: bytes, kind: type[M]) -> M:
    found: Message = decoded(frame)
    if isinstance(found, InstanceRefused):
        raise RefusedError(found)
    if not isinstance(found, kind):
        raise Malformed(f"{type(found).__name__} where {kind.__name__} belongs")
    return found
