"""Settings of a client from a YAML file, below those of the environment and of the call.

    # kvferry.yaml, mode 0600 where it holds a secret
    client:
      url: redis://cache-1:6379/0
      username: writer
      password: a secret
      connections: 16

    config = load_client_config("kvferry.yaml", timeout_s=2)
    client = kvferry.RedisClient.from_config(config)

The section holds a `url`, fields of `ClientConfig`, or both: fields win over the URL, and one that
is ``null`` has its default. Without a path, ``KVFERRY_CONFIG_FILE`` names the file; without that
there is none, which is no error.

The call wins over the environment (see `ClientConfig.from_env`), that over the file, and that over
the defaults, field by field, except that

- a URL of the call or of the environment replaces all that the file says of where the server is and
  how to be let in: address, TLS, user. Only limits and sizes of the file are left;
- `host` alone replaces a socket path and other nodes, `credentials` replaces user and password.

What is wrong is said with the names of file and setting, never with a secret or a URL.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvferry._config_file import find_config_file, read_section, write_sections
from kvferry._shown import shown
from kvferry._url import SECRETS, nearest, parse_url
from kvferry.config import ENV_URL, ClientConfig, check_known, env_settings, query_kinds
from kvferry.errors import ConfigError

__all__ = [
    "file_settings",
    "limits_of",
    "load_client_config",
    "merged_settings",
    "others_may_read",
    "save_client_settings",
]

_log = logging.getLogger("kvferry.config_file")

_USER = frozenset(("username", "password"))
# Fields that only mean something for one server; so do those that begin with "tls" and "sentinel".
_SERVER = _USER | {
    *("host", "port", "unix_path", "db"),
    *("topology", "nodes", "read_from", "availability_zone"),
}
_FUNCTIONS = ("credentials",)  # fields that no file can hold


def load_client_config(
    path: str | os.PathLike[str] | None = None,
    *,
    section: str = "client",
    environ: Mapping[str, str] | None = None,
    url: str | None = None,
    **overrides: Any,
) -> ClientConfig:
    """The settings of a section of the file, of the environment and of this call.

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
    from_file = {} if file is None else file_settings(file, read_section(file, section), section)
    explicit = {name: value for name, value in overrides.items() if value is not None}
    if url is not None:
        explicit = {**_of_url(url), **explicit}
    merged = merged_settings(from_file, environ, explicit, by_url=url is not None)
    if any(name in SECRETS for name in from_file) and others_may_read(file):
        _log.warning("%s holds a secret and others may open it; run chmod 600 on it", file)
    try:
        return _made(merged)
    except ConfigError as error:
        if file is None:
            raise
        text = f"{error} (the settings of {file} took part)"
    raise ConfigError(text)


def merged_settings(
    from_file: Mapping[str, Any],
    environ: Mapping[str, str],
    explicit: Mapping[str, Any],
    *,
    by_url: bool,
) -> dict[str, Any]:
    """Fields of `ClientConfig` from three places, the last one first; see the head of this module.

    Args:
        from_file: The weakest.
        explicit: The strongest.
        by_url: `explicit` names a server as a URL does, so that nothing else is said of it.

    Raises:
        ConfigError: A variable of the environment is malformed.
    """
    if by_url:
        from_env = {} if _USER & explicit.keys() else _user_of(environ)
    else:
        from_env = env_settings(environ, explicit)
        by_url = bool(environ.get(ENV_URL)) and not {"host", "unix_path"} & explicit.keys()
    if by_url:
        from_file = limits_of(from_file)
    return _over(_over(from_file, from_env), explicit)


def limits_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that make sense for any server: limits and sizes."""
    return {name: settings[name] for name in settings if not _is_of_server(name)}


def save_client_settings(
    path: str | os.PathLike[str],
    settings: Mapping[str, Any],
    *,
    section: str = "client",
    others: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Set these fields of a section and all of the `others`, in one step; keep the rest.

    The file is made where there is none, and has mode 0600 afterwards. Comments in it are lost.

    Raises:
        ConfigError: A setting is malformed, or what is there is; nothing was written.
        OSError: The file cannot be written; it is as it was.
    """
    file = Path(path)
    _made({name: value for name, value in settings.items() if value is not None})
    before = read_section(file, section) if file.exists() else {}
    after = {**before, **settings}
    _settings_in(f"{file}: {section}", after)
    write_sections(file, {section: after, **(others or {})})


def file_settings(file: Path, found: Mapping[str, Any], section: str) -> dict[str, Any]:
    """What a section of a file gives, its URL taken apart; values are not checked yet.

    Raises:
        ConfigError: A name is unknown, or the URL malformed.
    """
    return _settings_in(f"{file}: {section}", found)


def others_may_read(file: Path | None) -> bool:
    """Whether a file is open to more than its owner; False where there is none."""
    return file is not None and bool(file.stat().st_mode & 0o077)


def _settings_in(where: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """What a section gives, its URL taken apart. Values are not checked yet, names are."""
    known = [field.name for field in fields(ClientConfig)]
    for name in found:
        if name in _FUNCTIONS:
            raise ConfigError(f"{where}: {name} is a function; pass it in the program")
        if name != "url" and name not in known:
            raise ConfigError(
                f"{where}: unknown setting {shown(name)}{nearest(name, ['url', *known])}"
            )
    settings = {}
    if (url := found.get("url")) is not None:
        if not isinstance(url, str):
            raise ConfigError(f"{where}: url is no text; it begins with e.g. redis://")
        try:
            settings = _of_url(url)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    settings.update((name, _value(where, name, value)) for name, value in found.items())
    return {name: value for name, value in settings.items() if name != "url" and value is not None}


def _value(where: str, name: str, value: Any) -> Any:
    """YAML's idea of a value as ours."""
    if isinstance(value, list):
        return tuple(value)
    if name == "tls_min_version" and isinstance(value, float):
        return str(value)
    is_text = name in ("host", "unix_path") or query_kinds().get(name) is str
    if is_text and not isinstance(value, str | None):
        raise ConfigError(f"{where}: {name} is read as a {type(value).__name__}; put it in quotes")
    return value


def _of_url(url: str) -> dict[str, Any]:
    return dict(parse_url(url, query_kinds()))


def _user_of(environ: Mapping[str, str]) -> dict[str, Any]:
    """User and password of the single variables; whatever address the environment has is out."""
    found = env_settings(environ, {"host": "", "port": 0})
    return {name: found[name] for name in found if name in _USER}


def _is_of_server(name: str) -> bool:
    return name in _SERVER or name.startswith(("tls", "sentinel"))


def _over(weaker: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
    """Both, without what of the weaker one makes no sense beside the stronger one."""
    gone = _USER if "credentials" in stronger else frozenset()
    if "host" in stronger:
        gone |= {"unix_path", "nodes"}
    return {**{name: weaker[name] for name in weaker if name not in gone}, **stronger}


def _made(settings: Mapping[str, Any]) -> ClientConfig:
    check_known(settings)
    return ClientConfig(**settings)
