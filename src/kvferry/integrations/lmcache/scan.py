"""The keys of LMCache that a store holds, asked of its servers one page at a time."""

from __future__ import annotations

import re

from kvferry.base.errors import ServerError
from kvferry.config.integrations import LmcacheSettings
from kvferry.connectors.control import Control
from kvferry.integrations.lmcache.names import ChunkNames

__all__ = ["keys_of"]

KEYS_MAX = 1_000_000
_PAGE_TIMEOUT_S = 1.0
_GLOB = re.compile(r"([*?\[\]\\^-])")


def keys_of(settings: LmcacheSettings, names: ChunkNames) -> list[str]:
    """At most `KEYS_MAX` of them, as LMCache named them. Without a namespace: all keys there are.

    Raises:
        UnavailableError, DeadlineExceeded: A server does not say.
    """
    pattern = (_GLOB.sub(r"\\\1", names.prefix) + "*").encode()
    found: list[str] = []
    control = Control(settings.client)
    try:
        for node in control.nodes(_PAGE_TIMEOUT_S):
            cursor = b""
            while cursor != b"0" and len(found) < KEYS_MAX:
                page = node.ask(
                    *(b"SCAN", cursor or b"0", b"MATCH", pattern, b"COUNT", b"1000"),
                    timeout_s=_PAGE_TIMEOUT_S,
                )
                match page:
                    case [bytes(cursor), list(keys)]:
                        known = (names.key_of(key) for key in keys if isinstance(key, bytes))
                        found += [key for key in known if key is not None]
                    case _:
                        raise ServerError("SCAN was answered with something else than keys")
    finally:
        control.close()
    return found[:KEYS_MAX]
