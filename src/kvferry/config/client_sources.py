"""Where the settings of a client come from, and which of them wins.

The section of a file holds a `url`, fields of `ClientConfig`, or both: fields win over the URL, and
one that is ``null`` has its default. Of a file of LMCache, which has no sections, it is
`remote_url`. The places are ordered as in `kvferry.config`, field by field, except that

- a URL replaces all that a weaker file says of where the server is and how to be let in: address,
  TLS, user. Only limits and sizes of that file are left;
- `host` replaces a socket path and other nodes, `credentials` replaces user and password.

Of the environment ``KVFERRY_RESP_URL`` is read where nothing else names a server. Then
``KVFERRY_RESP_HOST``, ``_PORT``, ``_USERNAME`` and ``_PASSWORD``, and the same with
``LMCACHE_RESP_``, fill what is still open, one by one. An empty host, port, user or password is
open.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from kvferry.base.errors import ConfigError
from kvferry.config.file import find_config_file, open_with_secret, read_document, section_of
from kvferry.config.foreign import EXTRA
from kvferry.config.setting import Settings, Url, specs
from kvferry.config.spec import Spec
from kvferry.config.url import parse_url, unknown

__all__ = ["ClientSources", "limits_of"]

_log = logging.getLogger("kvferry.config")

ENV_URL = "KVFERRY_RESP_URL"
_PREFIXES = ("KVFERRY_RESP_", "LMCACHE_RESP_")
_ADDRESS = ("host", "port")
_USER = ("username", "password")
# Fields that only mean something for one server; so do those that begin with "tls" and "sentinel".
_SERVER = (
    *(*_ADDRESS, *_USER, "credentials", "unix_path", "db"),
    *("topology", "nodes", "read_from", "availability_zone"),
)


class _Place(Settings, frozen=True, kw_only=True):
    url: Url | None = None


class ClientSources(Settings, frozen=True, kw_only=True):
    """The readers of `ClientConfig`."""

    @classmethod
    def known(cls) -> dict[str, Spec]:
        """What a place may say: a `url` and the fields."""
        return {**specs(_Place), **specs(cls)}

    @classmethod
    def from_url(
        cls, url: str, *, environ: Mapping[str, str] | None = None, **overrides: Any
    ) -> Self:
        """Read a URL; `overrides` (fields of this class, where not None) win over it.

        ``redis://user:password@host:port/db?field=value``, and what else `kvferry.config.url`
        has. User and password that neither gives are those of the environment, as with `from_env`.

        Raises:
            ConfigError: The URL or a field is malformed or unknown.
        """
        return cls.from_env(environ, url=url, **overrides)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **explicit: Any) -> Self:
        """Read the environment; `explicit` (`url` and fields, where not None) wins over it.

        Each variable stands alone: a host of the caller is still sent the password of the
        environment.

        Raises:
            ConfigError: A variable or field is malformed or unknown.
        """
        given = {name: value for name, value in explicit.items() if value is not None}
        return cls(**cls.merged(given, environ=environ))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        section: str = "client",
        environ: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Self:
        """The settings of this call, of a section of the file, and of the environment.

        Args:
            path: The file; default: ``KVFERRY_CONFIG_FILE``, or none.
            section: Where in the file.
            environ: Default: of this process.
            **overrides: `url` and fields, where not None.

        Raises:
            ConfigError: The file is missing or malformed, or a setting is.
        """
        environ = os.environ if environ is None else environ
        file = find_config_file(path, environ)
        if file is None:
            return cls.from_env(environ, **overrides)
        found = cls.of_file(file, read_document(file), section)
        call = {name: value for name, value in overrides.items() if value is not None}
        for text in open_with_secret(file, found):
            _log.warning("%s", text)
        try:
            return cls(**cls.merged(call, found, environ=environ))
        except ConfigError as error:
            if not found:
                raise
            text = f"{error} (the settings of {file} took part)"
        raise ConfigError(text)

    @classmethod
    def merged(
        cls, *places: Mapping[str, Any], environ: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Fields of this class from several places; see the head of this module.

        Args:
            places: `url` and fields as for `fields`; the strongest place first.
            environ: The weakest; default: of this process.

        Raises:
            ConfigError: A name is unknown, or a URL or a variable malformed.
        """
        environ = os.environ if environ is None else environ
        known = specs(cls)
        found: dict[str, Any] = {}
        by_url = False
        for place in places:
            fields = cls.fields(place)
            found = _over(limits_of(fields) if by_url else fields, found)
            by_url |= place.get("url") is not None
        if environ.get(ENV_URL) and not by_url and not {"host", "unix_path"} & found.keys():
            found = _over(cls.fields({"url": environ[ENV_URL]}, f"{ENV_URL}: "), found)
        for name in (*_ADDRESS, *_USER):
            variables = (prefix + name.upper() for prefix in _PREFIXES)
            variable = next((each for each in variables if environ.get(each)), None)
            # What is not needed may be malformed: Kubernetes sets such ports.
            if variable is not None and name not in found and name not in _replaced(found):
                found[name] = known[name].parse(environ[variable], variable)
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def fields(cls, given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
        """Checked fields of what holds `url` and fields, the URL taken apart.

        Args:
            given: None takes back what the URL says.
            where: Before the name of a setting in an error.

        Raises:
            ConfigError: A name is unknown, or a value cannot be.
        """
        known = cls.known()
        for name in given:
            if name not in known:
                raise ConfigError(f"{where}{unknown(name, known)}")
        found: dict[str, Any] = {}
        if (url := given.get("url")) is not None:
            try:
                found = parse_url(known["url"].check(url), specs(cls))
            except ConfigError as error:
                raise ConfigError(f"{where}{error}") from None
            if "password" in found:  # without a user it is that of the default user
                found.setdefault("username", None)
        for name, value in given.items():
            if value is None:
                if found.get(name) is not None:
                    del found[name]
            elif name != "url" and not (value == "" and known[name].blank):
                found[name] = known[name].check(value, f"{where}{name}")
        return found

    @classmethod
    def of_file(cls, file: Path, document: Mapping[str, Any], section: str) -> dict[str, Any]:
        """What a file says of a client: its section, or the remote store of a file of LMCache.

        Returns:
            Checked fields, and `url` where the file has one.

        Raises:
            ConfigError: A name is unknown, or a value cannot be.
        """
        given = section_of(file, document, section)
        where = f"{file}: {section}: "
        for name, spec in specs(cls).items():
            if spec.program and name in given:
                raise ConfigError(f"{where}{name} is a function; pass it in the program")
        cls.fields(given, where)
        if not document.get("remote_url") or "url" in given or "host" in given:
            return dict(given)
        extra = document.get("extra_config")
        found = {**document, **(extra if isinstance(extra, dict) else {})}
        brought = {ours: found[theirs] for theirs, ours in EXTRA.items() if theirs in found}
        brought["url"] = document["remote_url"]
        cls.fields(brought, f"{file}: ")
        return {**brought, **given}


def limits_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that make sense for any server: limits and sizes."""
    return {
        name: value
        for name, value in settings.items()
        if name not in ("url", *_SERVER) and not name.startswith(("tls", "sentinel"))
    }


def _over(weaker: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
    """Both, without what of the weaker one makes no sense beside the stronger one."""
    gone = _replaced(stronger)
    return {**{name: weaker[name] for name in weaker if name not in gone}, **stronger}


def _replaced(stronger: Mapping[str, Any]) -> set[str]:
    """What weaker places may not say beside these fields."""
    gone: set[str] = set()
    if "credentials" in stronger:
        gone |= set(_USER)
    if "host" in stronger:
        gone |= {"unix_path", "nodes"}
    if "unix_path" in stronger:
        gone |= set(_ADDRESS)
    return gone
