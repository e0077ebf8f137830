"""All settings of a cache, as one frozen object that is checked when it is made."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Self

from kvferry.config.cache_settings import CacheSettings
from kvferry.config.sources import SECTION, examine
from kvferry.errors import ConfigError, UsageError

__all__ = ["CacheConfig", "chosen_config"]

_log = logging.getLogger("kvferry.config")


class CacheConfig(CacheSettings, frozen=True, kw_only=True):
    """What is cached, where, and how long it may take, by the settings of `CacheSettings`."""

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        section: str = SECTION,
        environ: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Self:
        """The settings of this call, of a file and of the environment; see the package.

        Args:
            path: The file; default: ``KVFERRY_CONFIG_FILE``, then ``LMCACHE_CONFIG_FILE``, or none.
            section: Where in the file.
            environ: Default: of this process.
            **overrides: Settings, where not None. `remote_url` and the other names that LMCache
                uses are understood here as well.

        Raises:
            ConfigError: The file is missing or malformed, or a setting is.
        """
        found = examine(path, section=section, environ=environ, **overrides)
        config = cls(**found.settings())
        found.log(_log)
        return config


def chosen_config(
    chunk_size: int, config: CacheConfig | None, settings: dict[str, Any]
) -> CacheConfig:
    """The settings of a cache with such chunks: those given, or single ones from all sources.

    Raises:
        ConfigError: They name another chunk size, or one cannot be.
        UsageError: Both are given.
    """
    if config is None:
        config = CacheConfig.load(**{"chunk_size": chunk_size, **settings})
    elif settings:
        raise UsageError("pass either config or single settings, not both")
    if config.chunk_size not in (chunk_size, CacheConfig().chunk_size):
        raise ConfigError(
            f"chunk_size is {config.chunk_size} in the settings and {chunk_size} in the layout; "
            "make them equal"
        )
    return config
