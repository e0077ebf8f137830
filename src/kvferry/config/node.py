"""The settings of a node: where it listens, what it holds, and who may do what."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar

import msgspec

from kvferry.base.errors import ConfigError
from kvferry.base.shown import shown
from kvferry.config.file import read_small
from kvferry.config.removed import REMOVED
from kvferry.config.setting import GB, Path, PolicyName, Secret, setting, specs
from kvferry.config.source_values import Section
from kvferry.config.tuning import NodeTuning
from kvferry.config.url import is_loopback

__all__ = ["ListenAddress", "NodeSettings", "NodeUser"]

_TLS = ("tls_cert_file",)
_LISTEN = "addresses such as 127.0.0.1:6400, [::1]:6400 or unix:/run/node.sock"


class NodeUser(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may read and write which keys, by their prefixes; an empty prefix is every key."""

    name: str
    password: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    admin: bool = False

    def __repr__(self) -> str:
        return f"NodeUser(name={self.name!r}, read={self.read!r}, write={self.write!r})"


class ListenAddress(msgspec.Struct, frozen=True):
    """An address to listen at: a path, or host and port."""

    path: str = ""
    host: str = ""
    port: int = 0


class NodeSettings(Section, frozen=True, kw_only=True):
    """What a node holds, where it listens, and its limits.

    Attributes:
        listen: An address where clients connect, as HOST:PORT or unix:PATH; port 0 takes any that
            is free. One that other hosts reach needs a password or users, or TLS with client
            certificates.
        size_gb: The most memory that all values take together, in GB of 2^30 bytes. All of it is
            taken at the start.
        eviction_policy: The policy that chooses which value leaves a full node.
        state_file: The file that keeps the values from the end of the node to its next start.
        password: The password that clients must show.
        password_file: A file with the password that clients must show.
        users_file: A file with a list of users, in YAML or JSON. Each has a name, a password, the
            prefixes of the keys that it may read and write, and may be an admin.
        tls_cert_file: The PEM file of the node's certificate and its chain. With it all of TCP is
            TLS; a Unix socket stays as it is.
        tls_key_file: The PEM file of the certificate's key.
        tls_ca_file: A PEM file of authorities. Clients must show a certificate of one of them.
        hugetlb: Put values on huge pages, which the system must have set aside.
        tuning: Values that are no settings.
    """

    section: ClassVar = "node"
    removed: ClassVar = REMOVED["node"]
    aliases: ClassVar = {"policy": ("eviction_policy", None), "state": ("state_file", None)}

    listen: Annotated[tuple[str, ...], setting(use=_LISTEN)] = ("127.0.0.1:6400",)
    size_gb: Annotated[float, setting(gt=0, le=1 << 20, unit="GB")] = 5.0
    eviction_policy: Annotated[PolicyName, setting(flag="policy")] = "LRU"
    state_file: Annotated[str, setting(min_length=1, use="a path", flag="state")] | None = None
    password: Secret | None = None
    password_file: Path | None = None
    users_file: Path | None = None
    tls_cert_file: Annotated[Path, setting(needs=("tls_key_file",))] | None = None
    tls_key_file: Annotated[Path, setting(needs=_TLS)] | None = None
    tls_ca_file: Annotated[Path, setting(needs=_TLS)] | None = None
    hugetlb: bool = False
    tuning: Annotated[NodeTuning, setting(private=True)] = NodeTuning()

    def _check(self) -> None:
        addresses = self.addresses
        if not addresses:
            raise ConfigError(f"listen is empty; use {_LISTEN}")
        given = [self.password is not None, self.password_file is not None]
        if all(given):
            raise ConfigError("password and password_file are the same; keep one of them")
        if self.users_file is not None and any(given):
            raise ConfigError(
                "users_file says who may do what; leave out password and password_file"
            )
        for address in addresses:
            if address.host and not is_loopback(address.host) and not self.asks_who:
                raise ConfigError(
                    f"listen: {address.host}:{address.port} is reachable from other hosts, which "
                    "needs password_file, users_file, or TLS with tls_ca_file; set one, or "
                    "listen on 127.0.0.1"
                )

    @property
    def asks_who(self) -> bool:
        """Whether clients must show a password, or a certificate."""
        given = (self.password, self.password_file, self.users_file, self.tls_ca_file)
        return any(each is not None for each in given)

    @property
    def tls(self) -> dict[str, Any]:
        """The settings of TLS, and whether it is on: `tls`."""
        names = [name for name in specs(type(self)) if name.startswith("tls_")]
        given = {name: getattr(self, name) for name in names}
        return {"tls": self.tls_cert_file is not None, **given}

    @property
    def addresses(self) -> tuple[ListenAddress, ...]:
        """`listen` in parts."""
        return tuple(map(_address, self.listen))

    @property
    def size_bytes(self) -> int:
        """The limit in bytes."""
        return int(self.size_gb * GB)

    def users(self) -> list[NodeUser]:
        """Who may do what; empty: everybody everything.

        Raises:
            ConfigError: A file is missing or malformed.
        """
        if self.users_file is not None:
            return _users_of(FilePath(self.users_file))
        password = self.password
        if self.password_file is not None:
            password = _word_of(FilePath(self.password_file))
        if password is None:
            return []
        return [NodeUser(name="default", password=password, read=("",), write=("",), admin=True)]


def _address(text: str) -> ListenAddress:
    if text.startswith("unix:") and len(text) > len("unix:"):
        return ListenAddress(path=os.path.abspath(text.removeprefix("unix:")))
    host, _, port = text.rpartition(":")
    fits = bool(host) and port.isascii() and port.isdigit() and int(port) <= 65_535
    if not fits or (":" in host) != (host.startswith("[") and host.endswith("]")):
        raise ConfigError(f"listen: {shown(text)} is not valid; use {_LISTEN}")
    host = {"*": "0.0.0.0"}.get(host, host)
    return ListenAddress(host=host.strip("[]"), port=int(port))


def _word_of(file: FilePath) -> str:
    word = read_small(file, "password_file", secret=True).decode("utf-8", "replace").strip()
    if not word or "\n" in word:
        raise ConfigError(f"password_file {file} does not hold one line")
    return word


def _users_of(file: FilePath) -> list[NodeUser]:
    raw, users = read_small(file, "users_file", secret=True), None
    with suppress(msgspec.DecodeError, ValueError):  # these errors may quote the file
        users = msgspec.yaml.decode(raw, type=list[NodeUser])
    if users is None:
        raise ConfigError(
            f"users_file {file} is no list of users; write e.g. "
            '[{"name": "default", "password": "...", "read": [""], "write": ["kv:"]}]'
        )
    if not users:
        raise ConfigError(f"users_file {file} names no user; nobody could connect")
    if any(not user.password for user in users):
        raise ConfigError(f"users_file {file}: a user has an empty password")
    return users
