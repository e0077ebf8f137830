"""Server URLs, read without ever repeating their secrets.

    redis://user:password@host:port/db?field=value      also valkey:// and resp://
    rediss://...                                        TLS; also valkeys:// and resps://
    redis+cluster://host:port,host:port                 any of the above with +cluster
    redis+sentinel://user:password@sentinel,sentinel:port/master/db         or +sentinel
    unix://user:password@/path/of/socket?db=1

User, password and path are percent-encoded; an IPv6 address stands in brackets; redis-cluster and
redis-sentinel are the same as with "+". The port of a Sentinel is 26379 where none is given, that
of others 6379. User and password are those of the servers, also in a URL that names Sentinels.

A special character that was left as it is inside a password makes any parser cut the URL at a wrong
place; so no error quotes more than the scheme, or the query of a URL that holds together.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from kvferry.base.errors import ConfigError
from kvferry.base.shown import shown
from kvferry.config.spec import Spec

__all__ = [
    "PORT",
    "SENTINEL_PORT",
    "is_loopback",
    "nearest",
    "parse_endpoint",
    "parse_url",
    "show_endpoint",
    "unknown",
]

PORT = 6379
SENTINEL_PORT = 26379
_PORT_MAX = 65_535

# These make up the address of a URL, which a query parameter may not contradict.
_ADDRESS = ("host", "port", "unix_path")
_SCHEME = re.compile(r"(redis|valkey|resp)(s?)(?:[+-](cluster|sentinel))?|unix")
# Not urlsplit: of several hosts, one of them in brackets, its versions think differently.
_PARTS = re.compile(r"[^:/?#]+://([^/?#]*)([^?#]*)(?:\?([^#]*))?", re.DOTALL)  # RFC 3986, B
_MALFORMED = (
    "the URL is malformed; it is redis://user:password@host:port/db, "
    "with '@', ':', '/', '?', '#' and '%' percent-encoded inside user and password"
)


class _PortError(ValueError):
    """A number that is no port."""


def parse_url(url: str, known: Mapping[str, Spec], removed: Mapping[str, str]) -> dict[str, Any]:
    """The settings that a URL names.

    Args:
        url: See above.
        known: The settings of a client.
        removed: Those that are gone, each with what to do instead.

    Raises:
        ConfigError: The URL is malformed, or asks for something unknown.
    """
    found = _SCHEME.fullmatch(url.partition("://")[0].lower()) if "://" in url else None
    if found is None:
        raise ConfigError(
            "the URL must begin with redis://, rediss:// (TLS), redis+cluster://, "
            "redis+sentinel:// or unix://; valkey and resp may stand for redis"
        )
    tls, topology = found[2], found[3]
    cut = _cut(url, "unix" if found[0] == "unix" else topology or "")
    if cut is None:
        raise ConfigError(_MALFORMED)
    settings, path, query = cut
    if tls:
        settings["tls"] = True
    if topology:
        settings["topology"] = topology
    settings.update(_of_path(found[0], topology, path, known))
    kinds = {
        name: spec for name, spec in known.items() if name not in _ADDRESS and not spec.program
    }
    # '&' in one would have cut it in two.
    secret = any(name in kinds and kinds[name].secret for name, _ in query)
    for name, text in query:
        if name in removed:
            raise ConfigError(f"the URL's {name} {removed[name]}")
        if name not in kinds:
            what = "in the query" if secret else f"{shown(name)}{nearest(name, kinds)}"
            raise ConfigError(f"unknown query parameter {what}")
        if name in settings:
            raise ConfigError(f"the URL gives {name} twice; keep one")
        settings[name] = _value(kinds[name], text, secret)
    return settings


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: what may have been meant."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else f"; known are: {', '.join(known)}"


def unknown(name: object, known: Iterable[str], removed: Mapping[str, str]) -> str:
    """The text of an error for an unknown setting: what is in its place, or the nearest name."""
    if isinstance(name, str) and name in removed:
        return f"{name} {removed[name]}"
    return f"unknown setting {shown(name)}{nearest(str(name), known)}"


def parse_endpoint(text: str) -> tuple[str, int | None]:
    """Name or address, and the port if one is given, of "host", "host:port" or "[v6]:port".

    Raises:
        ValueError: It is none of these. The text is not quoted.
    """
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or ":" not in host or (rest and not rest.startswith(":")):
            raise ValueError("no address in brackets")
        port = rest[1:]
    else:
        host, _, port = text.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        raise ValueError("no port")
    if port and not 1 <= int(port[:9]) <= _PORT_MAX:
        raise _PortError(f"the port is not from 1 to {_PORT_MAX}")
    return host, int(port) if port else None


def is_loopback(host: str) -> bool:
    """Whether only this host can reach an address; a name other than localhost is none."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return False


def show_endpoint(host: str, port: int) -> str:
    """The inverse of `parse_endpoint`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _cut(url: str, mode: str) -> tuple[dict[str, Any], str, list[tuple[str, str]]] | None:
    """User and address, path (still encoded), query; None if malformed."""
    parts = _PARTS.fullmatch(url)  # not, if there is a fragment
    if parts is None:
        return None
    netloc, path, query = parts[1], parts[2], parts[3] or ""
    user, _, hosts = netloc.rpartition("@")
    if "@" in user or (hosts if mode == "unix" else "@" in path + query):
        return None  # most likely a password that was not encoded
    username, _, password = user.partition(":")
    try:
        settings = _of_hosts(hosts, SENTINEL_PORT if mode == "sentinel" else None)
        for name, text in (("username", username), ("password", password)):
            if text:
                settings[name] = unquote(text, errors="strict")
        unquote(path, errors="strict")
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), errors="strict"
        )
    except _PortError:
        raise ConfigError(f"a port of the URL is not from 1 to {_PORT_MAX}") from None
    except ValueError:
        return None
    return settings, path, pairs


def _of_hosts(hosts: str, port: int | None) -> dict[str, Any]:
    first, *others = [parse_endpoint(text) for text in hosts.split(",")]
    settings: dict[str, Any] = {}
    if first[0]:
        settings["host"] = first[0]
    if (first_port := first[1] or port) is not None:
        settings["port"] = first_port
    if not all(host for host, _ in others) or (others and not first[0]):
        raise ValueError("an empty name")
    if others:
        settings["nodes"] = tuple(show_endpoint(host, own or port or PORT) for host, own in others)
    return settings


def _of_path(
    scheme: str, topology: str | None, path: str, known: Mapping[str, Spec]
) -> dict[str, Any]:
    if scheme == "unix":
        if path in ("", "/"):
            raise ConfigError("the URL names no socket; use e.g. unix:///run/valkey.sock")
        return {"unix_path": unquote(path)}
    settings: dict[str, Any] = {}
    db = path.strip("/")
    if topology == "sentinel":
        master, _, db = db.partition("/")
        if master:
            settings["sentinel_master"] = unquote(master)
    if db:
        settings["db"] = _value(known["db"], unquote(db), False)
    return settings


def _value(spec: Spec, text: str, secret: bool) -> Any:
    told = f"the URL's {spec.name}"
    if not secret:
        return spec.parse(text, told)
    try:
        return spec.parse(text, told)
    except ConfigError:
        pass  # it may quote a part of the secret
    raise ConfigError(f"{told} is not valid; use {spec.wanted}")
