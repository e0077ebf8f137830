"""Checks of what a server does to its clients: its limits, who may come in, who can listen, and who
else depends on the server.
"""

from __future__ import annotations

from kvferry_lab.doctor.facts import (
    ClientNeed,
    Finding,
    ServerFacts,
    fault,
    info,
    ok,
    size_text,
    warn,
)

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
_LOOPBACK = ("127.", "::1", "localhost")
_GIB = 1 << 30
_BACKLOG_BYTES_MIN = 256 << 20
_EXPIRES_S = 14 * 86_400


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


def password(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """Strangers are not let in."""
    if server.is_open is None:
        return None
    if not server.is_open:
        return ok("password", "needed")
    where = _bound_to(server)
    if where is not None and all(address.startswith(_LOOPBACK) for address in where):
        return ok("password", "none, but it is bound to loopback")
    why = "KV reveals the prompts it was computed from, and whoever writes it changes the answers"
    fix = "CONFIG SET requirepass <secret>"
    if where is None:
        return info("password", "none, for anyone who can reach the port", why, fix)
    seen = f"none, and bound to {' '.join(where)}"
    if server.setting("protected-mode") == "yes":
        return warn("password", f"{seen}; only protected-mode keeps other hosts out", why, fix)
    return fault("password", f"{seen}, protected-mode no", why, fix)


def encryption(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """Nobody on the way can read along."""
    if server.tls and not server.is_verified:
        why = "whoever is on the way can answer in the server's place, and is told the password"
        fix = "?tls_ca_file=/path/of/ca.pem instead of tls_verify=...   (in the client's URL)"
        return warn("tls", f"{server.tls}, and the server's name is not checked", why, fix)
    if server.tls:
        return ok("tls", server.tls)
    if server.is_near:
        return ok("tls", "not used; the bytes do not leave this host")
    seen = "not used" + (", and the password travels in clear text" if server.has_secret else "")
    why = "whoever is on the way can read prompts out of KV, and change it"
    return info("tls", seen, why, "tls-port 6379, port 0   (configuration file); then rediss://")


def certificate(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """The server's certificate lasts (Valkey 9.1 and later say so)."""
    left_s = server.count("tls_server_cert_expires_in_seconds")
    if not server.tls or left_s is None:
        return None
    days = f"{left_s / 86_400:.0f} days"
    if left_s < _EXPIRES_S:
        why = "then no client connects any more"
        fix = "renew the file, then CONFIG SET tls-cert-file <path> tls-key-file <path>"
        return warn("tls-certificate", f"expires in {days}", why, fix)
    return ok("tls-certificate", f"expires in {days}")


def role(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """It takes writes."""
    name = server.info.get("role")
    if name is None:
        return None
    if name == "master":
        return ok("role", "primary")
    link = "" if server.info.get("master_link_status") == "up" else ", whose link is down"
    primary = f"{server.info.get('master_host')}:{server.info.get('master_port')}"
    return fault(
        "role", f"replica of {primary}{link}", "it refuses every write", f"connect to {primary}"
    )


def write_quorum(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """No write waits for replicas that are not there."""
    least, have = server.setting_bytes("min-replicas-to-write"), server.count("connected_slaves")
    if least is None or have is None:
        return None
    if least > have:
        seen = f"min-replicas-to-write {least}, {have} connected"
        why = "every SET is answered with NOREPLICAS"
        return fault("write-quorum", seen, why, "CONFIG SET min-replicas-to-write 0")
    return ok("write-quorum", f"{least} of {have} replicas")


def replication(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """What replicas cost when megabytes are written, where there are any."""
    count = server.count("connected_slaves")
    if not count:
        return None if count is None else ok("replication", "no replicas")
    limits, ahead = buffer_limits(server, "replica"), server.setting_bytes("repl-backlog-size")
    if limits is None or ahead is None:
        return None
    hard, soft, soft_s = limits
    seen = (
        f"{count} replicas; repl-backlog-size {size_text(ahead)}, client-output-buffer-limit "
        f"replica {size_text(hard)} {size_text(soft)} {soft_s}"
    )
    if ahead >= _BACKLOG_BYTES_MIN and (not hard or hard >= _GIB):
        return ok("replication", seen)
    why = (
        "at 1 GB/s 256 MiB last a quarter of a second: a replica that falls behind is cut off and "
        "copies everything anew, by a fork. A cache does not need replicas"
    )
    fix = 'CONFIG SET repl-backlog-size 1gb client-output-buffer-limit "replica 4gb 0 0"'
    return warn("replication", seen, why, fix)


def _bound_to(server: ServerFacts) -> list[str] | None:
    """Addresses that it listens on, beyond Unix sockets; None if that is not shown."""
    if server.config is None or "bind" not in server.config:
        return None
    if server.config.get("port") == "0" and server.config.get("tls-port", "0") == "0":
        return []
    # "-" only says that an address may be missing; no address at all means every one.
    return [name.removeprefix("-") for name in server.config["bind"].split()] or ["*"]


RULES = (
    output_buffer,
    query_buffer,
    bulk_length,
    client_memory,
    max_clients,
    idle_timeout,
    backlog,
    cut_off,
    password,
    encryption,
    certificate,
    role,
    write_quorum,
    replication,
)
