"""Four servers as one cluster on this machine, without replicas: `Stores`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from kvferry.config import ClientConfig
from kvferry.embedded.program import ServerBinary
from kvferry_lab.bench.server_probe import ServerProbe
from kvferry_lab.servers.lab_server import HOST, LabServer, free_port, wait_until

__all__ = ["SERVERS", "Stores"]

SERVERS = 4
_SLOTS = 16_384
_WHOLE_S = 60.0


class Stores:
    """See the module. Closed by leaving its ``with``."""

    def __init__(self, binary: ServerBinary) -> None:
        self._nodes: list[LabServer] = []
        with ExitStack() as undo:
            undo.callback(self.stop)
            buses = []
            for _ in range(SERVERS):
                buses.append(free_port())
                settings = ["cluster-enabled yes", f"cluster-port {buses[-1]}"]
                self._nodes.append(LabServer(binary, settings))
            for index, node in enumerate(self._nodes):
                with ServerProbe(node.config) as probe:
                    low, high = (_SLOTS * at // SERVERS for at in (index, index + 1))
                    probe.command("CLUSTER", "SET-CONFIG-EPOCH", str(index + 1))
                    probe.command("CLUSTER", "ADDSLOTSRANGE", str(low), str(high - 1))
                    for other, bus in zip(self._nodes[:index], buses, strict=False):
                        probe.command("CLUSTER", "MEET", HOST, str(other.port), str(bus))
            wait_until("the cluster to be whole", self._is_whole, _WHOLE_S)
            undo.pop_all()

    @property
    def config(self) -> ClientConfig:
        """How a client finds it: every node is a seed."""
        first, *others = (node.port for node in self._nodes)
        nodes = tuple(f"{HOST}:{port}" for port in others)
        return ClientConfig(host=HOST, port=first, topology="cluster", nodes=nodes)

    def clear(self) -> None:
        """Delete everything."""
        for node in self._nodes:
            with ServerProbe(node.config) as probe:
                probe.command("FLUSHALL")

    def stop(self) -> None:
        """End them; idempotent."""
        for node in self._nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _is_whole(self) -> bool:
        wanted = (f"cluster_slots_ok:{_SLOTS}", f"cluster_known_nodes:{SERVERS}", "state:ok")
        for node in self._nodes:
            with ServerProbe(node.config) as probe:
                said = probe.command("CLUSTER", "INFO")
                assert isinstance(said, bytes)
                if not all(word in said.decode() for word in wanted):
                    return False
        return True
