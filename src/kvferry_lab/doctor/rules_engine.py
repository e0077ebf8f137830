"""Checks of the server program itself: what it is, how it sends, its threads and its logs."""

from __future__ import annotations

from kvferry_lab.doctor.facts import ClientNeed, ServerFacts
from kvferry_lab.doctor.finding import Finding, fault, info, ok, size_text, warn

__all__ = ["RULES"]

_COPY_AVOIDANCE = {"redis": (8, 6), "valkey": (9, 0)}
_TESTED_SINCE = {"redis": (6, 2), "valkey": (7, 2), "kvferry": (0, 0)}
_CORES_MANY = 8
_LOGS = (
    ("commandlog-request-larger-than", "request"),
    ("commandlog-reply-larger-than", "reply"),
)


def version(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """Which server it is."""
    if not server.info:
        return info(
            "server", "unknown: INFO is refused", "most checks need it", "ACL SETUSER ... +info"
        )
    name = f"{server.kind or 'unknown'} {server.version}".strip()
    since = _TESTED_SINCE.get(server.kind)
    if since is None:
        return info("server", name, "kvferry is tested with Redis and Valkey only")
    if server.release < since:
        why = f"kvferry is tested from {server.kind} {since[0]}.{since[1]} on"
        return info("server", name, why)
    return ok("server", name)


def loading(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """It is ready."""
    if server.info.get("loading") == "1":
        why = "every command is answered with LOADING, which the client takes as unavailable"
        return fault("loading", "it loads a file from disk", why, "wait, or start it without files")
    return None


def copy_avoidance(server: ServerFacts, need: ClientNeed) -> Finding | None:
    """Large replies are sent from where the value is, not from a copy."""
    check, since = "copy-avoidance", _COPY_AVOIDANCE.get(server.kind)
    if since is None:
        return None
    if server.release < since:
        why = (
            "each GET copies the value first: 22 ms of CPU for 32 MiB instead of 5, measured; deep "
            "pipelines of them count as memory and evict the cache that they read"
        )
        fix = f"run {server.kind} {since[0]}.{since[1]} or later"
        return info(check, f"no: {server.kind} {server.version}", why, fix)
    least = server.config and server.config.get("min-string-size-avoid-copy-reply")
    if least and least.isdigit() and int(least) > need.chunk_bytes:
        why = (
            "each GET of a smaller value copies it: 22 ms of CPU for 32 MiB instead of 5, measured"
        )
        fix = "CONFIG SET min-string-size-avoid-copy-reply 16384"
        return warn(check, f"only for values above {size_text(int(least))}", why, fix)
    return ok(check, "yes")


def io_threads(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """As many as the cores can feed."""
    text, cores = server.setting("io-threads"), server.cores
    if text is None or not text.isdigit() or server.kind == "kvferry":  # a node's do not spin
        return None
    count = int(text)
    seen = f"io-threads {count}" + (f" on {cores} cores" if cores else "")
    where = "   (configuration file; needs a restart before Valkey 9)"
    if cores and count > cores:
        why = "they spin while they wait: short of cores they take the main thread's"
        return warn("io-threads", seen, why, f"io-threads {max(1, min(4, cores // 4))}{where}")
    if count == 1 and cores and cores >= _CORES_MANY:
        why = "one thread does all sending and receiving; published: 1.5 GB/s then, 6 GB/s with 4"
        return warn("io-threads", seen, why, f"io-threads {min(4, cores // 4)}{where}")
    if count == 1 and not cores:
        why = "one thread does all sending and receiving; its host's cores are not known from here"
        return info("io-threads", seen, why, f"io-threads 4{where.replace('(', '(if it has 8: ')}")
    is_old = server.kind == "redis" and server.release < (8, 0)
    if count > 1 and is_old and server.setting("io-threads-do-reads") == "no":
        why = "before Redis 8 they only send; SETs are still received by the main thread"
        fix = "io-threads-do-reads yes   (configuration file; needs a restart)"
        return warn("io-threads", f"{seen}, io-threads-do-reads no", why, fix)
    return ok("io-threads", seen)


def command_log(server: ServerFacts, need: ClientNeed) -> Finding | None:
    """Large requests and replies are not what it should note."""
    noisy = []
    for name, what in _LOGS:
        least = server.setting_bytes(name)
        if least is None:
            return None
        if 0 <= least <= need.chunk_bytes:
            noisy.append((name, what))
    if not noisy:
        return ok("commandlog", "large requests and replies are not logged")
    kinds = " and ".join(what for _, what in noisy)
    seen = f"every {kinds} of {size_text(need.chunk_bytes)} is logged"
    fix = "CONFIG SET " + " ".join(f"{name} -1" for name, _ in noisy)
    why = "with chunks that is all of them, and noting replies costs I/O threads extra"
    if server.setting("io-threads") == "1":
        return info("commandlog", seen, "with chunks that is all of them", fix)
    return warn("commandlog", seen, why, fix)


def slow_log(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """It notes what is slow, not everything."""
    for name in ("commandlog-execution-slower-than", "slowlog-log-slower-than"):
        least_us = server.setting_bytes(name)
        if least_us is None:
            continue
        if 0 <= least_us < 1000:
            why = "commands on large values pass that as a rule, and each entry costs"
            return warn("slowlog", f"{name} {least_us} us", why, f"CONFIG SET {name} 10000")
        return ok("slowlog", f"{name} {least_us} us")
    return None


def latency_monitor(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """It watches for what is rare."""
    least_ms = server.setting_bytes("latency-monitor-threshold")
    if least_ms is None:
        return None
    if 0 < least_ms < 10:
        why = "freeing 32 MiB takes 2 to 3 ms, measured: ordinary work is recorded as events"
        fix = "CONFIG SET latency-monitor-threshold 100"
        return info("latency-monitor", f"latency-monitor-threshold {least_ms} ms", why, fix)
    return ok("latency-monitor", f"{least_ms} ms" if least_ms else "off")


RULES = (
    version,
    loading,
    copy_avoidance,
    io_threads,
    command_log,
    slow_log,
    latency_monitor,
)
