"""Addresses that a server listens on: what they may be, and who can reach them."""

from __future__ import annotations

import ipaddress
import os
import re
import socket

from kvferry.errors import ConfigError

__all__ = [
    "address_of",
    "endpoints_of",
    "ipc_path",
    "listening",
]

_SOCKET_PATH_BYTES_MAX = 107  # of sockaddr_un, without the zero at its end
_KNOWN = {"localhost": "127.0.0.1", "*": "0.0.0.0"}
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
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ConfigError(f"{name}={host!r} is no address of this host; use e.g. 127.0.0.1") from (
            None
        )
    return str(found[0][4][0])


def listening(endpoint: str) -> tuple[str, str | None]:
    """An endpoint as a server listens there, with an address for the names that everybody knows.

    Returns:
        The endpoint, and its address; None: it is a Unix socket.

    Raises:
        ConfigError: It is of another kind, or malformed.
    """
    where = f"endpoints: {endpoint!r}"
    if (path := ipc_path(endpoint)) is not None:
        if not path.startswith("/") or path.endswith("/"):
            raise ConfigError(f"{where} has no absolute path of a socket: ipc:///run/my.sock")
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"{where} is longer than {_SOCKET_PATH_BYTES_MAX} bytes, which no socket can be; "
                "use a shorter path"
            )
        return endpoint, None
    match = _TCP.fullmatch(endpoint)
    if match is None or (match[2] != "*" and int(match[2]) > 65535):
        raise ConfigError(f"{where} is no endpoint; use tcp://ADDRESS:PORT or ipc:///PATH")
    written = _KNOWN.get(match[1], match[1])
    host = written.strip("[]")
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        raise ConfigError(
            f"{where} has a name where an address is needed; use e.g. 127.0.0.1"
        ) from None
    if (version == 6) != written.startswith("["):
        raise ConfigError(f"{where}: only an IPv6 address stands in brackets")
    return f"tcp://{written}:{match[2]}", host


def ipc_path(endpoint: str) -> str | None:
    """The path of an IPC endpoint; None for another kind."""
    return endpoint.removeprefix("ipc://") if endpoint.startswith("ipc://") else None
