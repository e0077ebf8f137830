"""Checks of who may come in, who can listen, and who else depends on the server."""

from __future__ import annotations

from kvferry_lab.doctor.facts import ClientNeed, ServerFacts
from kvferry_lab.doctor.finding import Finding, fault, info, ok, size_text, warn
from kvferry_lab.doctor.rules_clients import buffer_limits

__all__ = ["RULES"]

_LOOPBACK = ("127.", "::1", "localhost")
_GIB = 1 << 30
_BACKLOG_BYTES_MIN = 256 << 20
_EXPIRES_S = 14 * 86_400


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


RULES = (password, encryption, certificate, role, write_quorum, replication)
