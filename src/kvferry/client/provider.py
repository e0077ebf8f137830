"""The thread that asks the user's function for credentials, so that I/O threads never do.

It waits in native code until a connection asks, or until what was provided last is about to expire;
then connections that are up authenticate again with the new ones. It ends with its client.
"""

from __future__ import annotations

import time

from kvferry import _native
from kvferry.base.credentials import CredentialsProvider, provided
from kvferry.base.errors import UnavailableError
from kvferry.base.threads import Guarded, noticed

__all__ = ["provide_to"]

_RENEW_AT = 0.8  # of their life: time enough for a second try
_RENEW_AGAIN_S = 5.0
_LOOK_S = 60.0
_CLOSED = -1


def provide_to(source: _native.CredentialSource, provider: CredentialsProvider) -> None:
    """Answer the source from a thread of its own until its client is closed."""
    Guarded(_serve, "credentials", source, provider).start()


def _serve(source: _native.CredentialSource, provider: CredentialsProvider) -> None:
    renew_at: float | None = None  # on the monotonic clock; None: what is known does not expire
    while True:
        now = time.monotonic()
        limit_s = _LOOK_S if renew_at is None else max(0.0, min(_LOOK_S, renew_at - now))
        asked = source.wait(limit_s)
        if asked == _CLOSED:
            return
        due = renew_at is not None and time.monotonic() >= renew_at
        if not asked and not due:
            continue
        try:
            credentials = provided(provider)
            source.provide(credentials.username or "", credentials.password)
        except BaseException as error:  # not even a SystemExit leaves who asked without an answer
            if isinstance(error, UnavailableError):
                why = str(error)
            else:  # nothing else of it is told: it may have a secret
                why = f"the function that provides credentials raised {type(error).__name__}"
                noticed("credentials", UnavailableError(why))
            source.refuse(why)
            renew_at = None if renew_at is None else time.monotonic() + _RENEW_AGAIN_S
            continue
        life_s = credentials.expires_in_s
        renew_at = None if life_s is None else time.monotonic() + _RENEW_AT * life_s
