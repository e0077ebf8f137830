"""A cluster, or what Sentinels watch, with the face of one TestServer: for faults of any server.

    server = deployment(cluster)        # or a SentinelGroup
    connect(server.host, server.port, **server.settings)
    server.cli("SET", "key", "value")   # sent to the node that has the key
    server.pause(), server.resume()     # all nodes of it

A command without a key goes to every node that takes writes; the answer is then the last one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.cluster import Cluster
from support.sentinel import SentinelGroup
from support.servers import TestServer

__all__ = ["Deployment", "deployment"]

_KEYLESS = ("CLIENT", "CONFIG", "FLUSHALL", "DBSIZE", "INFO")


class Deployment:
    """See the module."""

    def __init__(self, whole: Cluster | SentinelGroup) -> None:
        self.whole = whole
        self.host, self.port, self.settings = whole.host, whole.port, whole.settings

    def cli(self, *words: bytes | str | int | float) -> Any:
        """Send one command as an administrator, where it belongs; its reply."""
        if str(words[0]) in _KEYLESS:
            return [node.cli(*words) for node in self._leaders()][-1]
        return self._node_of(str(words[1])).cli(*words)

    def info(self, section: str = "everything") -> dict[str, str]:
        """INFO of the nodes that take writes; numbers are added up."""
        added: dict[str, str] = {}
        for node in self._leaders():
            for name, value in node.info(section).items():
                both = value.isdigit() and added.get(name, "").isdigit()
                added[name] = str(int(value) + int(added[name])) if both else value
        return added

    def kill(self) -> None:
        for node in self._data():
            node.kill()

    def restart(self) -> None:
        for node in self._data():
            node.restart()

    def pause(self) -> None:
        for node in self._data():
            node.pause()

    def resume(self) -> None:
        for node in self._data():
            node.resume()

    def _data(self) -> Sequence[TestServer]:
        return self.whole.nodes if isinstance(self.whole, Cluster) else self.whole.data

    def _leaders(self) -> list[TestServer]:
        if isinstance(self.whole, SentinelGroup):
            return [self.whole.master()]
        return [node for node in self.whole.running() if node.leads()]

    def _node_of(self, key: str) -> TestServer:
        return self.whole.node_of(key) if isinstance(self.whole, Cluster) else self.whole.master()


def deployment(whole: Cluster | SentinelGroup) -> Deployment:
    """One for a cluster or a group, whole and empty."""
    whole.wait_until_whole()
    whole.flush()
    return Deployment(whole)
