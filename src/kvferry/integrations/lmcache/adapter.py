"""What ``remote_storage_plugins`` of LMCache's in-process engine loads; see space.py.

    remote_storage_plugins: ["kvferry"]
    extra_config:
      remote_storage_plugin.kvferry.module_path: kvferry.integrations.lmcache
      remote_storage_plugin.kvferry.class_name: KvferryAdapter
      remote_storage_plugin.kvferry.url: redis://cache-1:6379

Any name will do that is not one of LMCache's own (its "redis" takes all names that begin so).
"""

from __future__ import annotations

from typing import Any

from lmcache.v1.storage_backend.connector import ConnectorAdapter

from kvferry.integrations.lmcache.remote import KvferryConnector
from kvferry.integrations.lmcache.space import engine_settings

__all__ = ["KvferryAdapter"]

_SCHEME = "plugin://"


class KvferryAdapter(ConnectorAdapter):  # type: ignore[misc]  # LMCache is not there for mypy
    """Makes a `KvferryConnector` for the plug-in that names this class."""

    def __init__(self) -> None:
        super().__init__(_SCHEME)

    def can_parse(self, url: str) -> bool:
        """LMCache asks its own adapters first, so every plug-in that is left may be ours."""
        return url.startswith(_SCHEME)

    def create_connector(self, context: Any) -> KvferryConnector:
        """The connector for LMCache's ``ConnectorContext``.

        Raises:
            ConfigError, UsageError: See `engine_settings`.
        """
        name = context.plugin_name or context.url.removeprefix(_SCHEME)
        backend = context.local_cpu_backend
        return KvferryConnector(
            context.loop,
            backend,
            context.config,
            metadata=context.metadata or getattr(backend, "metadata", None),
            settings=engine_settings(context.config, name),
        )
