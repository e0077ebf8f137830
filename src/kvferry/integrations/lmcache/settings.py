"""How a user of LMCache configures us: the keys of ``adapter_params`` and what they become.

All settings of `kvferry.ClientConfig` are keys (``host``, ``port``, ``username``, ``password``,
``tls``, ``topology``, ``nodes``, ``connections``, ``timeout_s``, ``ttl_s``...), and beside them
those of `kvferry.config.integrations.LmcacheSettings`.

What LMCache has as a default and we have as "not given" (an empty user, an empty password) is not
given. What is left open comes from the environment and from ``KVFERRY_CONFIG_FILE``, so secrets
need not stand in a configuration that LMCache logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvferry.client.buffers import KEY_SIZE_BYTES_MAX
from kvferry.config import WORKERS_DEFAULT, ClientConfig, load_client_config
from kvferry.config.integrations import LmcacheSettings, own_and_client
from kvferry.config.setting import specs
from kvferry.errors import ConfigError

__all__ = ["OPTIONS", "Settings", "read_settings"]

OPTIONS = tuple(specs(LmcacheSettings))
# Limit of a question, in seconds, where deadline_s is not less: somebody waits who could compute.
LOOKUP_S = 2.0
NAMESPACE_BYTES_MAX = KEY_SIZE_BYTES_MAX // 4
_NAMESPACE_DEFAULT = "kvferry"
_CONNECTIONS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """What the keys say.

    Attributes:
        config: How the server is reached.
        deadline_s: Limit of every batch, in seconds; None: it grows with the bytes.
        namespace: Goes before every key with a ":"; empty: nothing does.
        verify: Whether values are framed, with checksums.
    """

    config: ClientConfig
    deadline_s: float | None = None
    namespace: str = ""
    verify: bool = False

    @property
    def lookup_s(self) -> float:
        """Limit of a question, in seconds."""
        return min(LOOKUP_S, self.deadline_s or LOOKUP_S)


def read_settings(params: Mapping[str, Any], where: str = "adapter_params") -> Settings:
    """Read and check the keys.

    Args:
        params: By name. ``None`` stands for "not given".
        where: What holds them, for the errors.

    Raises:
        ConfigError: A key is unknown, or its value cannot be right; the text names it and `where`,
            and holds no secret.
    """
    own, client = own_and_client(LmcacheSettings, params, where)
    try:
        return _settings(own, client)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _settings(own: LmcacheSettings, client: dict[str, Any]) -> Settings:
    if own.url is not None and "host" in client:
        raise ConfigError("url and host both name a server; keep one")
    if len(own.namespace.encode()) > NAMESPACE_BYTES_MAX:
        raise ConfigError(f"namespace is longer than {NAMESPACE_BYTES_MAX} bytes")
    if own.num_workers is not None:
        client.setdefault("connections", min(own.num_workers, _CONNECTIONS_MAX))
        client.setdefault("workers", min(own.num_workers, WORKERS_DEFAULT))
    namespace = own.namespace
    if own.verify and not namespace:
        namespace = _NAMESPACE_DEFAULT  # under LMCache's own keys, its own client would read frames
    config = load_client_config(own.config_file, url=own.url, **client)
    return Settings(config, own.deadline_s, namespace, own.verify)
