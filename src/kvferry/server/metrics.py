"""What the server itself counts, beside what each identity's cache does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvferry.base.threads import failures
from kvferry.metrics import CacheMetrics
from kvferry.metrics.collector import exposition, text_of
from kvferry.metrics.series import Family, family_of

__all__ = ["metrics_text", "server_families"]


def server_families(status: Mapping[str, Any], *, ready: bool) -> list[Family]:
    """All families of a server as they are now."""
    protocol, pool = status["protocol"], status["pool"]
    return [
        _family("requests", "counter", "Messages by kind.", protocol["requests"], "kind"),
        _family("failures", "counter", "Refusals by code.", protocol["failures"], "code"),
        _family("received_bytes", "counter", "Bytes of requests.", protocol["received_bytes"]),
        _family("sent_bytes", "counter", "Bytes of replies.", protocol["sent_bytes"]),
        _family("waiting", "gauge", "Requests that wait or are worked on.", protocol["waiting"]),
        _family("sessions", "gauge", "Engines that are registered.", len(status["sessions"])),
        _family("sessions_ended", "counter", "Ends of sessions.", status["sessions_ended"], "why"),
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
        _family(
            "store_refuses",
            "gauge",
            "1: it did not take what it was given last.",
            {name: int(bool(s["refuses"])) for name, s in status["stores"].items()},
            "store",
        ),
        _family("ready", "gauge", "1: engines are served.", int(ready)),
        _family("thread_failures", "counter", "Faults in threads.", failures(), "thread"),
    ]


def metrics_text(status: Mapping[str, Any], caches: Sequence[CacheMetrics], *, ready: bool) -> str:
    """All series of a server and of its caches, one for each identity, in Prometheus' format."""
    own = text_of(server_families(status, ready=ready))
    return own + (exposition(caches) if caches else "")


def _family(
    name: str, kind: str, text: str, values: Mapping[str, float] | float, label: str = ""
) -> Family:
    return family_of(f"kvferry_server_{name}", kind, text, values, label)
