"""Where a client finds its server, and with which keys."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kvferry.errors import ConfigError
from kvferry.server.client.sockets import CurveKeys

__all__ = ["DEFAULT_URL", "curve_keys", "read_url"]

DEFAULT_URL = "tcp://localhost:5555"
_VARIABLE = "KVFERRY_SERVER_URL"
_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", re.ASCII)
# As the system has it: of the address of a socket in the file system.
_IPC_BYTES_MAX = 107


def read_url(url: str | None) -> str:
    """The URL as ZeroMQ takes it; None: that of the environment, or the usual one.

    Raises:
        ConfigError: It is none of a cache server.
    """
    where = "url"
    if url is None:
        where, url = _VARIABLE, os.environ.get(_VARIABLE) or DEFAULT_URL
    if match := _TCP.fullmatch(url):
        host, port = match[1], int(match[2] or 5555)
        if 0 < port < 65536:
            return f"tcp://{host}:{port}"
    elif url.startswith("ipc://"):
        name = os.fsencode(url.removeprefix("ipc://"))
        if name and b"\0" not in name and len(name) <= _IPC_BYTES_MAX:
            return url
        raise ConfigError(f"{where}={url!r}: the path must have 1 to {_IPC_BYTES_MAX} bytes")
    raise ConfigError(f"{where}={url!r} is no tcp://HOST:PORT and no ipc:///PATH")


def curve_keys(path: Path) -> CurveKeys:
    """The keys of a client from its file.

    Raises:
        ConfigError: The file cannot be read, or holds none.
    """
    from kvferry.server.curve import client_keys

    public, secret, server = client_keys(path)
    return CurveKeys(client_public=public, client_secret=secret, server_public=server)
