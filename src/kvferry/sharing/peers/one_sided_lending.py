"""What an instance does beside its sockets: lend its pages to one-sided reads, and read likewise.

Over NIXL where the settings say `transfer_channel: nixl` and it is installed; else from process to
process on one host. Not where the settings ask for TLS.

Threads: any.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Self

from kvferry.base.errors import UnavailableError
from kvferry.cache.memory import Memory
from kvferry.config.peers import PeerSettings
from kvferry.connectors.agent import Agent, ProcessAgent
from kvferry.connectors.nixl_agent import NixlAgent, NixlMissing
from kvferry.sharing.node.lending import LendingNode

__all__ = ["OneSided"]

_log = logging.getLogger("kvferry.cache")


class OneSided:
    """See the module.

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
    def open(cls, settings: PeerSettings, node: LendingNode) -> Self | None:
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
