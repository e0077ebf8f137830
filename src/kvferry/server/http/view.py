"""What HTTP and the command line see of a running server, and all that they may do to it."""

from __future__ import annotations

from typing import Any, Protocol

from kvferry.cache import TieredCache
from kvferry.config.server import ServerConfig

__all__ = ["ServerView"]


class ServerView(Protocol):
    """A server as seen from another thread than its loop; every member may be used by any thread.

    No member waits for the loop: what they say was true a moment ago.
    """

    @property
    def config(self) -> ServerConfig:
        """The settings in force, after the last reload."""

    @property
    def endpoints(self) -> list[str]:
        """Where it listens, with the ports that it got."""

    @property
    def state(self) -> str:
        """One of "starting", "ready", "draining" and "ended"."""

    @property
    def ready(self) -> bool:
        """Whether engines are served; False while it starts and while it drains."""

    @property
    def alive(self) -> bool:
        """Whether its loop turns: the last heartbeat of the loop is younger than 2 s."""

    @property
    def degraded(self) -> list[str]:
        """Names of stores that cannot be asked; the rest is served."""

    def status(self) -> dict[str, Any]:
        """What the server holds and does, as JSON has it.

        version, incarnation, uptime_s, state ("starting", "ready" or "draining"), pool (bytes,
        granted, free, pages ...), identities [...], sessions [...], requests (counters), stores.
        """

    def cache(self, identity: str | None) -> TieredCache:
        """The cache of one identity.

        Args:
            identity: Its digest in hex, a beginning of that which no other one has, or the name of
                its model. None: the only one.

        Raises:
            UsageError: There is none, or more than one; the text names the known ones.
        """

    def metrics_text(self) -> str:
        """Its metrics in the text format of Prometheus."""

    def reload(self) -> list[str]:
        """Read again what can change while it runs; return what changed, in words.

        Raises:
            ConfigError: The settings are malformed; nothing changed.
        """

    def stop(self) -> None:
        """Begin to drain; returns at once."""
