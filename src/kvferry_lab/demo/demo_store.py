"""The demo's server: the embedded store, or one that the caller names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvferry.config import ClientConfig
from kvferry.embedded.store import embedded_store
from kvferry_lab.bench.server_probe import ServerProbe
from kvferry_lab.servers.same_host import tcp_config

__all__ = ["open_store"]


@contextmanager
def open_store(store: str) -> Iterator[tuple[str, str, ClientConfig]]:
    """A server's URL, what to call that server without giving a password away, and its address for
    who goes over TCP where it has one.

    Raises:
        ConfigError: `store` is neither "embedded" nor a URL that a client can use.
        StoreError: The embedded store did not start.
        UnavailableError: Nobody answers at the URL.
    """
    if store != "embedded":
        config = ClientConfig.from_url(store)
        yield store, f"{_version(config)} at {config.address}", config
        return
    with embedded_store() as embedded:
        config = tcp_config(embedded)
        yield embedded.url, f"{_version(config)}, embedded, over its Unix socket", config


def _version(config: ClientConfig) -> str:
    with ServerProbe(config) as probe:
        info = probe.info("server")
    kind = "valkey" if "valkey_version" in info else "redis"
    return f"{kind.title()} {info.get(f'{kind}_version', 'of unknown version')}"
