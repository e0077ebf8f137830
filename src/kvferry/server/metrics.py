"""What the server itself counts, beside what each identity's engine does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvferry.metrics.exposition import exposition
from kvferry.metrics.series import Family

if TYPE_CHECKING:
    from kvferry.server.server import Server

__all__ = ["ServerMetrics", "metrics_text"]


class ServerMetrics:
    """The families of one server, read when somebody asks; shaped like `CacheMetrics`."""

    def __init__(self, server: Server) -> None:
        self.labels: Mapping[str, str] = {}
        self._server = server

    def families(self) -> list[Family]:
        """All families as they are now."""
        status = self._server.summary()
        protocol, pool = status["protocol"], status["pool"]
        return [
            _family("requests", "counter", "Messages by kind.", protocol["requests"], "kind"),
            _family("failures", "counter", "Refusals by code.", protocol["failures"], "code"),
            _family("received_bytes", "counter", "Bytes of requests.", protocol["received_bytes"]),
            _family("sent_bytes", "counter", "Bytes of replies.", protocol["sent_bytes"]),
            _family(
                "waiting", "gauge", "Requests that wait or are worked on.", protocol["waiting"]
            ),
            _family("sessions", "gauge", "Engines that are registered.", len(status["sessions"])),
            _family(
                "sessions_ended", "counter", "Ends of sessions.", status["sessions_ended"], "why"
            ),
            _family(
                "refused_engines",
                "counter",
                "Registrations that were refused, by code.",
                status["refusals"]["by_code"],
                "code",
            ),
            _family("fenced_pages", "gauge", "Pages of the dead.", status["fenced_pages"]),
            _family("pool_bytes", "gauge", "Limit of the pool.", pool["bytes"]),
            _family("pool_granted_bytes", "gauge", "Memory behind it.", pool["granted_bytes"]),
            _family(
                "store_available",
                "gauge",
                "1: the store can be asked.",
                {name: int(bool(s["available"])) for name, s in status["stores"].items()},
                "store",
            ),
            _family("ready", "gauge", "1: engines are served.", int(self._server.ready)),
        ]


def metrics_text(server: Server) -> str:
    """All series of a server and its engines in Prometheus' text format."""
    engines = [shard.engine.metrics for shard in server.shards]
    return exposition([ServerMetrics(server)]) + (exposition(engines) if engines else "")


def _family(
    name: str, kind: str, text: str, values: Mapping[str, float] | float, label: str = ""
) -> Family:
    family = Family(f"kvferry_server_{name}", kind, text, label)
    family.values.update(values if isinstance(values, Mapping) else {"": values})
    return family
