"""The settings of a vLLM connector: from its command line, the environment and a file.

    --kv-transfer-config '{"kv_connector": "KvferryConnector", ...,
                           "kv_connector_extra_config": {"kvferry.remote_url": "redis://cache-1"}}'

A key ``kvferry.NAME`` is a setting of `kvferry.CacheConfig`, or one of `VllmConnectorSettings`.
They win over the environment and the file (``KVFERRY_CONFIG_FILE``, ``LMCACHE_CONFIG_FILE``), see
`kvferry.config`. Some settings are another thing here than in an engine of one's own:

- `chunk_size` is a multiple of the block size of vLLM; others are rounded up, which is logged. Over
  a cache server it is that of the server where nobody names one here.
- `prefault` is false: vLLM's start does not wait until all memory is there.
- `enable_async_loading` is always on: what the scheduler asks for is read at once, while the
  request still waits for its turn.

A key ``lmcache.NAME`` is a setting of LMCache, and counts where ``kvferry.NAME`` is not there.
Other keys are somebody else's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from kvferry.base.errors import ConfigError
from kvferry.config import CacheConfig, examine
from kvferry.config.foreign import ENGINE
from kvferry.config.integrations import VllmConnectorSettings
from kvferry.config.setting import specs

__all__ = ["PREFIX", "read_settings", "rounded_chunk_size"]

_log = logging.getLogger("kvferry.integrations.vllm")

PREFIX = "kvferry."
_THEIRS, _THEIR_SERVER = "lmcache.", "lmcache.mp."  # the latter: see `mp_settings`
_OWN = [name for name, spec in specs(VllmConnectorSettings).items() if not spec.program]
_DEFAULTS: dict[str, Any] = {"prefault": False}


def read_settings(
    extra_config: Mapping[str, Any],
    block_size: int,
    *,
    environ: Mapping[str, str] | None = None,
    quiet: bool = False,
    chunk_size: Callable[[], int] | None = None,
) -> VllmConnectorSettings:
    """The settings from all places.

    Args:
        extra_config: ``kv_connector_extra_config``.
        block_size: Tokens of a block of vLLM.
        environ: Default: of this process.
        quiet: Say nothing in the log; another half of the connector has done so.
        chunk_size: Is asked where no setting names one; 0: the default.

    Raises:
        ConfigError: A setting is unknown or cannot be; the text names it.
    """
    ours = {
        name.removeprefix(prefix): value
        for prefix in (_THEIRS, PREFIX)
        for name, value in extra_config.items()
        if name.startswith(prefix) and not name.startswith(_THEIR_SERVER)
    }
    try:
        own = {name: ours.pop(name) for name in _OWN if name in ours}
        found = examine(environ=environ, **ours)
        settings = found.settings()
        for theirs, (value, _) in found.engine.items():
            name, meant = ENGINE[theirs]
            own.setdefault(name, meant[value])
        connector = VllmConnectorSettings(**own)
    except ConfigError as error:
        raise ConfigError(f"kv_connector_extra_config: {error}") from None
    for name, value in _DEFAULTS.items():
        if found.values[name][1] == "default":
            settings[name] = value
    if chunk_size is not None and found.values["chunk_size"][1] == "default":
        settings["chunk_size"] = chunk_size() or settings["chunk_size"]
    asked = settings["chunk_size"]
    settings["chunk_size"] = rounded_chunk_size(asked, block_size)
    if not quiet:
        found.log(_log)
        if settings["chunk_size"] != asked:
            _log.info(
                "kvferry: chunk_size %d is no multiple of vLLM's block (%d tokens); chunks have %d",
                asked,
                block_size,
                settings["chunk_size"],
            )
    return connector.replace(cache=CacheConfig(**settings))


def rounded_chunk_size(chunk_size: int, block_size: int) -> int:
    """The next multiple of the block size."""
    return -(-chunk_size // block_size) * block_size
