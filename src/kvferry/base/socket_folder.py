"""The sockets of nodes in the folder that processes of this user share; see `local_secret`.

A node lends through a socket there to readers of the same user on the same host. Where a secret is
configured, they ask the node for it (`ClientConfig.same_host`) and move there from TCP. Without one
nobody is believed over TCP: who listens there may be another user. Then a reader knows the socket
by its name, which has the address that the node is known by, and the network namespace to which
that belongs. A node that stops takes its socket away; what one that was killed has left goes with
the next one.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path

from kvferry.base.local_secret import folder

__all__ = ["address_of_socket", "node_address", "node_path", "node_socket", "remove_if_left"]

_log = logging.getLogger("kvferry.cache")

_SUFFIX = ".node"
_NETWORK = Path("/proc/self/ns/net")
_PATH_BYTES_MAX = 107  # of an address; unix(7)
_opened: dict[tuple[int, int], int] = {}  # descriptors of folders, for as long as we live


def node_path(host: str, port: int | str) -> Path:
    """The socket of the node that is known by this address in our network.

    Raises:
        OSError: There is no folder for it.
    """
    host = "" if host.lower() in ("localhost", "127.0.0.1") else f"-{host.lower()}"
    try:
        network = _NETWORK.stat().st_ino
    except OSError:
        network = 0
    return folder() / f"{port}-{network:x}{host}{_SUFFIX}"


def node_address(host: str, port: int | str) -> str:
    """The same as an address of this process: where the path is too long, by the open folder.

    Raises:
        OSError: See `node_path`.
    """
    return address_of_socket(node_path(host, port))


def address_of_socket(path: Path) -> str:
    """A socket's path as an address of this process; see `node_address`.

    Raises:
        OSError: There is no such folder.
    """
    if len(os.fsencode(path)) + len("65535") <= _PATH_BYTES_MAX:
        return str(path)
    found = path.parent.stat()
    key = found.st_dev, found.st_ino
    if key not in _opened:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        _opened[key] = os.open(path.parent, flags)
    return f"/proc/self/fd/{_opened[key]}/{path.name}"


def node_socket(host: str) -> str:
    """A path for a node that is known by this host name, "*" for its port; empty: none can be."""
    try:
        for other in folder().glob(f"*{_SUFFIX}"):
            remove_if_left(other)
        path = Path(node_address(host, "*"))
        trial = path.with_name(path.name.replace("*", secrets.token_hex(4)))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.bind(str(trial))  # not every file system can have one
        trial.unlink(missing_ok=True)  # another that begins may have thought it left
    except OSError as error:
        _log.info("this host's peers are not served over a Unix socket: %s", error)
        return ""
    return str(path)


def remove_if_left(path: Path, older_s: float = 0.0) -> bool:
    """Remove a socket whose process was killed; whether nobody is there.

    Args:
        path: Of the socket.
        older_s: A younger one stays: a process that has just made it may be about to listen.

    Raises:
        OSError: It cannot be removed.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.setblocking(False)
        try:
            line.connect(address_of_socket(path))
        except ConnectionRefusedError:  # its process was killed
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime >= older_s:
                    path.unlink()
            return True
        except FileNotFoundError:
            return True
        except OSError:
            return False
    return False
