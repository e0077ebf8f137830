"""Addresses that a server listens on: what they may be, and who can reach them."""

from __future__ import annotations

import ipaddress
import os
import re
import socket

from kvferry.errors import ConfigError

__all__ = [
    "address_of",
    "check_endpoint",
    "endpoints_of",
    "ipc_path",
    "plain_endpoint",
    "tcp_host",
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


def plain_endpoint(endpoint: str) -> str:
    """The endpoint with an address where it has one of the names that everybody knows.

    Raises:
        ConfigError: It is no text.
    """
    if not isinstance(endpoint, str):
        raise ConfigError("an endpoint is no text; write e.g. tcp://127.0.0.1:5555")
    for name, address in _KNOWN.items():
        if endpoint.startswith(f"tcp://{name}:"):
            return endpoint.replace(name, address, 1)
    return endpoint


def check_endpoint(endpoint: str) -> None:
    """Whether a server can listen there in principle.

    Raises:
        ConfigError: It is of another kind, or malformed.
    """
    path = ipc_path(endpoint)
    if path is not None:
        if not path.startswith("/") or path.endswith("/") or "\0" in path:
            raise ConfigError(
                f"endpoints: {endpoint!r} has no absolute path of a socket: ipc:///run/my.sock"
            )
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"endpoints: {endpoint!r} is longer than {_SOCKET_PATH_BYTES_MAX} bytes, which no "
                "socket can be; use a shorter path"
            )
        return
    match = _TCP.fullmatch(endpoint)
    if match is None or (match[2] != "*" and int(match[2]) > 65535):
        raise ConfigError(
            f"endpoints: {endpoint!r} is no endpoint; use tcp://ADDRESS:PORT or ipc:///PATH"
        )
    host = match[1].strip("[]")
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        raise ConfigError(
            f"endpoints: {endpoint!r} has a name where an address is needed; use e.g. 127.0.0.1"
        ) from None
    if (version == 6) != match[1].startswith("["):
        raise ConfigError(f"endpoints: {endpoint!r}: only an IPv6 address stands in brackets")


def tcp_host(endpoint: str) -> str | None:
    """The address of a TCP endpoint; None for another kind."""
    match = _TCP.fullmatch(endpoint)
    return match[1].strip("[]") if match else None


def ipc_path(endpoint: str) -> str | None:
    """The path of an IPC endpoint; None for another kind."""
    return endpoint.removeprefix("ipc://") if endpoint.startswith("ipc://") else None
