"""Who we are to a server, from a function that is asked before every connection.

    def token() -> kvferry.Credentials:
        return kvferry.Credentials("app", fetch_token(), expires_in_s=900)

    kvferry.RedisClient.from_url("rediss://cache-1", credentials=token)

For tokens that expire, as those of AWS IAM, Entra ID and Google IAM do. The function is called from
the client's own threads, by as many of them as connect at a time, and should answer within
`connect_timeout_s`. What it raises costs that attempt to connect; of the exception only the type is
told, because its text may hold a secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from kvferry.base.errors import ConfigError, UnavailableError
from kvferry.base.shown import shown

__all__ = ["CREDENTIAL_BYTES_MAX", "Credentials", "CredentialsProvider", "provided"]

# What servers take before they know the client; as in native/redis/credentials.hpp.
CREDENTIAL_BYTES_MAX = 16_384


class _TooLong(ConfigError):
    """Credentials that no server takes. Its text, unlike that of others, holds no secret."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a password, perhaps for a limited time.

    Attributes:
        username: ACL user; ``None`` is the server's default user.
        password: A secret or a token; shown nowhere.
        expires_in_s: How long they are good for; ``None``: without end. A connection is given new
            ones, or is replaced, before that time is over.

    Raises:
        ConfigError: A value is of a wrong type, or longer than a server takes (16,384 bytes).
    """

    username: str | None
    password: str = field(repr=False)
    expires_in_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("username", "password"):
            value = getattr(self, name)
            optional = name == "username" and value is None
            if not optional and (not isinstance(value, str) or _is_not_utf8(value)):
                raise ConfigError(f"{name} of the credentials is no text; pass a str")
            if (
                value is not None
                and (size := len(value.encode(errors="replace"))) > CREDENTIAL_BYTES_MAX
            ):
                raise _TooLong(
                    f"{name} of the credentials has {size} bytes; "
                    f"use at most {CREDENTIAL_BYTES_MAX}, servers take no more"
                )
        limit_s = self.expires_in_s
        if limit_s is None:
            return
        number = isinstance(limit_s, int | float) and not isinstance(limit_s, bool)
        if not number or not math.isfinite(limit_s) or limit_s <= 0:
            raise ConfigError(
                f"expires_in_s={shown(limit_s)} is not valid; use seconds above 0 or None"
            )


CredentialsProvider: TypeAlias = Callable[[], Credentials]


def provided(provider: CredentialsProvider) -> Credentials:
    """Ask for credentials.

    Raises:
        UnavailableError: There are none now; the text names the kind of failure only.
    """
    try:
        credentials = provider()
    except _TooLong as error:
        kind = str(error)
    except Exception as error:
        # Nothing of it is chained either: error reporters collect causes.
        kind = type(error).__name__
    else:
        if isinstance(credentials, Credentials):
            return credentials
        kind = f"it returned a {type(credentials).__name__}, no kvferry.Credentials"
    raise UnavailableError(f"the function that provides credentials failed: {kind}")


def _is_not_utf8(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
