"""LabCluster: a cluster on this machine, made whole in about two seconds.

    with LabCluster(find_server(), shards=3, replicas=1) as cluster:
        cluster.config, cluster.shards[0][0].kill(), cluster.wait_until_promoted(0)

`shards[i]` are the servers that began as one primary, the first, and its replicas. The slots of a
lost shard are down and the others answer on, as is right for a cache. (The two seconds are the
servers': a primary waits so long before it first takes part.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Self

from kvferry.base.errors import ServerError, StoreError, UnavailableError
from kvferry.config import ClientConfig
from kvferry.embedded.program import ServerBinary
from kvferry_lab.bench.server_probe import ServerProbe
from kvferry_lab.servers.lab_server import HOST, LabServer, free_port, wait_until

__all__ = ["LabCluster"]

_SLOTS = 16384
_WHOLE_TIMEOUT_S = 60.0
_NODE_TIMEOUT_MS = 1000
_START_ATTEMPTS = 5


class LabCluster:
    """See the module.

    Raises:
        StoreError, ServerError: The program did not start, or knows no clusters of today.
    """

    def __init__(self, binary: ServerBinary, *, shards: int = 3, replicas: int = 0) -> None:
        self._bus_ports: dict[LabServer, int] = {}
        with ExitStack() as undo:
            undo.callback(self.stop)
            self.nodes: list[LabServer] = []
            with ThreadPoolExecutor(shards * (replicas + 1)) as pool:
                begun = [pool.submit(self._start, binary) for _ in range(shards * (replicas + 1))]
            self.nodes += [one.result() for one in begun if one.exception() is None]
            for one in begun:
                one.result()
            self.shards = [self.nodes[index::shards] for index in range(shards)]
            self._introduce()
            wait_until("the cluster to be whole", self.is_whole, _WHOLE_TIMEOUT_S)
            undo.pop_all()

    @property
    def config(self) -> ClientConfig:
        """How a client finds it: every node is a seed."""
        first, *others = self.nodes
        return ClientConfig(
            host=HOST,
            port=first.port,
            topology="cluster",
            nodes=tuple(f"{HOST}:{node.port}" for node in others),
        )

    def stop(self) -> None:
        """End all of them; idempotent."""
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def is_whole(self) -> bool:
        """Whether every node serves, knows all others, and every replica has its primary's keys."""
        with self._probes() as probes:
            return all(self._settled(probe) for probe in probes)

    def wait_until_promoted(self, shard: int, timeout_s: float = 30.0) -> float:
        """After the loss of its primary: until a replica leads.

        Returns:
            The moment, of `time.perf_counter()`, at which one said so.
        """
        _, *replicas = self.shards[shard]
        with ExitStack() as stack:
            probes = [stack.enter_context(ServerProbe(node.config)) for node in replicas]
            wait_until("a promotion", lambda: any(_leads(probe) for probe in probes), timeout_s)
        return time.perf_counter()

    def wait_until_copied(self, shard: int) -> None:
        """Until every replica of a shard has received what its primary was told."""
        primary, *replicas = self.shards[shard]
        with ServerProbe(primary.config) as probe:

            def copied() -> bool:
                said = probe.info("replication")
                lines = [said.get(f"slave{index}", "") for index in range(len(replicas))]
                return all(f"offset={said['master_repl_offset']}," in line for line in lines)

            wait_until("the replicas to follow", copied, _WHOLE_TIMEOUT_S)

    def _start(self, binary: ServerBinary) -> LabServer:
        for _ in range(_START_ATTEMPTS - 1):
            try:
                return self._start_once(binary)
            except StoreError as error:  # it has tried other ports of its own, not of the bus
                if "already in use" not in str(error):
                    raise
        return self._start_once(binary)

    def _start_once(self, binary: ServerBinary) -> LabServer:
        bus_port = free_port()
        settings = [
            "cluster-enabled yes",
            f"cluster-port {bus_port}",
            f"cluster-node-timeout {_NODE_TIMEOUT_MS}",
            "cluster-require-full-coverage no",
            "cluster-allow-replica-migration no",
            "repl-diskless-sync-delay 0",
        ]
        server = LabServer(binary, settings)
        self._bus_ports[server] = bus_port
        return server

    @contextmanager
    def _probes(self) -> Iterator[list[ServerProbe]]:
        with ExitStack() as stack:
            yield [stack.enter_context(ServerProbe(node.config)) for node in self.nodes]

    def _introduce(self) -> None:
        """Epochs and slots first, then all meet all (gossip would take seconds), then replicas."""
        count = len(self.shards)
        with self._probes() as probes:
            for index, probe in enumerate(probes):
                probe.command("CLUSTER", "SET-CONFIG-EPOCH", str(index + 1))
                if index < count:
                    low, high = (_SLOTS * at // count for at in (index, index + 1))
                    probe.command("CLUSTER", "ADDSLOTSRANGE", str(low), str(high - 1))
            for index, probe in enumerate(probes):
                for other in self.nodes[:index]:
                    bus_port = str(self._bus_ports[other])
                    probe.command("CLUSTER", "MEET", HOST, str(other.port), bus_port)
            for index, replica in enumerate(probes[count:]):
                _follow(replica, probes[index % count])

    def _settled(self, probe: ServerProbe) -> bool:
        state = _text(probe, "CLUSTER", "INFO")
        nodes = _text(probe, "CLUSTER", "NODES").splitlines()
        followers = sum("slave" in line.split()[2] for line in nodes)
        return (
            "cluster_state:ok" in state
            and f"cluster_slots_ok:{_SLOTS}" in state  # it knows who serves what
            and len(nodes) == len(self.nodes)
            and followers == len(self.nodes) - len(self.shards)
            and all(line.split()[7] == "connected" for line in nodes)
            and probe.info("replication").get("master_link_status", "up") == "up"
        )


def _follow(replica: ServerProbe, primary: ServerProbe) -> None:
    name = _text(primary, "CLUSTER", "MYID")

    def done() -> bool:
        try:
            replica.command("CLUSTER", "REPLICATE", name)
        except ServerError:  # it has not heard of that node yet
            return False
        return True

    wait_until("a replica to know its primary", done, _WHOLE_TIMEOUT_S)


def _leads(probe: ServerProbe) -> bool:
    role = probe.command("ROLE")
    return isinstance(role, list) and role[:1] == [b"master"]


def _text(probe: ServerProbe, *words: str) -> str:
    reply = probe.command(*words)
    if not isinstance(reply, bytes):
        raise UnavailableError(f"{' '.join(words)} has no text for an answer")
    return reply.decode(errors="replace")
