"""How an instance lends what its caches have in memory: by a node, and by one-sided reads.

`LendingNode` answers readers over sockets; nobody writes there. `OneSided` lends the same pages to
one-sided reads, and reads likewise: over NIXL where the settings say `transfer_channel: nixl` and
it is installed, else from process to process on one host. Where the settings ask for TLS there are
no one-sided reads.

Threads: any.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

from kvferry import __version__, _native
from kvferry.base.errors import UnavailableError
from kvferry.cache.memory import Memory
from kvferry.config import CacheConfig
from kvferry.config.endpoints import address_of
from kvferry.connectors.one_sided.agent import Agent, ProcessAgent
from kvferry.connectors.one_sided.nixl_agent import NixlAgent, NixlMissing
from kvferry.sharing.node import default_threads

__all__ = ["USER", "LendingNode", "OneSided"]

_log = logging.getLogger("kvferry.cache")

USER = "peer"  # who may read, where a secret is needed
_CONNECTIONS_MAX = 10_000
_STALL_S = 10.0
_REQUEST_BYTES_MAX = 1 << 20  # nobody sends values


class LendingNode(_native.Node):
    """A node without a pool: it serves the pages of caches, from its making to `stop`.

    Args:
        host: Where it listens.
        ports: On all of these; 0: any free one.
        secret: What readers must say, as the user `USER`; empty: there is no word for it. Then
            nobody reads over TCP, unless by a certificate, and who may connect to `unix_path` may
            read there.
        tls: Settings of TLS in the words of `ClientConfig`: readers must show a certificate of
            these authorities; empty: none.
        in_flight_bytes_max: What may be on its way to all readers at a time; beyond it they hear
            BUSY.
        unix_path: A Unix socket for readers of this user on this host, "*" for the first port;
            empty: none.

    Raises:
        ConfigError: The host is no address of this one.
        TlsError: A certificate or key is of no use.
        UnavailableError: A port is taken.
    """

    def __init__(
        self,
        host: str,
        ports: Sequence[int],
        secret: str,
        tls: Mapping[str, Any],
        in_flight_bytes_max: int,
        unix_path: str = "",
    ) -> None:
        address = address_of("p2p_bind", host)
        reader = {"name": USER, "password": secret, "read": ["kvf:"], "write": [], "admin": False}
        if not secret and tls:
            reader |= {"name": "default", "password": None}
        elif not secret:
            reader |= {"password": secrets.token_hex(32), "on_unix": True}
        super().__init__(
            listen=[("", address, port) for port in ports] + [(unix_path, "", 0)] * bool(unix_path),
            size_bytes=0,
            policy="LRU",
            hugetlb=False,
            prefault=False,
            users=[reader],
            state_file="",
            threads=default_threads(),
            connections_max=_CONNECTIONS_MAX,
            in_flight_bytes_max=in_flight_bytes_max,
            value_bytes_max=_REQUEST_BYTES_MAX,
            stall_timeout_s=_STALL_S,
            version=__version__,
            lends=True,
            tls=dict(tls),
        )

    @property
    def ports(self) -> list[int]:
        """Where it listens."""
        endpoints = self.endpoints()
        return [int(each.rpartition(":")[2]) for each in endpoints if not each.startswith("unix:")]


class OneSided:
    """The memory of this process as one-sided reads reach it.

    Args:
        agent: Of this process.
        node: Answers LEASE.
    """

    def __init__(self, agent: Agent, node: LendingNode) -> None:
        self.agent = agent
        self._node = node
        self._lock = threading.Lock()
        self._lent: Counter[int] = Counter()  # caches that have pages there, by address

    @classmethod
    def open(cls, settings: CacheConfig, node: LendingNode) -> Self | None:
        """As the settings say; None: it is all sockets."""
        nixl = settings.transfer_channel == "nixl"
        if settings.tls:
            if nixl:
                _log.info("transfer_channel nixl: chunks go over TLS, and NIXL encrypts nothing")
            return None
        try:
            return cls(NixlAgent() if nixl else ProcessAgent(), node)
        except NixlMissing as error:
            _log.info("transfer_channel nixl: chunks go over the node in its place: %s", error)
            return cls(ProcessAgent(), node)

    def lend(self, memory: Memory) -> None:
        """Have the pages of a cache read one-sided, too."""
        with self._lock:
            try:
                self.agent.lend(memory.start_address, memory.whole.nbytes, memory.whole)
            except UnavailableError as error:
                _log.warning("chunks are lent over sockets, not %s: %s", self.agent.way, error)
                return
            self._lent[memory.start_address] += 1
            self._node.set_agent(self.agent.incarnation, self.agent.metadata)

    def withdraw(self, memory: Memory) -> None:
        """A cache ends; its pages go when no other one has some there."""
        address = memory.start_address
        with self._lock:
            self._lent[address] -= 1
            if self._lent[address] == 0:
                self.agent.withdraw(address)
                self._node.set_agent(self.agent.incarnation, self.agent.metadata)
