"""The folder of this user's sockets, which nobody else may enter, and the sockets of nodes in it.

It is ``kvferry`` in ``XDG_RUNTIME_DIR``, else ``kvferry-UID`` in the folder for temporary files.

A node lends through a socket there to readers of the same user on the same host. They were told a
loopback address, ask the node for its socket (`ClientConfig.same_host`) and move there from TCP. A
node that stops takes its socket away; what one that was killed has left goes with the next one.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import stat
import tempfile
from pathlib import Path

__all__ = ["folder", "node_socket"]

_log = logging.getLogger("kvferry.cache")

_SUFFIX = ".node"
_numbers = itertools.count()


def folder() -> Path:
    """The folder of this user's sockets, which is made if it is not there.

    Raises:
        OSError: It cannot be made, or others may enter it.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime) / "kvferry" if runtime else Path(tempfile.gettempdir())
    path = path if runtime else path / f"kvferry-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not ours or found.st_mode & 0o077:
        raise PermissionError(f"{path} is no folder of this user alone")
    return path


def node_socket() -> str:
    """A path for one more; empty: there can be none, and readers stay with TCP."""
    try:
        place = folder()
        for path in place.glob(f"*{_SUFFIX}"):
            _remove_if_left(path)
        path = place / f"{os.getpid()}-{next(_numbers)}{_SUFFIX}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.bind(str(path))  # not every file system can have one, nor is every path short
        path.unlink(missing_ok=True)  # another that begins may have thought it left
    except OSError as error:
        _log.info("peers on this host are served over TCP: %s", error)
        return ""
    return str(path)


def _remove_if_left(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.setblocking(False)
        try:
            line.connect(str(path))
        except ConnectionRefusedError:  # its process was killed
            path.unlink(missing_ok=True)
        except OSError:
            return
