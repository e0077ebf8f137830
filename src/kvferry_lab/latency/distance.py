"""A store at a distance that can be set while its clients are connected.

    with far_store("tun", folder) as far:
        far.url, far.set_rtt(50), far.bytes_passed()

Ways to make the distance, half of the round trip in each direction:

- tun: a user-space link between this network namespace and one of the store's own. Packets are
  delayed, so TCP has its handshakes, windows and slow start. Needs root.
- proxy: a TCP proxy that delays what it forwards. Connections have both ends near by, so windows
  and slow start cost nothing; waiting does. Needs nothing.

Devices, namespace, proxy and store end with us, also when we are killed.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvferry.base.errors import UnavailableError, UsageError
from kvferry.base.host import available_memory_bytes
from kvferry.config import ClientConfig
from kvferry.embedded.program import find_server
from kvferry_lab.bench.programs import (
    DelayProcess,
    FloorProcess,
    LinkProcess,
    ProgramError,
    TunProcess,
)
from kvferry_lab.bench.server_probe import ServerProbe
from kvferry_lab.servers.lab_server import LabServer

__all__ = ["KINDS", "FarStore", "far_store", "proxied"]

KINDS = ("auto", "tun", "proxy")
_NETWORKS = range(1, 255)
_MEMORY_BYTES_MAX = 4 << 30
_CAPACITY_BYTES, _CAPACITY_OPS, _CAPACITY_ROUNDS = 4 << 20, 32, 3


@dataclass(frozen=True)
class FarStore:
    """A store, and the link to it.

    Attributes:
        kind: "tun" or "proxy".
        url: For clients.
        store: What it is, for people.
        gbps: What GETs of 4 MiB moved over eight connections without a distance; None: not
            measured, because the store is somebody's.
        log: Where the commands that pass are written.
    """

    kind: str
    url: str
    store: str
    gbps: float | None
    log: Path
    link: LinkProcess

    @property
    def way(self) -> str:
        """The link for people."""
        speed = "" if self.gbps is None else f", {self.gbps:.2f} GB/s without a distance"
        return f"{self.kind}{speed}"

    def set_rtt(self, rtt_ms: float) -> None:
        """From now on."""
        self.link.set_rtt(rtt_ms)

    def reconnect(self) -> None:
        """End all connections to the store, so that they are made anew.

        TCP remembers the distance of before. For 10 s BBR, say, sends as little as would be on its
        way there.
        """
        with ServerProbe(ClientConfig.from_url(self.url)) as probe:
            probe.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def bytes_passed(self) -> tuple[int, int]:
        """To the store and from it, so far. The log is complete up to now."""
        return self.link.bytes_passed()


@contextmanager
def far_store(kind: str, folder: Path) -> Iterator[FarStore]:
    """A store of our own behind a link; "auto": tun where that is permitted, else proxy.

    Raises:
        UnavailableError: Such a link cannot be made here; the text says why.
        StoreError: There is no server program, or it did not start.
    """
    log = folder / "link.log"
    memory = min(_MEMORY_BYTES_MAX, available_memory_bytes() // 3)
    settings = [f"maxmemory {memory}", "maxmemory-policy allkeys-lru"]
    binary = find_server()
    store = f"{binary.kind} {binary.version}"
    with ExitStack() as stack:
        tun = _tun(stack, kind, log)
        link: LinkProcess
        if tun is not None:
            settings.append("protected-mode no")  # nobody else is in that network
            far = LabServer(binary, settings, host=tun.host, enter=tun.enter)
            config, link = stack.enter_context(far).config, tun
        else:
            server = stack.enter_context(LabServer(binary, settings)).config
            link = DelayProcess(server, rtt_ms=0, split=True, log=str(log))
            stack.enter_context(link)
            config = server.replace(port=link.port)
        found = "proxy" if tun is None else "tun"
        yield FarStore(found, _url(config.host, config.port), store, _capacity(config), log, link)


@contextmanager
def proxied(store: ClientConfig, port: int, folder: Path) -> Iterator[FarStore]:
    """A proxy of a port of ours in front of a store that is there.

    Raises:
        UnavailableError: The port is taken.
    """
    log = folder / "link.log"
    try:
        link = DelayProcess(store, rtt_ms=0, split=True, log=str(log), port=port)
    except ProgramError as error:
        raise UnavailableError(str(error)) from error
    with link:
        yield FarStore("proxy", _url("127.0.0.1", link.port), store.address, None, log, link)


def _tun(stack: ExitStack, kind: str, log: Path) -> TunProcess | None:
    """The link, if it is to be that and can be."""
    if kind == "proxy":
        return None
    if kind not in KINDS:
        raise UsageError(f"a link is one of {', '.join(KINDS)}")
    try:
        if os.geteuid() != 0 or shutil.which("nsenter") is None:
            raise ProgramError("it takes root and nsenter")
        return stack.enter_context(TunProcess(rtt_ms=0, network=_free_network(), log=str(log)))
    except ProgramError as error:
        if kind == "auto":
            return None
        raise UnavailableError(f"no TUN link here: {error}") from error


def _free_network() -> int:
    """One of 198.18.0.0/16, which is for tests like this, that no other link of this host has."""
    for network in random.SystemRandom().sample(_NETWORKS, len(_NETWORKS)):
        with socket.socket() as probe:
            try:
                probe.bind((f"198.18.{network}.1", 0))
            except OSError:
                return network
    raise ProgramError("all networks of links are taken")


def _capacity(config: ClientConfig) -> float:
    """GB/s through the link; leaves the store empty."""
    with FloorProcess(
        config, op="get", size_bytes=_CAPACITY_BYTES, connections=8, ops=_CAPACITY_OPS
    ) as floor:
        gbps = max(float(floor.round()["gbps"]) for _ in range(_CAPACITY_ROUNDS))
    with ServerProbe(config) as probe:
        probe.command("FLUSHALL")
    return gbps


def _url(host: str, port: int) -> str:
    return f"redis://{host}:{port}?same_host=tcp"
