"""What the settings of a client must be, each for itself and together.

Tables where a rule is of a common kind, a sentence with advice where it is not. No message holds a
secret: of one it says the name, and at most the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvferry._shown import shown
from kvferry._url import SECRETS, is_loopback
from kvferry.errors import ConfigError

__all__ = ["CREDENTIAL_BYTES_MAX", "check_settings"]

CREDENTIAL_BYTES_MAX = 16_384

_TEXTS = (
    "host",
    "unix_path",
    "tls_ca_file",
    "tls_ca_dir",
    "tls_cert_file",
    "tls_key_file",
    "tls_server_name",
    "tls_ciphers",
    "sentinel_master",
    "availability_zone",
)
# These may be empty as far as we know, and quoting them is not for us.
_WORDS = ("username", "sentinel_username", "presence_prefix", *SECRETS)
_NAMES_OF_HOSTS = ("host", "tls_server_name")
# What servers take of a word before they know the client, and what can be a part of a key or a DNS
# name. The first as in native/redis/credentials.hpp.
_BYTES_MAX = {
    **dict.fromkeys(("username", "password"), CREDENTIAL_BYTES_MAX),
    **dict.fromkeys(("sentinel_username", "sentinel_password"), CREDENTIAL_BYTES_MAX),
    "client_name": CREDENTIAL_BYTES_MAX,
    "presence_prefix": 512,
    **dict.fromkeys(_NAMES_OF_HOSTS, 255),
}
_WHOLE_RANGES = (
    ("port", 1, 65535),
    ("db", 0, 2**31 - 1),
    ("nodes_max", 1, 2048),
    ("connections", 1, 1024),
    ("workers", 1, 256),
    ("window_bytes", 1, 2**40),
    ("value_size_bytes_max", 1, 2**40),
    ("drain_bytes_max", 0, 2**40),
    ("attempts_max", 1, 100),
    ("presence_keys_max", 1, 2**40),
)
_SECONDS_AND_RATES = (
    "timeout_s",
    "floor_rate_bytes_s",
    "connect_timeout_s",
    "stall_timeout_s",
    "reconnect_min_s",
    "reconnect_max_s",
    "ttl_s",
    "topology_refresh_s",
)
_NUMBER_MAX = 1e300  # of a float; whole numbers may be longer than any
_SWITCHES = ("tls", "ktls")
_CHOICES: dict[str, dict[Any, str]] = {
    "protocol": {3: "RESP3", 2: "RESP2"},
    "same_host": {"auto": "", "tcp": "", "unix": "the server's Unix socket or nothing"},
    "topology": {"standalone": "one server", "cluster": "slots", "sentinel": "a watched master"},
    "presence": {"auto": "", "on": "", "off": ""},
    "read_from": {"primary": "", "replica": "", "az": "a replica in availability_zone"},
    "tls_verify": {"full": "chain and name", "ca": "chain alone", "none": "nothing"},
    "tls_min_version": {"1.2": "", "1.3": ""},
}
_MAY_BE_NONE = ("connections", "workers", "window_bytes", "ttl_s", *_TEXTS[1:], *_WORDS)
_NEED_TLS = (
    "tls_ca_file",
    "tls_ca_dir",
    "tls_cert_file",
    "tls_key_file",
    "tls_key_password",
    "tls_server_name",
    "tls_ciphers",
)
_TLS_DEFAULTS = (("tls_verify", "full"), ("tls_min_version", "1.2"))


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check a full set of the fields of `ClientConfig`.

    Raises:
        ConfigError: A value is malformed, or contradicts another one.
    """
    for name in (*_TEXTS, *_WORDS):
        _check_text(name, settings[name])
    for name, most in _BYTES_MAX.items():
        _check_length(name, settings[name], most)
    for name, low, high in _WHOLE_RANGES:
        _check_whole(name, settings[name], low, high)
    for name in _SECONDS_AND_RATES:
        _check_positive(name, settings[name])
    for name in _SWITCHES:
        if not isinstance(settings[name], bool):
            raise ConfigError(f"{name}={shown(settings[name])} is not valid; use True or False")
    for name, choices in _CHOICES.items():
        _check_choice(name, settings[name], choices)
    for check in (
        *(_check_times, _check_client_name, _check_user),
        *(_check_tls, _check_topology, _check_same_host),
    ):
        check(settings)


def _check_text(name: str, value: object) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    if name in _WORDS:
        if not isinstance(value, str):
            raise ConfigError(f"{name} is a {type(value).__name__}; pass a str or None")
        if _is_not_utf8(value):
            raise ConfigError(f"{name} holds a lone surrogate and has no UTF-8 form; correct it")
        return
    if not isinstance(value, str) or not value or "\0" in value or _is_not_utf8(value):
        raise ConfigError(f"{name}={shown(value)} is not a name; pass a non-empty str")
    if name in _NAMES_OF_HOSTS and any(char.isspace() or char in "/@," for char in value):
        raise ConfigError(f"{name} is not a host name; a URL goes to from_url()")


def _check_length(name: str, value: object, most: int) -> None:
    if isinstance(value, str) and (size := len(value.encode(errors="replace"))) > most:
        raise ConfigError(f"{name} has {size} bytes; use at most {most}")


def _is_not_utf8(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(
            f"{name}={shown(value)} is not valid; use a whole number from {low} to {high}"
        )


def _check_positive(name: str, value: object) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= _NUMBER_MAX:  # type: ignore[operator]
        raise ConfigError(f"{name}={shown(value)} is not valid; use a number above 0")


def _check_choice(name: str, value: object, choices: Mapping[Any, str]) -> None:
    # Not `in` alone: True is 1, and a list cannot be looked up.
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return
    known = [f"{choice} ({what})" if what else f"{choice}" for choice, what in choices.items()]
    most = ", ".join(known[:-1])
    raise ConfigError(f"{name}={shown(value)} is unknown; use {most} or {known[-1]}")


def _check_times(settings: Mapping[str, Any]) -> None:
    if settings["reconnect_max_s"] < settings["reconnect_min_s"]:
        raise ConfigError("reconnect_max_s is below reconnect_min_s; raise it or lower the other")
    ttl_s = settings["ttl_s"]
    if ttl_s is not None and ttl_s < 0.001:
        raise ConfigError(f"ttl_s={ttl_s} is below a millisecond; use a longer time or None")


def _check_client_name(settings: Mapping[str, Any]) -> None:
    name = settings["client_name"]
    if not isinstance(name, str) or not all("!" <= char <= "~" for char in name):
        raise ConfigError("client_name may hold printable ASCII without spaces only; rename it")


def _check_user(settings: Mapping[str, Any]) -> None:
    for prefix in ("", "sentinel_"):
        user, password = f"{prefix}username", f"{prefix}password"
        if settings[user] is not None and settings[password] is None:
            raise ConfigError(
                f"{user} is set without {password}; set both "
                "(a password alone, redis://:password@host, belongs to the default user)"
            )
    provider = settings["credentials"]
    if provider is None:
        return
    if not callable(provider):
        raise ConfigError(
            f"credentials is a {type(provider).__name__}; "
            "pass a function that returns kvferry.Credentials"
        )
    if settings["password"] is not None:
        raise ConfigError("credentials stands for username and password; keep one or the other")


def _check_tls(settings: Mapping[str, Any]) -> None:
    given = [name for name in _NEED_TLS if settings[name] is not None]
    given += [name for name, usual in _TLS_DEFAULTS if settings[name] != usual]
    if not settings["tls"]:
        if given:
            raise ConfigError(f"{given[0]} is set without tls; use rediss:// or tls=True")
        return
    if settings["unix_path"] is not None:
        raise ConfigError("tls does not go over a Unix socket; drop tls or unix_path")
    cert, key = settings["tls_cert_file"], settings["tls_key_file"]
    if (cert is None) != (key is None):
        missing, there = ("cert", "key") if cert is None else ("key", "cert")
        raise ConfigError(f"tls_{there}_file is set without tls_{missing}_file; set both")
    if settings["tls_key_password"] is not None and key is None:
        raise ConfigError("tls_key_password is set without tls_key_file; set both")


def _check_topology(settings: Mapping[str, Any]) -> None:
    topology, alone = settings["topology"], settings["topology"] == "standalone"
    if settings["unix_path"] is not None and not alone:
        raise ConfigError(f"topology={topology!r} does not go over a Unix socket; drop unix_path")
    if settings["nodes"] and alone:
        raise ConfigError(
            "several hosts are a cluster or Sentinels; use redis+cluster:// or redis+sentinel://, "
            "or set topology"
        )
    if topology == "cluster" and settings["db"] != 0:
        raise ConfigError(f"db={settings['db']} does not exist in a cluster; drop it")
    if topology == "sentinel" and settings["sentinel_master"] is None:
        raise ConfigError(
            "topology='sentinel' needs sentinel_master, the name that the Sentinels watch: "
            "redis+sentinel://host:26379/mymaster"
        )
    for name in ("sentinel_master", "sentinel_username", "sentinel_password"):
        if settings[name] is not None and topology != "sentinel":
            raise ConfigError(f"{name} is set without topology='sentinel'; use redis+sentinel://")
    read_from = settings["read_from"]
    if read_from != "primary" and alone:
        raise ConfigError(f"read_from={read_from!r} needs a cluster or Sentinels; set topology")
    if read_from == "az" and settings["availability_zone"] is None:
        raise ConfigError("read_from='az' needs availability_zone, the one of this host; set it")
    if settings["presence_prefix"] is not None and settings["protocol"] != 3:
        raise ConfigError("presence_prefix needs the pushes of RESP3; set protocol=3")
    if settings["presence"] == "on" and settings["protocol"] != 3:
        raise ConfigError("presence='on' needs the pushes of RESP3; set protocol=3")


def _check_same_host(settings: Mapping[str, Any]) -> None:
    if settings["same_host"] != "unix" or settings["unix_path"] is not None:
        return
    if settings["tls"]:
        raise ConfigError("tls does not go over a Unix socket; drop tls or same_host='unix'")
    if settings["topology"] != "standalone":
        raise ConfigError("same_host='unix' is for one server, not for a cluster or Sentinels")
    if not is_loopback(settings["host"]):
        raise ConfigError(
            f"same_host='unix' needs an address of this host, not {settings['host']!r}; "
            "use localhost, 127.0.0.1, ::1 or unix_path"
        )
