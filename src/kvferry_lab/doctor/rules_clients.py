"""Checks of the limits that a server sets its clients."""

from __future__ import annotations

from kvferry_lab.doctor.facts import ClientNeed, ServerFacts
from kvferry_lab.doctor.finding import Finding, fault, ok, size_text, warn

__all__ = ["RULES"]

_MIB = 1 << 20
_IN_FLIGHT_BYTES = 64 * _MIB  # what one connection may have asked for ahead, far away
_HEADS_BYTES = 64 << 10  # what stands around a value
_TIMEOUT_S_MIN = 300
_BACKLOG_MIN = 128
_SPARE_CLIENTS = 64
_COUNTERS = {
    "client_output_buffer_limit_disconnections": "for their output buffer",
    "client_query_buffer_limit_disconnections": "for their query buffer",
    "evicted_clients": "for memory",
}


def output_buffer(server: ServerFacts, need: ClientNeed) -> Finding | None:
    """Replies of many megabytes may wait to be sent."""
    limits = buffer_limits(server, "normal")
    if limits is None:
        return None
    hard, soft, soft_s = limits
    seen = f"client-output-buffer-limit normal {size_text(hard)} {size_text(soft)} {soft_s}"
    fix = 'CONFIG SET client-output-buffer-limit "normal 0 0 0"'
    why = "a client that has asked for more than this at once is cut off in the middle of a value"
    if 0 < hard < need.chunk_bytes + _HEADS_BYTES:
        return fault("output-buffer", seen, f"{why}: one chunk is more", fix)
    if 0 < hard < need.value_bytes_max + _IN_FLIGHT_BYTES or (0 < soft < _IN_FLIGHT_BYTES):
        return warn("output-buffer", seen, why, fix)
    return ok("output-buffer", "no limit" if not hard else size_text(hard))


def query_buffer(server: ServerFacts, need: ClientNeed) -> Finding | None:
    """A SET's value fits into what a client may send."""
    name = "client-query-buffer-limit"
    why = "a client that sends a longer request is cut off: SET never works"
    return _room(server, need, "query-buffer", name, why, "1gb")


def bulk_length(server: ServerFacts, need: ClientNeed) -> Finding | None:
    """A value may be as long as ours."""
    why = "a longer value is a protocol error, and the connection ends: SET never works"
    return _room(server, need, "bulk-length", "proto-max-bulk-len", why, "512mb")


def client_memory(server: ServerFacts, need: ClientNeed) -> Finding | None:
    """All clients together may hold their replies."""
    name, text = "maxmemory-clients", server.setting("maxmemory-clients")
    if text is None:
        return None
    limit = server.setting_bytes(name)
    if text.endswith("%") and text[:-1].isdigit():
        limit = int(text[:-1]) * (server.count("maxmemory") or 0) // 100
    if not limit:
        return ok(name, "no limit")
    seen = f"{name} {text}" + (f": {size_text(limit)}" if text != str(limit) else "")
    why = "beyond it the server closes the clients that hold most, which are those that load chunks"
    fix = f"CONFIG SET {name} 0"
    if limit < 2 * need.chunk_bytes:
        return fault(name, seen, why, fix)
    if limit < need.connections * 4 * need.chunk_bytes:
        return warn(name, seen, why, fix)
    return ok(name, seen)


def max_clients(server: ServerFacts, need: ClientNeed) -> Finding | None:
    """There is room for our connections."""
    limit, used = server.count("maxclients"), server.count("connected_clients")
    if limit is None or used is None:
        return None
    seen = f"maxclients {limit:,}, {used:,} connected"
    fix = f"CONFIG SET maxclients {max(10_000, 2 * limit)}"
    why = f"one client opens up to {need.connections + 2} connections, and is refused beyond this"
    if limit - used < need.connections + 2:
        return fault("maxclients", seen, why, fix)
    if limit - used < need.connections + 2 + _SPARE_CLIENTS:
        return warn("maxclients", seen, why, fix)
    if rejected := server.count("rejected_connections"):
        return warn("maxclients", f"{seen}, {rejected:,} refused so far", why, fix)
    return ok("maxclients", seen)


def idle_timeout(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """Idle connections stay open."""
    idle_s = server.setting_bytes("timeout")
    if idle_s is None:
        return None
    if 0 < idle_s < _TIMEOUT_S_MIN:
        why = (
            "loads come in bursts: after each pause every connection is dialled, greeted and "
            "starts with a small congestion window"
        )
        return warn("timeout", f"timeout {idle_s} s", why, "CONFIG SET timeout 0")
    return ok("timeout", f"{idle_s} s" if idle_s else "never")


def backlog(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """Many may connect in one moment."""
    length = server.setting_bytes("tcp-backlog")
    if length is None:
        return None
    if length < _BACKLOG_MIN:
        why = (
            "when an engine with many workers starts, connections beyond this wait a second or more"
        )
        fix = "tcp-backlog 511   (configuration file; needs a restart)"
        return warn("tcp-backlog", f"tcp-backlog {length}", why, fix)
    return ok("tcp-backlog", str(length))


def cut_off(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """No client was thrown out for what it held."""
    counts = {what: server.count(name) for name, what in _COUNTERS.items()}
    seen = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    if seen:
        why = "their batches were repeated on new connections, or failed"
        fix = 'CONFIG SET client-output-buffer-limit "normal 0 0 0" maxmemory-clients 0'
        return warn("clients-cut-off", f"clients closed: {seen}", why, fix)
    if all(count is None for count in counts.values()):
        return None
    return ok("clients-cut-off", "none")


def buffer_limits(server: ServerFacts, of: str) -> tuple[int, int, int] | None:
    """Hard and soft limit in bytes, and seconds, of a class of clients."""
    words = (server.setting("client-output-buffer-limit") or "").split()
    names = {of, "slave"} if of == "replica" else {of}
    for name, *limits in zip(*[iter(words)] * 4, strict=False):
        if name in names and all(limit.isdigit() for limit in limits):
            hard, soft, soft_s = map(int, limits)
            return hard, soft, soft_s
    return None


def _room(
    server: ServerFacts, need: ClientNeed, check: str, name: str, why: str, default: str
) -> Finding | None:
    limit = server.setting_bytes(name)
    if limit is None:
        return None
    seen, fix = f"{name} {size_text(limit)}", f"CONFIG SET {name} {default}"
    if limit < need.chunk_bytes + _HEADS_BYTES:
        return fault(check, seen, why, fix)
    if limit < need.value_bytes_max + _HEADS_BYTES:
        why = f"values up to {size_text(need.value_bytes_max)} of the plain client do not fit"
        return warn(check, seen, why, fix)
    return ok(check, size_text(limit))


RULES = (
    output_buffer,
    query_buffer,
    bulk_length,
    client_memory,
    max_clients,
    idle_timeout,
    backlog,
    cut_off,
)
