"""The settings of a client: one frozen object, checked when it is made.

    ClientConfig(host="cache-1", password="...", connections=8)
    ClientConfig.from_url("redis://:secret@cache-1:6379/0?connections=8&timeout_s=2")
    ClientConfig.from_url("rediss+cluster://seed-1,seed-2", tls_ca_file="ca.pem")
    ClientConfig.from_env()     # KVFERRY_RESP_*, then LMCACHE_RESP_*, then the defaults

Secrets never enter a repr, a log line or an error: what is wrong with a URL is said without
repeating the URL.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Self

from kvferry.config.client_settings import ClientSettings
from kvferry.config.client_sources import file_fields, merged_client, secrets_in
from kvferry.config.file import find_config_file, open_to_others, read_document
from kvferry.errors import ConfigError

__all__ = ["ClientConfig", "load_client_config"]

_log = logging.getLogger("kvferry.config")


class ClientConfig(ClientSettings, frozen=True, kw_only=True):
    """What a client connects to, and its limits; the settings are those of `ClientSettings`."""

    @classmethod
    def from_url(
        cls, url: str, *, environ: Mapping[str, str] | None = None, **overrides: Any
    ) -> Self:
        """Read a URL; `overrides` (fields of this class, where not None) win over it.

        ``redis://user:password@host:port/db?field=value``; ``rediss://`` for TLS;
        ``redis+cluster://`` and ``redis+sentinel://host,host/master/db`` (``rediss+...`` with TLS);
        ``valkey`` and ``resp`` instead of ``redis``; ``unix://user:password@/path?db=1``. User,
        password and path are percent-encoded; an IPv6 address stands in brackets. User and
        password that neither gives are those of the environment, as with `from_env`.

        Raises:
            ConfigError: The URL or a field is malformed or unknown.
        """
        return cls.from_env(environ, url=url, **overrides)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **explicit: Any) -> Self:
        """Read the environment; `explicit` (`url` and fields, where not None) wins over it.

        What the call leaves open comes from ``KVFERRY_RESP_URL``, which is not read if the caller
        names a server; then from ``KVFERRY_RESP_HOST``, ``_PORT``, ``_USERNAME``, ``_PASSWORD``,
        then from the same with ``LMCACHE_RESP_``. An empty variable counts as unset. Each of these
        stands alone: a host of the caller is still sent the password of the environment.

        Raises:
            ConfigError: A variable or field is malformed or unknown.
        """
        given = {name: value for name, value in explicit.items() if value is not None}
        return cls(**merged_client(given, environ=environ))


def load_client_config(
    path: str | os.PathLike[str] | None = None,
    *,
    section: str = "client",
    environ: Mapping[str, str] | None = None,
    url: str | None = None,
    **overrides: Any,
) -> ClientConfig:
    """The settings of this call, of a section of the file, and of the environment.

    Args:
        path: The file; default: ``KVFERRY_CONFIG_FILE``, or none.
        section: Where in the file.
        environ: Default: of this process.
        url: The server; `overrides` win over it.
        **overrides: Fields of `ClientConfig`, where not None.

    Raises:
        ConfigError: The file is missing or malformed, or a setting is.
    """
    environ = os.environ if environ is None else environ
    file = find_config_file(path, environ)
    found = {} if file is None else file_fields(file, read_document(file), section)
    call = {name: value for name, value in {"url": url, **overrides}.items() if value is not None}
    if file is not None and secrets_in(found):
        for text in open_to_others(file):
            _log.warning("%s", text)
    try:
        return ClientConfig(**merged_client(call, found, environ=environ))
    except ConfigError as error:
        if not found:
            raise
        text = f"{error} (the settings of {file} took part)"
    raise ConfigError(text)
