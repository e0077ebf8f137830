"""CommandConnection: one connection to a server, for small questions."""

from __future__ import annotations

import time
from typing import Self

from kvferry.base.errors import UnavailableError
from kvferry.client.pure.connection import Connection, Disconnected, ReplyTimedOut
from kvferry.client.pure.dial import DialRefused, dial
from kvferry.client.pure.resp import ErrorReply, ProtocolError, Reply
from kvferry.config import ClientConfig

__all__ = ["ANSWER_S", "VALUE_CHARS_MAX", "CommandConnection", "text_of"]

ANSWER_S = 10.0
VALUE_CHARS_MAX = 300


class CommandConnection:
    """One connection for small questions; close it, or use it with `with`.

    Raises:
        UnavailableError: The server cannot be reached, refuses us, or stopped to answer.
    """

    def __init__(self, config: ClientConfig) -> None:
        self._address = config.address
        try:
            self._connection: Connection = dial(config, time.monotonic() + ANSWER_S)
        except (DialRefused, ReplyTimedOut) as error:
            raise UnavailableError(str(error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()

    def ask(self, *words: str) -> Reply:
        """The reply to one command; `None` also for an error."""
        encoded = [word.encode() for word in words]
        try:
            reply = self._connection.call(*encoded, deadline=time.monotonic() + ANSWER_S)
        except (Disconnected, ReplyTimedOut, ProtocolError) as error:
            raise UnavailableError(f"{self._address}: {error}") from None
        return None if isinstance(reply, ErrorReply) else reply

    def fields(self, *words: str) -> dict[str, str]:
        """The ``name:value`` lines of a reply."""
        found = {}
        for line in text_of(self.ask(*words)).splitlines():
            name, colon, value = line.partition(":")
            if colon and not name.startswith("#"):
                found[name] = value[:VALUE_CHARS_MAX]
        return found


def text_of(reply: Reply) -> str:
    """A reply as text, nothing for null; a server's control characters stay off our terminal."""
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply or "")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\r\n" else "?" for char in text)
