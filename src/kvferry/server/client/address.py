"""Where a client finds its server, and the token that it shows."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kvferry.base.errors import ConfigError
from kvferry.config.file import read_token

__all__ = ["DEFAULT_URL", "read_url", "token_reader"]

DEFAULT_URL = "tcp://localhost:5555"
_VARIABLE = "KVFERRY_SERVER_URL"
_TOKEN = "KVFERRY_SERVER_TOKEN"
_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", re.ASCII)
# Linux's limit for the path of a Unix socket (sun_path, less the terminating NUL).
_IPC_BYTES_MAX = 107


def read_url(url: str | None) -> str:
    """A URL with its port; None: the URL that the environment names, or the default.

    Raises:
        ConfigError: It cannot be the URL of a cache server.
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


def token_reader(file: str | os.PathLike[str] | None) -> Callable[[], str]:
    """A function that reads the token anew at each call, or raises ConfigError; "": no token.

    Args:
        file: Holds the token; None: the token or the file that the environment names, as for the
            server.

    Raises:
        ConfigError: The file cannot be read, or holds no token.
    """
    name, word = "token_file", ""
    if file is None:
        name, word = f"{_TOKEN}_FILE", os.environ.get(_TOKEN, "")
        file = os.environ.get(name) or None
        if word and file is not None:
            raise ConfigError(f"{_TOKEN} and {name} are the same; keep one")
    if file is None:
        return lambda: word
    read = partial(read_token, Path(file), name)
    read()
    return read
