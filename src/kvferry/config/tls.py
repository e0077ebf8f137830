"""Which settings of TLS go together: the same for clients, nodes and instances that share."""

from __future__ import annotations

from kvferry.config.setting import Settings
from kvferry.errors import ConfigError

__all__ = ["check_key_pair"]


def check_key_pair(settings: Settings, prefix: str = "tls_") -> None:
    """A certificate and its key are given together, and a key's password with the key.

    Raises:
        ConfigError: One of them is missing.
    """
    cert, key = (getattr(settings, f"{prefix}{name}_file") for name in ("cert", "key"))
    if (cert is None) != (key is None):
        missing, there = ("cert", "key") if cert is None else ("key", "cert")
        raise ConfigError(f"{prefix}{there}_file is set without {prefix}{missing}_file; set both")
    password = f"{prefix}key_password"
    if key is None and getattr(settings, password, None) is not None:
        raise ConfigError(f"{password} is set without {prefix}key_file; set both")
