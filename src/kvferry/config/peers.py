"""The settings of sharing between instances, under the names that LMCache's P2P guide has."""

from __future__ import annotations

import socket
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from kvferry.base.errors import ConfigError
from kvferry.config.file import read_token
from kvferry.config.remote_sources import AllowedHosts
from kvferry.config.setting import Host, Path, Secret, Settings, Text, setting
from kvferry.config.url import is_loopback, parse_endpoint

__all__ = ["PeerSettings"]

_Ports = Annotated[
    tuple[Annotated[int, setting(ge=0, le=65535)], ...],
    setting(use="a port, or a list with one for each rank"),
]
_Endpoints = Annotated[str, setting(min_length=1, use="HOST:PORT", quoted=False)]


class PeerSettings(Settings, frozen=True, kw_only=True):
    """What an instance shares, and where its controller is.

    Attributes:
        enable_p2p: Lend the chunks in memory to other instances, and read theirs. The controller
            says who they are.
        p2p_host: The address where other instances reach this one. It listens there too, unless
            `p2p_bind` names another address.
        p2p_bind: The address of this host to listen on, e.g. "0.0.0.0" in a pod.
        p2p_init_ports: The port at which other instances read; a list has one for each rank. 0
            takes any that is free.
        p2p_lookup_ports: A second port of the same service, for whoever was told both.
        p2p_secret: The word that instances and their controller must know. It is needed where other
            hosts can connect, unless instances have certificates and the controller is on this
            host. Without one, processes of this user on this host make one.
        p2p_secret_file: A file with the word that instances and their controller must know.
        p2p_tls_cert_file: The PEM file of this instance's certificate for p2p_host, and its chain.
            With it instances read each other over TLS, and show each other their certificates.
        p2p_tls_key_file: The PEM file of the key of this instance's certificate.
        p2p_tls_ca_file: The PEM file of the authorities whose certificates instances have.
        transfer_channel: The way of chunks between instances: "nixl" is NIXL where both sides have
            it; elsewhere, and with "tcp", memory of the other process on one host, and sockets.
        enable_controller: Register with a controller, and tell it what memory holds.
        lmcache_instance_id: The name of this instance, the same over restarts. Without it that of
            the host.
        controller_pull_url: The HOST:PORT of the controller that takes updates; those of several
            controllers with one directory have commas between.
        controller_reply_url: The HOST:PORT of the controller that answers questions; those of
            several have commas between.
        lookup_backoff_time: The seconds for which a peer that failed is not asked, at first.
        remote_kv_sources: The hosts, addresses and networks (10.0.0.0/8) whose nodes requests may
            name in `kv_transfer_params.remote_kv_source`. Without it requests may name none.
    """

    enable_p2p: Annotated[
        bool, setting(needs=("p2p_host", "p2p_init_ports", "enable_controller"))
    ] = False
    p2p_host: Host | None = None
    p2p_bind: Host | None = None
    p2p_init_ports: _Ports = ()
    p2p_lookup_ports: _Ports = ()
    p2p_secret: Secret | None = None
    p2p_secret_file: Path | None = None
    p2p_tls_cert_file: Annotated[Path, setting(needs=("p2p_tls_key_file",))] | None = None
    p2p_tls_key_file: Annotated[Path, setting(needs=("p2p_tls_ca_file",))] | None = None
    p2p_tls_ca_file: Annotated[Path, setting(needs=("p2p_tls_cert_file",))] | None = None
    transfer_channel: Literal["tcp", "nixl"] = "tcp"
    enable_controller: Annotated[
        bool, setting(needs=("controller_pull_url", "controller_reply_url"))
    ] = False
    lmcache_instance_id: Text | None = None
    controller_pull_url: _Endpoints | None = None
    controller_reply_url: _Endpoints | None = None
    lookup_backoff_time: Annotated[float, setting(ge=0, le=3600, unit="seconds")] = 0.01
    remote_kv_sources: tuple[str, ...] = ()

    def _check(self) -> None:
        AllowedHosts(self.remote_kv_sources)
        if self.enable_p2p:
            bound = self.p2p_bind or self.p2p_host or ""
            if not is_loopback(bound) and not (
                self.p2p_secret or self.p2p_secret_file or self.p2p_tls_ca_file
            ):
                raise ConfigError(
                    f"{bound!r} is reachable from other hosts, which needs a secret; set "
                    "p2p_secret_file or p2p_tls_ca_file, or listen on localhost"
                )
        if self.p2p_secret and self.p2p_secret_file:
            raise ConfigError("p2p_secret and p2p_secret_file are the same; keep one")
        if self.enable_controller:
            counts = {
                _count_endpoints(name, getattr(self, name) or "")
                for name in ("controller_pull_url", "controller_reply_url")
            }
            if len(counts) > 1:
                raise ConfigError(
                    "controller_pull_url and controller_reply_url name the same controllers, in "
                    "one order"
                )

    @property
    def instance_id(self) -> str:
        """`lmcache_instance_id`; without, a name of this host and the port."""
        if self.lmcache_instance_id is not None:
            return self.lmcache_instance_id
        port = self.p2p_init_ports[0] if self.p2p_init_ports else 0
        return f"{socket.gethostname()}:{port}" if port else socket.gethostname()

    @property
    def tls(self) -> dict[str, Any]:
        """The same for both ends of TLS between instances, in the words of `ClientConfig`."""
        if self.p2p_tls_cert_file is None:
            return {}
        return {
            "tls": True,
            "tls_cert_file": self.p2p_tls_cert_file,
            "tls_key_file": self.p2p_tls_key_file,
            "tls_ca_file": self.p2p_tls_ca_file,
        }

    @property
    def secret(self) -> str:
        """What instances and controller know of each other; "": nothing is needed.

        Raises:
            ConfigError: `p2p_secret_file` is missing, or holds something else.
        """
        if self.p2p_secret_file is None:
            return self.p2p_secret or ""
        return read_token(FilePath(self.p2p_secret_file), "p2p_secret_file")


def _count_endpoints(name: str, value: str) -> int:
    for one in value.split(","):
        try:
            host, port = parse_endpoint(one)
        except ValueError:
            host, port = "", None
        if not host or port is None:
            raise ConfigError(f"{name} is not valid; use HOST:PORT")
    return value.count(",") + 1
