"""Addresses that a server listens on: what they may be, and who can reach them."""

from __future__ import annotations

import ipaddress
import os
import re
import socket

from kvferry.base.errors import ConfigError
from kvferry.base.shown import shown

__all__ = [
    "address_of",
    "endpoints_of",
    "ipc_path",
    "listening",
    "written_names",
]

_SOCKET_PATH_BYTES_MAX = 107  # of sockaddr_un, without the zero at its end
_ENDPOINT = (
    "tcp://ADDRESS:PORT (no name; an IPv6 address stands in brackets), or ipc:// and an absolute "
    f"path of at most {_SOCKET_PATH_BYTES_MAX} bytes"
)
_KNOWN = {"localhost": "127.0.0.1", "*": "0.0.0.0"}
_written: set[str] = set()
_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^:\[\]/]+):(\d{1,5}|\*)")


def endpoints_of(*, tcp: bool, host: str, port: int, ipc: str | None) -> tuple[str, ...]:
    """The endpoints for these settings.

    Raises:
        ConfigError: There is none, or the host is no address of any.
    """
    found = []
    if tcp:
        address = address_of("host", host)
        found.append(f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}")
    if ipc is not None:
        found.append(f"ipc://{os.path.abspath(ipc)}")
    if not found:
        raise ConfigError("tcp is off and there is no ipc: nobody could connect; set one")
    return tuple(found)


def address_of(name: str, host: str) -> str:
    """The literal address for a host's name; "localhost" is 127.0.0.1, "*" is every IPv4 address.

    Raises:
        ConfigError: The name is unknown; the text says which setting that is.
    """
    host = host.removeprefix("[").removesuffix("]")
    host = _KNOWN.get(host, host)
    if _version(host):
        return str(ipaddress.ip_address(host))
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(
            f"{name}={shown(host)} is no address of this host; use e.g. 127.0.0.1"
        ) from (None)
    _written.add(host.lower())
    return str(found[0][4][0])


def written_names() -> frozenset[str]:
    """Names that the settings of this process have given to addresses of this host."""
    return frozenset(_written)


def listening(endpoint: str) -> tuple[str, str | None]:
    """An endpoint as a server listens there, with an address for the names that everybody knows.

    Returns:
        The endpoint, and its address; None: it is a Unix socket.

    Raises:
        ConfigError: It is of another kind, or malformed.
    """
    if (path := ipc_path(endpoint)) is not None:
        fits = path.startswith("/") and not path.endswith("/")
        if fits and len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
            return endpoint, None
    elif (match := _TCP.fullmatch(endpoint)) and (match[2] == "*" or int(match[2]) <= 65535):
        written = _KNOWN.get(match[1], match[1])
        host = written.strip("[]")
        if _version(host) == (6 if written.startswith("[") else 4):
            return f"tcp://{written}:{match[2]}", host
    raise ConfigError(f"endpoints: {shown(endpoint)} is no endpoint; use {_ENDPOINT}")


def _version(host: str) -> int:
    """4 or 6; 0: it is no address."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def ipc_path(endpoint: str) -> str | None:
    """The path of an IPC endpoint; None for another kind."""
    return endpoint.removeprefix("ipc://") if endpoint.startswith("ipc://") else None
