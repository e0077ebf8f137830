"""Keys for connections that leave the host: CurveZMQ, from files that only their owner can read.

    kvferry server --new-curve-keys keys/        writes keys/server.key and keys/client.key

    # server.key                                 # client.key, copied to the hosts of engines
    public: ...                                  public: ...
    secret: ...                                  secret: ...
    clients: [...]                               server: ...

Both are JSON or YAML. `clients` are the public keys of those who may connect; further ones are made
anywhere with ``zmq.curve_keypair()``. A connection without one of these keys gets no answer at all.

A socket with keys wants them at all of its endpoints, Unix sockets included.

Source: https://rfc.zeromq.org/spec/26/ (CurveZMQ), https://rfc.zeromq.org/spec/27/ (ZAP).
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.z85 import decode

from kvferry.config.file import read_document
from kvferry.errors import ConfigError

__all__ = ["CurveGuard", "apply_client", "apply_server", "client_keys", "new_keys", "server_keys"]

_DOMAIN = "kvferry"
# Z85 of 32 bytes: https://rfc.zeromq.org/spec/32/
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


class CurveGuard:
    """Who may connect to the sockets of a context; a thread asks it at each handshake.

    One for each context. `stop` must come before the context ends, or its end waits for us.

    Args:
        context: That of the sockets.
        clients: Public keys, as Z85.
    """

    def __init__(self, context: zmq.Context[Any], clients: frozenset[bytes]) -> None:
        self._clients = clients
        self._thread = ThreadAuthenticator(context)
        self._thread.configure_curve_callback(_DOMAIN, credentials_provider=self)
        self._thread.start()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether this public key may connect; called by the thread."""
        return domain == _DOMAIN and key in self._clients

    def allow(self, clients: frozenset[bytes]) -> None:
        """From now on these may connect; connections that are there stay."""
        self._clients = clients

    def stop(self) -> None:
        """End the thread; it waits for nothing but its own last answer."""
        self._thread.stop()


def new_keys(directory: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write new keys for a server and its clients; the paths of both files.

    The directory is made if it is not there; the files have mode 0600.

    Raises:
        ConfigError: There are such files already: they are kept.
        OSError: The directory cannot be written to.
    """
    folder = Path(directory)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    server, client = folder / "server.key", folder / "client.key"
    for file in (server, client):
        if os.path.lexists(file):
            raise ConfigError(f"{file} is there already; name another directory, or remove it")
    server_public, server_secret = (key.decode() for key in zmq.curve_keypair())
    public, secret = (key.decode() for key in zmq.curve_keypair())
    _write(server, {"public": server_public, "secret": server_secret, "clients": [public]})
    _write(client, {"public": public, "secret": secret, "server": server_public})
    return server, client


def server_keys(path: str | os.PathLike[str]) -> tuple[bytes, bytes, frozenset[bytes]]:
    """Public and secret key of a server, and the public keys of its clients, as Z85.

    Raises:
        ConfigError: The file is missing, malformed, or others may read it; no key is quoted.
    """
    file, found = _read(path, ("public", "secret", "clients"))
    public, secret = _key(file, found, "public"), _key(file, found, "secret")
    _check_pair(file, public, secret)
    clients = found["clients"]
    if not isinstance(clients, list) or not clients:
        raise ConfigError(f"{file}: clients is no list of public keys; nobody could connect")
    keys = [_key(file, {f"clients[{i}]": key}, f"clients[{i}]") for i, key in enumerate(clients)]
    return public, secret, frozenset(keys)


def client_keys(path: str | os.PathLike[str]) -> tuple[bytes, bytes, bytes]:
    """Public and secret key of a client, and the public key of its server, as Z85.

    Raises:
        ConfigError: As `server_keys`.
    """
    file, found = _read(path, ("public", "secret", "server"))
    public, secret = _key(file, found, "public"), _key(file, found, "secret")
    _check_pair(file, public, secret)
    return public, secret, _key(file, found, "server")


def apply_server(
    socket: zmq.Socket[Any], context: zmq.Context[Any], path: str | os.PathLike[str]
) -> CurveGuard:
    """Let a socket that is not bound yet accept the clients of a key file, and nobody else.

    Raises:
        ConfigError: As `server_keys`.
    """
    public, secret, clients = server_keys(path)
    guard = CurveGuard(context, clients)
    socket.zap_domain = _DOMAIN.encode()
    socket.curve_publickey, socket.curve_secretkey = public, secret
    socket.curve_server = True
    return guard


def apply_client(socket: zmq.Socket[Any], path: str | os.PathLike[str]) -> None:
    """Give a socket that is not connected yet the keys of a client.

    Raises:
        ConfigError: As `server_keys`.
    """
    public, secret, server = client_keys(path)
    socket.curve_publickey, socket.curve_secretkey = public, secret
    socket.curve_serverkey = server


def _read(path: str | os.PathLike[str], names: tuple[str, ...]) -> tuple[Path, Mapping[str, Any]]:
    if not zmq.has("curve"):
        raise ConfigError("this libzmq was built without CURVE; install another pyzmq")
    file = Path(path)
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise ConfigError(f"key file {file}: {error.strerror}") from None
    if mode & 0o077:
        raise ConfigError(f"key file {file} is open to others; run chmod 600 on it")
    found = read_document(file)
    for name in names:
        if name not in found:
            raise ConfigError(f"key file {file} has no {name!r}; is it the other side's?")
    return file, found


def _key(file: Path, found: Mapping[str, Any], name: str) -> bytes:
    key = found[name]
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ConfigError(f"key file {file}: {name} is no key of 40 characters (Z85)")
    try:
        decode(key)
    except (ValueError, KeyError, struct.error):
        pass
    else:
        return key.encode()
    raise ConfigError(f"key file {file}: {name} is no key of 40 characters (Z85)")


def _check_pair(file: Path, public: bytes, secret: bytes) -> None:
    if zmq.curve_public(secret) != public:
        raise ConfigError(f"key file {file}: public and secret do not belong together")


def _write(file: Path, content: Mapping[str, Any]) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(handle, "w") as stream:
        os.fchmod(handle, 0o600)
        json.dump(content, stream, indent=1)
        stream.write("\n")
