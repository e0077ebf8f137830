"""The folder that processes of one user on one host share, and the secret in it that they make.

It is ``kvferry`` in the user's runtime folder, which is ``XDG_RUNTIME_DIR`` or ``/run/user/UID``;
without one, ``kvferry-UID`` in the folder for temporary files. It belongs to the user, and nobody
else may enter it. Processes of other users, and of containers that do not share it, are strangers.

The first process that needs the secret makes it: all of it or nothing, so that of several first
ones all have the same. Nothing is kept open, and a secret that was removed comes back: from a
process that knows it still, else a new one that all take over at their next contact.

Threads: any.
"""

from __future__ import annotations

import errno
import hmac
import os
import re
import secrets
import socket
import stat
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kvferry.base.errors import ConfigError

__all__ = ["NONCE_BYTES", "folder", "is_own_process", "local_proof", "local_secret"]

NONCE_BYTES = 16

_NAME = "secret"
_SECRET_BYTES = 32
_SECRET = re.compile(rb"[0-9a-f]{64}\n")
_TRIES = 8  # somebody may remove it in between
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PEER = struct.Struct("3i")

_known: dict[str, bytes] = {}  # what this process read or made last, by its path


def folder() -> Path:
    """The folder of this user, which is made if it is not there.

    Raises:
        OSError: It cannot be made, or others may enter it.
    """
    user = os.geteuid()
    for runtime in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{user}"):
        if runtime and os.path.isabs(runtime) and not _wrong(Path(runtime)):
            path = Path(runtime) / "kvferry"
            break
    else:
        path = Path(tempfile.gettempdir()) / f"kvferry-{user}"
    path.mkdir(mode=0o700, exist_ok=True)
    if why := _wrong(path):
        raise PermissionError(errno.EPERM, f"it is no folder of this user alone: {why}", str(path))
    return path


def local_secret() -> str:
    """The secret of this user's processes on this host.

    Raises:
        ConfigError: It can be neither read nor made, or others could have.
    """
    where = ""
    try:
        path = folder()
        where = str(path / _NAME)
        place = os.open(path, _DIRECTORY)
        try:
            return _read_or_make(place, where).decode().strip()
        finally:
            os.close(place)
    except OSError as error:
        where = where or str(error.filename)
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror or str(error)
    except ValueError as error:
        why = str(error)
    raise ConfigError(
        f"{where}, by which processes of this user know each other, cannot be used: {why}; remove "
        "it, or name another folder in XDG_RUNTIME_DIR; instances can have p2p_secret_file instead "
        "(and the controller secret_file)"
    )


def local_proof(side: str, about: bytes) -> bytes:
    """What shows that a side of a conversation, which is about this, knows the secret.

    Raises:
        ConfigError: See `local_secret`.
    """
    return hmac.digest(
        local_secret().encode(), b"kvferry " + side.encode() + b"\0" + about, "sha256"
    )


def is_own_process(peer: socket.socket) -> bool:
    """Whether a process of our user, or of root, is at the other end of a Unix socket."""
    try:
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    except OSError:
        return False
    return _PEER.unpack(raw)[1] in (0, os.geteuid())


def _read_or_make(place: int, path: str) -> bytes:
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            _known[path] = _read(place)
            return _known[path]
        _make(place, _known.get(path) or secrets.token_hex(_SECRET_BYTES).encode() + b"\n")
    raise ValueError("it is removed again and again")


def _read(place: int) -> bytes:
    file = os.open(_NAME, _FILE, dir_fd=place)  # a link is an error: ELOOP
    try:
        if why := _not_ours(os.fstat(file), stat.S_ISREG, "file"):
            raise ValueError(why)
        raw = os.read(file, 2 * _SECRET_BYTES + 2)
    finally:
        os.close(file)
    if not _SECRET.fullmatch(raw):
        raise ValueError("it is damaged")
    return raw


def _make(place: int, secret: bytes) -> None:
    """Give it its name when it is whole; somebody else's that came first stays."""
    temporary = f".{_NAME}.{secrets.token_hex(8)}"
    file = os.open(temporary, _NEW_FILE, 0o600, dir_fd=place)
    try:
        with open(file, "wb") as stream:
            os.fchmod(file, 0o600)  # whatever the umask says
            stream.write(secret)
            stream.flush()
            os.fsync(file)
        with suppress(FileExistsError):
            os.link(temporary, _NAME, src_dir_fd=place, dst_dir_fd=place, follow_symlinks=False)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=place)


def _wrong(path: Path) -> str:
    """Why a directory is not for this user alone; empty: it is."""
    try:
        found = path.lstat()
    except OSError as error:
        return error.strerror or "it is not there"
    return _not_ours(found, stat.S_ISDIR, "directory")


def _not_ours(found: os.stat_result, is_kind: Callable[[int], bool], kind: str) -> str:
    if not is_kind(found.st_mode):
        return f"it is no {kind}"
    if found.st_uid != os.geteuid():
        return f"it belongs to another user ({found.st_uid})"
    return "other users may open it" if found.st_mode & 0o077 else ""
