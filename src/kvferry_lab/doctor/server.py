"""Reading one server: INFO, CONFIG, TLS, and whether a stranger is let in. Nothing is written.

What a server refuses is left out, never an error. What ends the examination is a server that cannot
be reached, or refuses our credentials.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Mapping

from kvferry.base.errors import UnavailableError
from kvferry.base.host import usable_cores
from kvferry.client.pure.connection import Disconnected, ReplyTimedOut
from kvferry.client.pure.dial import DialRefused, dial
from kvferry.client.pure.resp import Reply
from kvferry.client.pure.tls import client_context, shake_hands
from kvferry.config import ClientConfig
from kvferry_lab.doctor.command_connection import (
    ANSWER_S,
    VALUE_CHARS_MAX,
    CommandConnection,
    text_of,
)
from kvferry_lab.doctor.facts import ServerFacts

__all__ = ["is_near", "read_server"]

# Shown only to those who ask by name (CONFIG GET * leaves them out).
_HIDDEN_SETTINGS = ("min-string-size-avoid-copy-reply",)
_SECRET = re.compile(r"pass|auth|secret|token|seed")  # settings that we do not want to know
_NO_STRANGERS = re.compile(r"NOAUTH|WRONGPASS|NOPERM|DENIED|[Aa]uthentication")


def is_near(config: ClientConfig) -> bool:
    """Whether the way to it leaves this host."""
    if config.unix_path is not None:
        return True
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_DGRAM)
        for family, kind, _, _, address in found:
            with socket.socket(family, kind) as probe:  # UDP: nothing is sent
                probe.connect(address)
                own, other = probe.getsockname()[0], probe.getpeername()[0]
            return bool(own == other or ipaddress.ip_address(other).is_loopback)
    except (OSError, ValueError):
        pass
    return False


def read_server(config: ClientConfig) -> ServerFacts:
    """Everything about one server.

    Raises:
        UnavailableError: See `CommandConnection`.
    """
    near = is_near(config)
    with CommandConnection(config) as talk:
        information = talk.fields("INFO", "everything") or talk.fields("INFO")
        return ServerFacts(
            address=config.address,
            info=information,
            config=_settings(talk),
            is_near=near,
            cores=usable_cores() if near else None,
            is_open=_is_open(config),
            has_secret=_has_secret(config),
            tls=_tls_text(config),
            is_verified=config.tls_verify == "full",
        )


def _settings(talk: CommandConnection) -> Mapping[str, str] | None:
    found = _pairs(talk.ask("CONFIG", "GET", "*"))
    if not found:
        return None
    for name in _HIDDEN_SETTINGS:
        found |= _pairs(talk.ask("CONFIG", "GET", name))
    return found


def _is_open(config: ClientConfig) -> bool | None:
    if config.tls_cert_file:
        return False  # our certificate lets us in
    if not _has_secret(config):
        return True
    stranger = config.replace(username=None, password=None, credentials=None)
    try:
        dial(stranger, time.monotonic() + ANSWER_S).close()
    except (DialRefused, ReplyTimedOut) as error:
        return False if _NO_STRANGERS.search(str(error)) else None
    return True


def _has_secret(config: ClientConfig) -> bool:
    return config.password is not None or config.credentials is not None


def _tls_text(config: ClientConfig) -> str:
    """Protocol and cipher of a handshake made for this."""
    if not config.tls:
        return ""
    until = time.monotonic() + ANSWER_S
    try:
        plain = socket.create_connection((config.host, config.port), ANSWER_S)
        name = config.tls_server_name or config.host
        with shake_hands(plain, client_context(config), name, until) as secured:
            return f"{secured.version()} {(secured.cipher() or ['unknown'])[0]}"
    except (Disconnected, OSError) as error:
        raise UnavailableError(f"{config.address}: {error}") from None


def _pairs(reply: Reply) -> dict[str, str]:
    words = [text_of(word) for word in reply] if isinstance(reply, list) else []
    pairs = zip(words[::2], words[1::2], strict=False)
    return {name: value[:VALUE_CHARS_MAX] for name, value in pairs if not _SECRET.search(name)}
