"""The base of drivers over a native client: values in frames on servers, and a presence view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kvferry import _native
from kvferry.client.handle import emit_log
from kvferry.client.presence import view_of
from kvferry.client.sync import RedisClient
from kvferry.config import ClientConfig
from kvferry.connectors.base import Key, Space
from kvferry.connectors.native import NativeConnector

__all__ = ["ClientConnector"]


class ClientConnector(NativeConnector):
    """Values on servers that a client reaches; see `Connector`.

    Args:
        space: What it is opened with.
        config: How the servers are reached.
        client: A client to share instead; the connector then leaves it open.

    Attributes:
        owns: Whether it deletes values that are of no use.
    """

    owns: ClassVar[bool] = True

    def __init__(
        self, space: Space, config: ClientConfig, *, client: RedisClient | None = None
    ) -> None:
        self.config = config
        self._owns_client = client is None
        self._client = client or RedisClient.from_config(config)
        super().__init__(space)

    def _where(self) -> str:
        return self.config.address

    def _open(self, space: Space) -> _native.Connector:
        view = view_of(self.config, space.prefix)
        seat, keys_max, load_max, optional = view or (None, 0, 0, True)
        return _native.open_redis_connector(
            self._client._handle(),
            space.prefix.encode(),
            space.identity,
            space.value_size_bytes,
            space.description,
            seat,
            keys_max,
            load_max,
            optional,
            self.owns,
        )

    @property
    def presence(self) -> str:
        """What the presence view can say: "synced", "syncing", or "off: " and why."""
        found = self._handle().presence()
        if found is None:
            return "off: the setting says so" if self.config.presence == "off" else "off"
        counts, why = found
        synced = counts["nodes"] == counts["nodes_synced"] > 0
        return "synced" if synced else f"off: {why}" if why else "syncing"

    def absent(self, key: Key) -> bool:
        """Whether the presence view knows that a key is absent; it asks nobody."""
        return self._handle().absent(key)

    def leading(self, keys: Sequence[Key]) -> int | None:
        """How many leading keys are there in all likelihood, where the presence view knows it; else
        None. It asks nobody."""
        return self._handle().leading(tuple(keys))

    @property
    def available(self) -> bool:
        """See `Connector`. What the client has to say is logged on the way."""
        emit_log(self._client._log, self._client._handle())
        return super().available

    def close(self) -> None:
        """See `Connector`."""
        super().close()
        if self._owns_client:
            self._client.close()

    def stats(self) -> Mapping[str, int]:
        """Those of all drivers, and those of the client as ``client_<name>``."""
        client = {f"client_{k}": v for k, v in self._client.stats().items() if isinstance(v, int)}
        found = self._handle().presence()
        view = {f"presence_{k}": v for k, v in found[0].items()} if found is not None else {}
        return {**super().stats(), **client, **view}

    def _deadline_s(self, size_bytes: int) -> float:
        return self.config.deadline_s(size_bytes)

    def _ttl_s(self) -> float | None:
        return self.config.ttl_s
