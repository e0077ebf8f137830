"""Server URLs, read without ever repeating their secrets.

    redis://user:password@host:port/db?field=value      also resp:// and valkey://
    unix://user:password@/path/of/socket?db=1

User, password and path are percent-encoded; an IPv6 address stands in brackets. A special character
that was left as it is inside a password makes any parser cut the URL at a wrong place; so no error
quotes more than the scheme, or the query of a URL that holds together.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from kvferry.errors import ConfigError

__all__ = ["Setting", "nearest", "parse_url"]

Setting = int | float | str

_NETWORK_SCHEMES = ("redis", "resp", "valkey")
_LATER = {
    "rediss": "TLS",
    "valkeys": "TLS",
    "redis-sentinel": "Sentinel",
    "redis+sentinel": "Sentinel",
    "redis-cluster": "cluster mode",
    "redis+cluster": "cluster mode",
    "valkey+cluster": "cluster mode",
}
_MALFORMED = (
    "the URL is malformed; it is redis://user:password@host:port/db, "
    "with '@', ':', '/', '?', '#' and '%' percent-encoded inside user and password"
)


def parse_url(url: str, kinds: Mapping[str, type[Setting]]) -> dict[str, Setting]:
    """The settings that a URL names.

    Args:
        url: See above.
        kinds: The settings that may stand in the query, and the type of each.

    Raises:
        ConfigError: The URL is malformed, or asks for something unknown or not supported yet.
    """
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme in _LATER:
        raise ConfigError(
            f"{scheme}:// needs {_LATER[scheme]}, which comes with the next release; "
            "use redis://, valkey:// or unix:// today"
        )
    if scheme not in (*_NETWORK_SCHEMES, "unix"):
        raise ConfigError("the URL must begin with redis://, resp://, valkey:// or unix://")
    cut = _cut(url)
    if cut is None:
        raise ConfigError(_MALFORMED)
    settings, path, query = cut
    if scheme == "unix":
        if path in ("", "/"):
            raise ConfigError("the URL names no socket; use e.g. unix:///run/valkey.sock")
        settings["unix_path"] = path
    elif path.strip("/"):
        settings["db"] = _number("db", path.strip("/"), int)
    for name, text in query:
        if name not in kinds:
            raise ConfigError(f"unknown query parameter {name!r}{nearest(name, kinds)}")
        if name in settings:
            raise ConfigError(f"the URL gives {name} twice; keep one")
        kind = kinds[name]
        settings[name] = text if kind is str else _number(name, text, kind)
    return settings


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: what may have been meant."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else f"; known are: {', '.join(known)}"


def _cut(url: str) -> tuple[dict[str, Setting], str, list[tuple[str, str]]] | None:
    """User and address, path, query; None if malformed (the parser's own errors quote the URL)."""
    try:
        parts = urlsplit(url)
        if not _holds_together(parts):
            return None
        found = {
            "host": parts.hostname,
            "port": parts.port,
            "username": unquote(parts.username or "", errors="strict"),
            "password": unquote(parts.password or "", errors="strict"),
        }
        settings = {name: value for name, value in found.items() if value not in (None, "")}
        path = unquote(parts.path, errors="strict")
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        return None
    return settings, path, query  # type: ignore[return-value]  # None was filtered out


def _holds_together(parts: SplitResult) -> bool:
    if parts.fragment or parts.netloc.count("@") > 1:
        return False
    if parts.scheme == "unix":
        return not parts.netloc or parts.netloc.endswith("@")
    return "@" not in parts.path and "@" not in parts.query


def _number(name: str, text: str, kind: type[Setting]) -> Setting:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{name}={text!r} in the URL is not {what}; correct it") from None
