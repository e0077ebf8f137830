"""Probes of whatever a client can be given: one server, Sentinels' master, a cluster."""

from __future__ import annotations

from contextlib import ExitStack

from kvferry.base.errors import UnavailableError
from kvferry.client.pure.slots import Address, SlotMap, key_slot, parse_slots
from kvferry.config import ClientConfig
from kvferry_lab.bench.server_probe import ServerProbe

__all__ = ["ClusterProbe", "open_probe", "server_of", "shards_of"]


def open_probe(config: ClientConfig) -> ServerProbe:
    """A probe of the server, of the master that Sentinels name, or of all shards."""
    config = server_of(config)
    return ClusterProbe(config) if config.topology == "cluster" else ServerProbe(config)


def server_of(config: ClientConfig) -> ClientConfig:
    """Of Sentinels the settings for the master of this moment; else what was given.

    Raises:
        UnavailableError: No Sentinel answers, or none knows that master.
    """
    if config.topology != "sentinel":
        return config
    why = "none of them knows that master"
    for host, port in config.seeds:
        try:
            with ServerProbe(config.for_sentinel(host, port)) as probe:
                name = config.sentinel_master or ""
                reply = probe.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
        except UnavailableError as error:
            why = str(error)
            continue
        match reply:
            case [bytes() as found, bytes() as number]:
                return config.for_node(found.decode(), int(number))
    raise UnavailableError(f"cannot find {config.address}: {why}")


def shards_of(config: ClientConfig) -> int:
    """How many servers share the keys."""
    if config.topology != "cluster":
        return 1
    with ClusterProbe(config) as probe:
        return probe.shards


class ClusterProbe(ServerProbe):
    """One connection to each primary, as the cluster is now; it follows no changes.

    Commands without a key, and `facts`, are the first seed's that answers.
    """

    def __init__(self, config: ClientConfig) -> None:
        with ExitStack() as undo:
            host = self._enter_cluster(config)
            undo.callback(super().close)
            self._map: SlotMap = parse_slots(self.command("CLUSTER", "SLOTS"), host)
            self._links: dict[Address, ServerProbe] = {}
            undo.callback(self._close_links)
            for owner in self._map.owners:
                if owner is None:
                    raise UnavailableError("the cluster does not serve all slots")
                if owner not in self._links:
                    self._links[owner] = ServerProbe(config.for_node(*owner))
            undo.pop_all()

    @property
    def shards(self) -> int:
        """How many primaries serve slots."""
        return len(self._links)

    def close(self) -> None:
        self._close_links()
        super().close()

    def get(self, key: str) -> bytes | None:
        return self._of(key).get(key)

    def set(self, key: str, value: bytes | memoryview) -> None:
        self._of(key).set(key, value)

    def delete(self, keys: list[str]) -> None:
        for key in keys:  # one command may not name keys of several slots
            self._of(key).delete([key])

    def cpu_s(self) -> float | None:
        known = [cpu_s for link in self._links.values() if (cpu_s := link.cpu_s()) is not None]
        return sum(known) if len(known) == len(self._links) else None

    def facts(self) -> dict[str, str]:
        return {**super().facts(), "shards": str(self.shards)}

    def shard_of(self, key: str) -> Address:
        """The primary that has a key."""
        owner = self._map.owners[key_slot(key.encode())]
        assert owner is not None  # seen in __init__
        return owner

    def _of(self, key: str) -> ServerProbe:
        return self._links[self.shard_of(key)]

    def _close_links(self) -> None:
        for link in self._links.values():
            link.close()

    def _enter_cluster(self, config: ClientConfig) -> str:
        """Connect to the first seed that answers; its host."""
        why: UnavailableError | None = None
        for host, port in config.seeds:
            try:
                super().__init__(config.for_node(host, port))
                return host
            except UnavailableError as error:
                why = error
        raise UnavailableError(f"cannot connect to {config.address}: {why}") from why
