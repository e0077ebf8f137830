"""Caches in the processes of this host and user, seen as one server is: `kvferry.cli.top_watch`.

    watch = WatchHere()
    watch.look()
    watch.problem        # None, or that there is no such process

Each process says what a server would (`kvferry.cache.status_socket`); here all of them are one,
whose counters are sums. One more process, or one less, is a new beginning.
"""

from __future__ import annotations

from typing import Any

from kvferry.cache.status_socket import looks
from kvferry.cli.top_watch import Watch

__all__ = ["WatchHere"]


class WatchHere(Watch):
    """See the head of this module."""

    def __init__(self) -> None:
        super().__init__("http://localhost")

    @property
    def title(self) -> str:
        """See `Watch`."""
        count = len(self.status.get("sessions", ()))
        processes = "1 process" if count == 1 else f"{count} processes"
        return f"kvferry {self.status.get('version', '')} in {processes} of this host and user"

    def _ask(self) -> tuple[dict[str, Any], str | None]:
        try:
            said = [one for one in looks() if one.get("identities")]
        except OSError as error:
            return {}, str(error)
        if not said:
            return {}, "no engine with a cache in its process runs here"
        pools = [one["pool"] for one in said]
        return {
            "version": said[0].get("version", ""),
            "incarnation": " ".join(sorted(str(one.get("incarnation")) for one in said)),
            "uptime_s": max(one.get("uptime_s", 0.0) for one in said),
            "state": "ready",
            "pool": {name: sum(pool[name] for pool in pools) for name in pools[0]},
            "identities": [row for one in said for row in one["identities"]],
            "sessions": [row for one in said for row in one["sessions"]],
        }, None
