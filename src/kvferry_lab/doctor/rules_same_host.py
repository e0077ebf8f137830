"""Checks of the way to a server on this host: its Unix socket, or TCP all the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvferry_lab.doctor.facts import Facts, SameHostFacts
from kvferry_lab.doctor.finding import Finding, info, ok, size_text

__all__ = ["examine_same_host"]

_MIB = 1 << 20
_NONE = "the server has no Unix socket"


def examine_same_host(facts: Facts) -> Iterator[Finding]:
    """Every check; nothing where the server is not on this host, or TLS was asked for."""
    if facts.same_host is None:
        return
    kind = next((server.kind for server in facts.servers if server.kind), "redis")
    yield replace(way(facts.same_host, kind), scope="network")
    if kind == "kvferry":  # a node, which sees to the rest itself
        return
    if (finding := send_buffer(facts)) is not None:
        yield replace(finding, scope="host")
    if (finding := pacing(facts)) is not None:
        yield replace(finding, scope="host")


def way(found: SameHostFacts, kind: str) -> Finding:
    """Data goes over the server's Unix socket."""
    if found.unix_path is not None:
        return ok("same-host", f"over the Unix socket {found.unix_path}{_rates(found)}")
    seen = f"over TCP{_rates(found)}"
    if found.why != _NONE:
        return info("same-host", f"{seen}: {found.why}")
    fix = "kvferry node --listen unix:<path>   (besides its port; same user as the engine's)"
    if kind != "kvferry":
        lines = f"unixsocket /run/{kind}/{kind}.sock\nunixsocketperm 700"
        fix = f"{lines}   (configuration file; needs a restart; same user as the engine's)"
    why = "a Unix socket carries more for nothing, and the client finds it by itself"
    return info("same-host", f"{seen}: {found.why}", why, fix)


def send_buffer(facts: Facts) -> Finding | None:
    """A Unix socket holds enough that its two ends need not wait for each other."""
    text = facts.host.sysctls.get("net.core.wmem_default", "")
    if not text.isdigit():
        return None
    seen = f"net.core.wmem_default = {size_text(int(text))}"
    if int(text) >= _MIB:
        return ok("unix-buffer", seen)
    why = "what a Unix socket holds at most: both ends wake each other once for each of these"
    fix = f"sysctl -w net.core.wmem_default={_MIB}   (before the server starts)"
    return info("unix-buffer", seen, why, fix)


def pacing(facts: Facts) -> Finding | None:
    """Where data goes over TCP, nothing paces it on its way through this host's memory."""
    congestion = facts.host.sysctls.get("net.ipv4.tcp_congestion_control")
    if congestion != "bbr" or facts.same_host is None or facts.same_host.unix_path is not None:
        return None
    seen = f"net.ipv4.tcp_congestion_control = {congestion}, also over loopback"
    why = "it sends by a timer, which costs a server on this host up to a third of its rate"
    route = "local 127.0.0.1 dev lo proto kernel scope host src 127.0.0.1"
    fix = f"ip route change {route} table local congctl cubic   (for new connections)"
    return info("pacing", seen, why, fix)


def _rates(found: SameHostFacts) -> str:
    if found.gain is None or found.tcp_bytes_s is None or found.unix_bytes_s is None:
        return ""
    whose = " of a server started for this" if found.is_other_server else ""
    return (
        f"; GET over the socket{whose} {found.unix_bytes_s / 1e9:.2f} GB/s, "
        f"over TCP {found.tcp_bytes_s / 1e9:.2f} ({found.gain:.2f} x)"
    )
