"""A server, or the caches of this host, as seen by somebody who asks again and again.

    watch = Watch("http://127.0.0.1:8080")    # or WatchHere()
    watch.look()
    watch.problem               # None, or why there is no answer
    watch.rate("hit", "l1")     # tokens a second since the look before

A look never raises: a server that went is a problem until it is back. Counters that fell are those
of a server that began anew; then there is no rate until the next look. Each process of this host
and user that has a cache says what a server would (`kvferry.rpc.local`); `WatchHere` sees
them as one server, whose counters are sums. One more process, or one less, is a new beginning.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from kvferry.base.errors import UsageError
from kvferry.base.shown import reason_of
from kvferry.rpc.local import ask_local, local_names

__all__ = ["NoRedirection", "Watch", "WatchHere", "counters"]

_TIMEOUT_S = 5.0
_ANSWER_BYTES_MAX = 64 << 20

Counters = dict[tuple[str, str], float]


class Watch:
    """See the head of this module.

    Args:
        url: Of the server's HTTP side.
        token: Of that server, if it has one.

    Attributes:
        status: The last answer of /v1/status; empty before the first.
        problem: Why the last look brought none.
        away_s: Since when there is none, in seconds; 0 while there is.

    Raises:
        UsageError: The URL is none of HTTP.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        if "://" not in url:
            url = f"http://{url}"
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise UsageError("the URL is none of HTTP; write e.g. http://127.0.0.1:8080")
        self.url = url.rstrip("/")
        self.status: dict[str, Any] = {}
        self.problem: str | None = None
        self._token = token
        self._now: tuple[float, Counters] | None = None
        self._before: tuple[float, Counters] | None = None
        self._away_since: float | None = None

    @property
    def title(self) -> str:
        """The title of a frame, for people."""
        return f"kvferry server {self.status.get('version', '')} at {self.url}"

    @property
    def away_s(self) -> float:
        """See the class."""
        return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    def look(self) -> None:
        """Ask once."""
        status, problem = self._ask()
        self.problem = problem
        if problem is not None:
            self._away_since = self._away_since or time.monotonic()
            self._before = self._now = None
            return
        again = status.get("incarnation") != self.status.get("incarnation")
        self._before = None if again else self._now
        self._now = (time.monotonic(), counters(status))
        self.status, self._away_since = status, None

    def total(self, name: str, label: str = "") -> float | None:
        """A counter; None where there is none."""
        return None if self._now is None else self._now[1].get((name, label))

    def rate(self, name: str, label: str = "") -> float | None:
        """By how much it grows in a second; None before the second look."""
        if self._now is None or self._before is None:
            return None
        (now, new), (then, old) = self._now, self._before
        grown = new.get((name, label), 0.0) - old.get((name, label), 0.0)
        return grown / (now - then) if grown >= 0 and now > then else None

    def labels(self, name: str) -> list[str]:
        """The labels of a counter, sorted."""
        return [] if self._now is None else sorted(la for n, la in self._now[1] if n == name)

    def _ask(self) -> tuple[dict[str, Any], str | None]:
        request = urllib.request.Request(f"{self.url}/v1/status")
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        # Not by a proxy, nor to wherever a redirection leads: there is a token in the request.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirection)
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                raw = answer.read(_ANSWER_BYTES_MAX + 1)
            found = json.loads(raw)
        except urllib.error.HTTPError as error:
            with error:
                return {}, _refused(error)
        except urllib.error.URLError as error:
            return {}, reason_of(error)
        except (OSError, ValueError, RecursionError) as error:
            return {}, f"no answer that can be read ({type(error).__name__})"
        if not isinstance(found, dict) or not isinstance(found.get("identities", []), list):
            return {}, "the answer is not that of a kvferry server"
        return found, None


class NoRedirection(urllib.request.HTTPRedirectHandler):
    """A redirection is an error."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _refused(error: urllib.error.HTTPError) -> str:
    if error.code == 401:
        return "the token is missing or another one; use --token-file"
    return f"HTTP status {error.code}"


def counters(status: Mapping[str, Any]) -> Counters:
    """The counters of a status, summed over all identities, by name and label."""
    found: Counters = {}

    def add(name: str, label: str, value: Any) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name, label] = found.get((name, label), 0.0) + value

    for metrics in _metrics(status):
        for ours, theirs in _FAMILIES.items():
            values = metrics.get(f"kvferry_{theirs}_total")
            for label, value in (values if isinstance(values, Mapping) else {"": values}).items():
                add(ours, label, value)
    for identity in _identities(status):
        memory = identity.get("memory")
        came = memory.get("insertions") if isinstance(memory, Mapping) else None
        size = identity.get("chunk_bytes")
        if isinstance(came, int) and isinstance(size, int):
            add("came_bytes", "", came * size)
    protocol = status.get("protocol")
    if isinstance(protocol, Mapping):
        requests = protocol.get("requests")
        for value in (requests if isinstance(requests, Mapping) else {}).values():
            add("requests", "", value)
    return found


def _metrics(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for identity in _identities(status):
        if isinstance(identity.get("metrics"), Mapping):
            yield identity["metrics"]


def _identities(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for identity in status.get("identities", ()):
        if isinstance(identity, Mapping):
            yield identity


# Our name: that of the metric.
_FAMILIES = {
    "requested": "tokens_requested",
    "hit": "tokens_hit",
    "hit_bytes": "bytes_hit",
    "load_bytes": "load_bytes",
    "store_bytes": "store_bytes",
    "evicted": "evicted_chunks",
    "shed": "shed_chunks",
    "missed": "missed_chunks",
}


def _status_of(name: str) -> dict[str, Any]:
    """What a process says of itself; empty if it does not."""
    try:
        said = json.loads(ask_local(name, "status", b"", _TIMEOUT_S))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


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
            said = [one for one in map(_status_of, local_names()) if one.get("identities")]
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
