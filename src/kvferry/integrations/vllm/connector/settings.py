"""The settings of the vLLM connectors: from vLLM's command line, the environment and a file.

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

The connector over a cache server (`read_mp_settings`) has settings of its own:

    "kv_connector_extra_config": {"kvferry.mp.host": "tcp://localhost", "kvferry.mp.port": 6555}

A key ``kvferry.mp.NAME`` is a setting of `VllmServerSettings`. ``lmcache.mp.host`` and
``lmcache.mp.port`` are read where those are missing. Without any of them ``KVFERRY_SERVER_URL``
says where the server is, and else it is at tcp://localhost:5555. Of the settings above it has
`ENGINE_SETTINGS`; memory and stores are those of the server, and are refused here, where nobody
would read them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvferry.base.errors import ConfigError
from kvferry.config import CacheConfig, examine
from kvferry.config.foreign import ENGINE
from kvferry.config.integrations import VllmConnectorSettings, VllmServerSettings
from kvferry.config.setting import specs
from kvferry.server.client.address import DEFAULT_URL, read_url

__all__ = [
    "PREFIX",
    "MpSettings",
    "read_mp_settings",
    "read_settings",
    "rounded_chunk_size",
]

_log = logging.getLogger("kvferry.integrations.vllm")

PREFIX = "kvferry."
_THEIRS, _THEIR_SERVER = "lmcache.", "lmcache.mp."
_OWN = [name for name, spec in specs(VllmConnectorSettings).items() if not spec.program]
_DEFAULTS: dict[str, Any] = {"prefault": False}
_MP = f"{PREFIX}mp."
_HAS_PORT = re.compile(r"(?:tcp://)?(?:\[[^]]*\]|[^:/]+):[0-9]+", re.ASCII)
# Of the in-process connector, those that say what the engine does.
ENGINE_SETTINGS = (
    "chunk_size",
    "layerwise",
    "lookup_timeout_s",
    "retrieve_timeout_s",
    "save_generated",
    "weights_version",
)


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


@dataclass(frozen=True, kw_only=True)
class MpSettings:
    """Where the server is, and what the connector does.

    Attributes:
        url: Of the server.
        token_file: See `kvferry.server.Client`.
        connector: Of it, `connector.cache` counts what `ENGINE_SETTINGS` names.
    """

    url: str
    token_file: Path | None
    connector: VllmConnectorSettings


def read_mp_settings(
    extra_config: Mapping[str, Any],
    block_size: int,
    *,
    environ: Mapping[str, str] | None = None,
    quiet: bool = False,
    chunk_size: Callable[[str, Path | None], int] | None = None,
) -> MpSettings:
    """The settings from all places.

    Args:
        extra_config: ``kv_connector_extra_config``.
        block_size: Tokens of a block of vLLM.
        environ: Default: of this process.
        quiet: Say nothing in the log; another half of the connector has done so.
        chunk_size: Is asked with `url` and `token_file` where no setting names one; 0: the
            default of `CacheConfig`.

    Raises:
        ConfigError: A setting is unknown or cannot be; the text names it.
    """
    environ = os.environ if environ is None else environ
    known = specs(VllmServerSettings)
    for name in extra_config:
        if name.startswith(_MP) and name.removeprefix(_MP) not in known:
            raise ConfigError(
                f"kv_connector_extra_config: unknown setting {name!r}; "
                f"there are {', '.join(_MP + each for each in known)}"
            )
    rest = {name: value for name, value in extra_config.items() if not name.startswith(_MP)}
    for name in rest:
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in ENGINE_SETTINGS:
            raise ConfigError(
                f"kv_connector_extra_config: {name!r} is a setting of the cache server, which has "
                "the memory and the stores; give it to kvferry server"
            )
    ours = {
        name: (prefix + name, extra_config[prefix + name])
        for prefix, names in ((_THEIR_SERVER, ("host", "port")), (_MP, known))
        for name in names
        if prefix + name in extra_config
    }
    url = _url(ours, environ)
    given = ours.get("token_file", ("", None))[1]
    given = known["token_file"].check(given, f"{_MP}token_file")
    token_file = None if given is None else Path(given)
    ask = None if chunk_size is None else partial(chunk_size, url, token_file)
    return MpSettings(
        url=url,
        token_file=token_file,
        connector=read_settings(rest, block_size, environ=environ, quiet=quiet, chunk_size=ask),
    )


def _url(ours: Mapping[str, tuple[str, Any]], environ: Mapping[str, str]) -> str:
    if "host" not in ours and "port" not in ours:
        return read_url(environ.get("KVFERRY_SERVER_URL") or DEFAULT_URL)
    known = specs(VllmServerSettings)
    host_name, host = ours.get("host", (f"{_MP}host", known["host"].default))
    port_name, port = ours.get("port", (f"{_MP}port", None))
    host = known["host"].check(host, host_name)
    if isinstance(port, str):
        port = known["port"].parse(port, port_name)
    port = known["port"].check(port, port_name)
    url = str(host)
    if not url.startswith("ipc://"):
        if "://" not in url:
            url = f"tcp://{url}"
        if not _HAS_PORT.fullmatch(url):
            url = f"{url}:{port or 5555}"
        elif port is not None and not url.endswith(f":{port}"):
            raise ConfigError(f"{host_name}={host!r} has another port than {port_name}={port!r}")
    try:
        return read_url(url)
    except ConfigError as error:
        raise ConfigError(f"{host_name}, {port_name}: {error}") from None
