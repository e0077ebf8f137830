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
from typing import Any

from kvferry.config.integrations import LmcacheSettings, read_with_client

__all__ = ["read_settings"]


def read_settings(params: Mapping[str, Any], where: str = "adapter_params") -> LmcacheSettings:
    """Read and check the keys.

    Args:
        params: By name. ``None`` stands for "not given".
        where: What holds them, for the errors.

    Raises:
        ConfigError: A key is unknown, or its value cannot be right; the text names it and `where`,
            and holds no secret.
    """
    return read_with_client(LmcacheSettings, params, where)
