"""The keys of HiCache's extra config that are ours.

    {"url": "redis://cache-1:6379", "lookup_timeout_s": 0.25, "connections": 16, "ttl_s": 86400}

All others are fields of `kvferry.ClientConfig`. They win over the environment, that over the file
that ``KVFERRY_CONFIG_FILE`` names. What SGLang itself reads out of the same object is left alone; a
key that nobody knows is an error, because a time limit that is misspelt would be none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvferry._url import nearest
from kvferry.config import ClientConfig
from kvferry.config_file import load_client_config
from kvferry.errors import ConfigError

__all__ = ["Settings", "read_settings"]

# Keys of the same object that SGLang reads, in one version or another.
_OF_SGLANG = frozenset(
    (
        *("backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size"),
        *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
        *("hicache_storage_pass_prefix_keys", "extra_backend_tag", "allocator"),
    )
)
_LIMITS = ("lookup_timeout_s", "load_timeout_s", "store_timeout_s")
_TEXTS = ("url", "config_file", "model_path", "revision")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the backend is told.

    Attributes:
        client: How the server is reached.
        lookup_timeout_s: Limit of a question which pages are there.
        load_timeout_s: Limit of a batch of pages that is read, beside the time that its bytes take
            at ``floor_rate_bytes_s``.
        store_timeout_s: The same of a batch that is written.
        model_path: Where the weights are, if it is not where SGLang has them from.
        revision: Of the weights, instead of a fingerprint of their files.
        tag: Separates deployments that shall not share (``extra_backend_tag``).
    """

    client: ClientConfig
    lookup_timeout_s: float = 0.25
    load_timeout_s: float = 2.0
    store_timeout_s: float = 5.0
    model_path: str = ""
    revision: str = ""
    tag: str = ""


def read_settings(extra: Mapping[str, Any] | None) -> Settings:
    """The settings of an extra config.

    Raises:
        ConfigError: A key is unknown or its value cannot be; the text names the key.
    """
    given = {name: value for name, value in (extra or {}).items() if value is not None}
    ours: dict[str, Any] = {"tag": str(given.get("extra_backend_tag", ""))}
    for name in _TEXTS:
        if name in given and not isinstance(given[name], str):
            raise ConfigError(f"{name} of the HiCache extra config is no text")
    for name in _LIMITS:
        if name in given:
            ours[name] = _limit(name, given[name])
    ours |= {name: given[name] for name in ("model_path", "revision") if name in given}
    known = [field.name for field in fields(ClientConfig) if field.name != "credentials"]
    rest = {name: given[name] for name in given if name not in {*_OF_SGLANG, *_LIMITS, *_TEXTS}}
    for name in rest:
        if name not in known:
            close = nearest(name, [*known, *_LIMITS, *_TEXTS])
            raise ConfigError(f"unknown key {name!r} in the HiCache extra config{close}")
    if isinstance(rest.get("nodes"), list):
        rest["nodes"] = tuple(rest["nodes"])
    try:
        client = load_client_config(given.get("config_file"), url=given.get("url"), **rest)
    except ConfigError as error:
        raise ConfigError(f"HiCache extra config: {error}") from None
    return Settings(client=client, **ours)


def _limit(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 3600:
        raise ConfigError(
            f"{name}={value!r} of the HiCache extra config is no number of seconds up to 3600"
        )
    return float(value)
