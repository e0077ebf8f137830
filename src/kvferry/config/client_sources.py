"""Where the settings of a client come from, and which of them wins.

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
there is none, which is no error. Of a file of LMCache, which has no sections, it is `remote_url`.

The call wins over the file, that over the environment, and that over the defaults, field by field,
except that

- a URL replaces all that a weaker file says of where the server is and how to be let in: address,
  TLS, user. Only limits and sizes of that file are left;
- `host` replaces a socket path and other nodes, `credentials` replaces user and password.

Of the environment ``KVFERRY_RESP_URL`` is read where nothing else names a server. Then
``KVFERRY_RESP_HOST``, ``_PORT``, ``_USERNAME`` and ``_PASSWORD``, and the same with
``LMCACHE_RESP_``, fill what is still open, one by one: the call names the host, the environment may
supply the password. An empty host, port, user or password is open.

What is wrong is said with the names of file and setting, never with a secret or a URL.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvferry.config.client_settings import ClientSettings
from kvferry.config.file import (
    read_document,
    section_of,
    write_sections,
)
from kvferry.config.foreign import EXTRA
from kvferry.config.setting import specs
from kvferry.config.url import parse_url, unknown
from kvferry.errors import ConfigError

__all__ = [
    "client_fields",
    "file_fields",
    "limits_of",
    "merged_client",
    "save_client_settings",
    "secrets_in",
]

_log = logging.getLogger("kvferry.config")

ENV_URL = "KVFERRY_RESP_URL"
_PREFIXES = ("KVFERRY_RESP_", "LMCACHE_RESP_")
_SECRETS = {"params", *(name for name, spec in specs(ClientSettings).items() if spec.secret)}
_URL_WITH_SECRET = re.compile(r"://[^/?#@]*:[^/?#]+@|[?&]\w*password=")
_ADDRESS = ("host", "port")
_USER = ("username", "password")
# Fields that only mean something for one server; so do those that begin with "tls" and "sentinel".
_SERVER = (
    *(*_ADDRESS, *_USER, "credentials", "unix_path", "db"),
    *("topology", "nodes", "read_from", "availability_zone"),
)


def merged_client(
    *places: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Fields of `ClientConfig` from several places; see the head of this module.

    Args:
        places: `url` and fields as for `client_fields`; the strongest place first.
        environ: The weakest; default: of this process.

    Raises:
        ConfigError: A name is unknown, or a URL or a variable malformed.
    """
    environ = os.environ if environ is None else environ
    known = specs(ClientSettings)
    found: dict[str, Any] = {}
    by_url = False
    for place in places:
        fields = client_fields(place)
        found = _over(limits_of(fields) if by_url else fields, found)
        by_url |= place.get("url") is not None
    if environ.get(ENV_URL) and not by_url and not {"host", "unix_path"} & found.keys():
        found = _over(client_fields({"url": environ[ENV_URL]}, f"{ENV_URL}: "), found)
    for name in (*_ADDRESS, *_USER):
        variables = (prefix + name.upper() for prefix in _PREFIXES)
        variable = next((each for each in variables if environ.get(each)), None)
        # What is not needed may be malformed: Kubernetes sets such ports.
        if variable is not None and name not in found and name not in _replaced(found):
            found[name] = known[name].parse(environ[variable], variable)
    return {name: value for name, value in found.items() if value is not None}


def client_fields(given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Checked fields of what holds `url` and fields, the URL taken apart.

    Args:
        given: An empty host, port, user or password is not given; None takes back what the URL
            says.
        where: Before the name of a setting in an error.

    Raises:
        ConfigError: A name is unknown, or a value cannot be.
    """
    known = specs(ClientSettings)
    for name in given:
        if name not in ("url", *known):
            raise ConfigError(f"{where}{unknown(name, ('url', *known))}")
    found: dict[str, Any] = {}
    if (url := given.get("url")) is not None:
        if not isinstance(url, str):
            raise ConfigError(f"{where}url is no text; it begins with e.g. redis://")
        try:
            found = parse_url(url, known)
        except ConfigError as error:
            raise ConfigError(f"{where}{error}") from None
        if "password" in found:  # without a user it is that of the default user
            found.setdefault("username", None)
    for name, value in given.items():
        if value is None:
            if found.get(name) is not None:
                del found[name]
        elif name != "url" and not (value == "" and name in (*_ADDRESS, *_USER)):
            found[name] = known[name].check(value, f"{where}{name}")
    return found


def file_fields(file: Path, document: Mapping[str, Any], section: str) -> dict[str, Any]:
    """What a file says of a client: its section, or the remote store of a file of LMCache.

    Returns:
        Checked fields, and `url` where the file has one.

    Raises:
        ConfigError: A name is unknown, or a value cannot be.
    """
    given = section_of(file, document, section)
    where = f"{file}: {section}: "
    for name, spec in specs(ClientSettings).items():
        if spec.program and name in given:
            raise ConfigError(f"{where}{name} is a function; pass it in the program")
    client_fields(given, where)
    if not document.get("remote_url") or "url" in given or "host" in given:
        return dict(given)
    extra = document.get("extra_config")
    found = {**document, **(extra if isinstance(extra, dict) else {})}
    brought = {ours: found[theirs] for theirs, ours in EXTRA.items() if ours and theirs in found}
    brought["url"] = document["remote_url"]
    client_fields(brought, f"{file}: ")
    return {**brought, **given}


def limits_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that make sense for any server: limits and sizes."""
    return {
        name: value
        for name, value in settings.items()
        if name not in ("url", *_SERVER) and not name.startswith(("tls", "sentinel"))
    }


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
    ClientSettings(**client_fields(settings))
    before = section_of(file, read_document(file), section) if file.exists() else {}
    after = {**before, **settings}
    client_fields(after, f"{file}: {section}: ")
    write_sections(file, {section: after, **(others or {})})


def secrets_in(found: Any) -> bool:
    """Whether there is a secret somewhere in what a file says, or a URL with one."""
    if isinstance(found, Mapping):
        return any(
            (name in _SECRETS and value) or secrets_in(value) for name, value in found.items()
        )
    if isinstance(found, list):
        return any(map(secrets_in, found))
    return isinstance(found, str) and _URL_WITH_SECRET.search(found) is not None


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
