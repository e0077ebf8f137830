"""Both ways to a server on this host: TCP, and its Unix socket where this process may use it.

    ways = ways_to(ClientConfig(host="localhost"))
    ways.tcp, ways.unix, ways.why   # settings for each way; why there is no second one

The native client finds the socket (see `ClientConfig.same_host`); here it is only asked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvferry.config import ClientConfig
from kvferry.embedded.store import EmbeddedStore

if TYPE_CHECKING:
    from kvferry.client.sync import RedisClient

__all__ = ["Ways", "tcp_config", "ways_to"]

_WAIT_S = 5.0
_LOOK_S = 0.005
_UNIX = "unix:"
_UNDECIDED = "TCP: the server was not asked yet"


@dataclass(frozen=True)
class Ways:
    """How a server can be reached.

    Attributes:
        tcp: Settings that stay at TCP; those that were given where they name a Unix socket.
        unix: Settings that name the server's Unix socket; ``None`` without one.
        why: Why `unix` is ``None``; empty where it was not looked for.
    """

    tcp: ClientConfig
    unix: ClientConfig | None = None
    why: str = ""


def ways_to(config: ClientConfig) -> Ways:
    """Both ways to the server that `config` names, as its native client finds them."""
    if config.unix_path is not None or config.same_host == "tcp":
        return Ways(config)
    try:
        from kvferry.client.sync import RedisClient
    except ImportError:
        return Ways(config)
    tcp = config.replace(same_host="tcp")
    with RedisClient.from_config(config.replace(connections=1, workers=1)) as client:
        found = _answer(client)
    if found.startswith(_UNIX):
        path = found.removeprefix(_UNIX)
        return Ways(tcp, config.replace(unix_path=path, same_host="auto"))
    return Ways(tcp, why=found.removeprefix("TCP: "))


def _answer(client: RedisClient) -> str:
    """The client's word on its way to the server, once it has asked."""
    deadline = time.monotonic() + _WAIT_S
    found = str(client.stats()["same_host"])
    while found == _UNDECIDED and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        found = str(client.stats()["same_host"])
    return found


def tcp_config(store: EmbeddedStore) -> ClientConfig:
    """Settings for the TCP port of an embedded store that has one, and a password or none."""
    config = ClientConfig.from_url(store.url, environ={})  # it is ours
    assert store.host is not None
    assert store.port is not None
    return config.replace(unix_path=None, host=store.host, port=store.port)
