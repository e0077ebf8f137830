"""How a user of LMCache configures us: the keys of ``adapter_params`` and what they become.

All settings of `kvferry.ClientConfig` are keys (``host``, ``port``, ``username``, ``password``,
``tls``, ``topology``, ``nodes``, ``connections``, ``timeout_s``, ``ttl_s``...), and beside them:

    url          redis://, rediss://, redis+cluster://, redis+sentinel://, unix://
    config_file  a file of kvferry; see docs/guides/configuration.md
    num_workers  as LMCache's own client has it: sockets to each server
    deadline_s   limit of every batch; default: timeout_s + bytes / floor_rate_bytes_s, and
                 2 s for questions
    namespace    goes before every key; without it the keys are LMCache's own
    verify       frames with checksums; values then lie in a namespace, "kvferry" if none is named

What LMCache has as a default and we have as "not given" (an empty user, an empty password) is not
given. What is left open comes from the environment and from ``KVFERRY_CONFIG_FILE``, so secrets
need not stand in a configuration that LMCache logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvferry._url import nearest
from kvferry.client.buffers import KEY_SIZE_BYTES_MAX
from kvferry.config import WORKERS_DEFAULT, ClientConfig
from kvferry.config_file import load_client_config
from kvferry.errors import ConfigError

__all__ = ["OPTIONS", "Settings", "read_settings"]

OPTIONS = ("url", "config_file", "num_workers", "deadline_s", "namespace", "verify")
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
    known = [*OPTIONS, *(field.name for field in fields(ClientConfig))]
    given = {name: value for name, value in params.items() if value is not None}
    for name in given:
        if name not in known:
            raise ConfigError(f"{where}: unknown key {name!r}{nearest(str(name), known)}")
    for name in ("username", "password"):
        if given.get(name) == "":
            del given[name]
    options = {name: given.pop(name) for name in OPTIONS if name in given}
    try:
        return Settings(_config(options, given), **_limits(options))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _config(options: Mapping[str, Any], given: dict[str, Any]) -> ClientConfig:
    if "url" in options and "host" in given:
        raise ConfigError("url and host both name a server; keep one")
    for name in ("url", "config_file"):
        if not isinstance(options.get(name, ""), str):
            raise ConfigError(f"{name} is no text")
    if isinstance(given.get("nodes"), list):
        given["nodes"] = tuple(given["nodes"])
    workers = options.get("num_workers")
    if workers is not None:
        if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
            raise ConfigError(f"num_workers={workers!r} is no number of sockets; use 1 or more")
        given.setdefault("connections", min(workers, _CONNECTIONS_MAX))
        given.setdefault("workers", min(workers, WORKERS_DEFAULT))
    return load_client_config(options.get("config_file"), url=options.get("url"), **given)


def _limits(options: Mapping[str, Any]) -> dict[str, Any]:
    deadline_s = options.get("deadline_s")
    if deadline_s is not None:
        number = isinstance(deadline_s, int | float) and not isinstance(deadline_s, bool)
        if not number or not 0 < deadline_s < 1e9:
            raise ConfigError(f"deadline_s={deadline_s!r} is no limit; use seconds above 0")
    verify = options.get("verify", False)
    if not isinstance(verify, bool):
        raise ConfigError(f"verify={verify!r} is neither true nor false")
    namespace = options.get("namespace", "")
    if not isinstance(namespace, str) or not namespace.isprintable():
        raise ConfigError("namespace is no line of text")
    if len(namespace.encode(errors="replace")) > NAMESPACE_BYTES_MAX:
        raise ConfigError(f"namespace is longer than {NAMESPACE_BYTES_MAX} bytes")
    if verify and not namespace:
        namespace = _NAMESPACE_DEFAULT  # under LMCache's own keys, its own client would read frames
    return {"deadline_s": deadline_s, "verify": verify, "namespace": namespace}
