"""Checks of one server: its program, memory, disks and forks.

That is threads and logs, the limit of memory and what happens at it, the allocator beneath, and
what is written to disks, which a cache does not need.
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

_COPY_AVOIDANCE = {"redis": (8, 6), "valkey": (9, 0)}
_TESTED_SINCE = {"redis": (6, 2), "valkey": (7, 2), "kvferry": (0, 0)}
_CORES_MANY = 8
_LOGS = (
    ("commandlog-request-larger-than", "request"),
    ("commandlog-reply-larger-than", "reply"),
)
_MIB = 1 << 20
_CHUNKS_MIN = 64  # room for fewer is hardly a cache
_FULL = 0.95
_FRAGMENTED_BYTES_MIN = 1 << 30


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


def maxmemory(server: ServerFacts, need: ClientNeed) -> Finding | None:
    """There is a limit, it fits into the machine, and chunks fit into it."""
    limit, machine = server.count("maxmemory"), server.count("total_system_memory")
    if limit is None:
        return None
    fix = "CONFIG SET maxmemory 8gb"
    if machine:
        fix = f"CONFIG SET maxmemory {machine * 3 // 4 // _MIB}mb"
    if limit == 0:
        why = "it grows until the kernel kills it: a cache fills whatever it is given"
        return warn("maxmemory", "maxmemory 0: no limit", why, fix)
    if machine and limit > machine * 0.9:
        seen = f"maxmemory {size_text(limit)} of {size_text(machine)} in the machine"
        why = (
            "buffers and replies in flight come on top: a value that is overwritten while it is "
            "sent stays until it is sent"
        )
        return warn("maxmemory", seen, why, fix)
    room = limit // (need.chunk_bytes * 5 // 4)  # 4 MiB are billed as the size class of 5 MiB
    if room < _CHUNKS_MIN:
        seen = f"maxmemory {size_text(limit)}: room for {room} values of {_chunk(need)}"
        return warn("maxmemory", seen, "chunks push each other out before they are read again", fix)
    return ok("maxmemory", f"{size_text(limit)}: room for {room:,} values of {_chunk(need)}")


def maxmemory_policy(server: ServerFacts, need: ClientNeed) -> Finding | None:
    """What is forgotten when memory is full."""
    policy, check = server.info.get("maxmemory_policy"), "maxmemory-policy"
    if not policy:
        return None
    seen = f"maxmemory-policy {policy}"
    fix = "CONFIG SET maxmemory-policy allkeys-lru"
    if policy == "noeviction":
        limit, used = server.count("maxmemory"), server.count("used_memory") or 0
        why = "nothing is ever forgotten: once memory is full, every SET is answered with OOM"
        if limit and used > limit * _FULL:
            seen += f", and {used / limit:.0%} of maxmemory is used"
            return fault(check, seen, why, fix)
        if limit and need.ttl_s is None:
            return fault(check, f"{seen}, and values are set without a TTL", why, fix)
        return warn(check, seen, why, fix)
    if policy.startswith("volatile-") and need.ttl_s is None:
        why = (
            "keys without a TTL are never evicted here, and values are set without one: once "
            "memory is full, every SET is answered with OOM. Managed services come like this"
        )
        return fault(check, seen, why, f"{fix}   (or give the client a TTL: ?ttl_s=86400)")
    if policy.endswith("-lrm"):
        why = "reads do not protect a key here, so the prefix that everybody shares is evicted"
        return warn(check, seen, why, fix)
    if policy == "allkeys-random":
        return info(check, seen, "the prefix that everybody shares is as likely to go", fix)
    return ok(check, policy)


def evictions(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """How much was evicted, beside how much was found."""
    evicted = server.count("evicted_keys")
    if evicted is None:
        return None
    hits, misses = server.count("keyspace_hits") or 0, server.count("keyspace_misses") or 0
    seen = f"{evicted:,} keys evicted; {hits:,} hits, {misses:,} misses since the start"
    if evicted == 0:
        return ok("evictions", seen)
    return info("evictions", seen, "the cache is full; more memory would keep more of it")


def allocator(server: ServerFacts, need: ClientNeed) -> Finding | None:
    """From what size on a value costs a page fault for each 4 KiB."""
    name = server.info.get("mem_allocator", "")
    if name.startswith("jemalloc"):
        cliff, faults = 7 * _MIB, "4 MiB 32 faults and 1.1 ms of CPU, 32 MiB 8,193 and 22 ms"
        fix = (
            "start the server with JE_MALLOC_CONF=oversize_threshold:0 and enable-debug-command "
            "local, then once: DEBUG MALLCTL arena.0.oversize_threshold 1073741824"
        )
    elif name == "libc":
        cliff, faults = 32 * _MIB, "16 MiB 682 faults and 10 ms of CPU, 32 MiB 8,193 and 35 ms"
        fix = (
            "start the server with "
            "GLIBC_TUNABLES=glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8589934592"
        )
    else:
        return info("allocator", f"allocator {name}") if name else None
    seen = f"{name}: from {size_text(cliff)} on, each SET faults in all of its pages"
    why = f"one SET, measured: {faults}; without copy avoidance GET pays the same"
    if need.chunk_bytes < cliff <= need.value_bytes_max:
        why += (
            f". Namespaces are not concerned, they cut values at {_chunk(need)}; large values of "
            "the plain client are"
        )
    if need.chunk_bytes >= cliff:
        return warn("allocator", seen, why, fix)
    return info("allocator", seen, why, fix)


def activedefrag(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """Nothing is moved about for large values."""
    if server.setting("activedefrag") == "yes":
        why = "it takes up to a quarter of the main thread, and values of megabytes never need it"
        return warn("activedefrag", "activedefrag yes", why, "CONFIG SET activedefrag no")
    return ok("activedefrag", "off")


def fragmentation(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """Memory that the allocator holds and nobody uses."""
    used, resident = server.count("used_memory"), server.count("used_memory_rss")
    if not used or not resident:
        return None
    seen = f"{size_text(resident)} resident for {size_text(used)} used"
    if resident > used * 3 // 2 and resident - used > _FRAGMENTED_BYTES_MIN:
        return info("fragmentation", seen, "freed memory was not given back", "MEMORY PURGE")
    return ok("fragmentation", seen)


def lazy_flush(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """Whether a FLUSHALL stops everything else; DEL of one string never is lazy."""
    if server.setting("lazyfree-lazy-user-flush") == "no":
        why = "FLUSHALL of a full cache frees it on the main thread: nobody is served meanwhile"
        fix = "CONFIG SET lazyfree-lazy-user-flush yes"
        return info("lazy-flush", "lazyfree-lazy-user-flush no", why, fix)
    return ok("lazy-flush", "FLUSHALL frees in the background")


def _chunk(need: ClientNeed) -> str:
    return size_text(need.chunk_bytes)


def snapshots(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """No save points."""
    points = server.setting("save")
    if not points:
        return ok("save", "no save points")
    why = (
        "the fork copies every page that is written meanwhile, up to all memory again, and KV can "
        "be computed anew"
    )
    return warn("save", f"save {points}", why, 'CONFIG SET save ""')


def append_only(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """No append-only file."""
    enabled = server.count("aof_enabled")
    if enabled is None:
        return None
    if not enabled:
        return ok("appendonly", "off")
    why = "every chunk is also written to disk, and rewriting the file forks"
    return warn("appendonly", "appendonly yes", why, "CONFIG SET appendonly no")


def failed_save(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """A snapshot that failed makes the server refuse writes."""
    status = server.info.get("rdb_last_bgsave_status")
    if status is None:
        return None
    if status == "ok":
        return ok("bgsave", "the last snapshot did not fail")
    why = "with stop-writes-on-bgsave-error, the default, every SET is answered with MISCONF"
    fix = 'CONFIG SET save "" stop-writes-on-bgsave-error no'
    if server.config is not None and server.setting("stop-writes-on-bgsave-error") == "no":
        return warn("bgsave", "the last snapshot failed; writes go on", why, 'CONFIG SET save ""')
    return fault("bgsave", "the last snapshot failed", why, fix)


def huge_pages(server: ServerFacts, _: ClientNeed) -> Finding | None:
    """Huge pages suit a server that never forks, and no other."""
    disabled = server.setting("disable-thp")
    if disabled != "no":
        return None if disabled is None else ok("disable-thp", "no huge pages")
    forks = (
        server.setting("save") or server.count("aof_enabled") or server.count("connected_slaves")
    )
    if forks:
        why = "after a fork each write copies 2 MiB; this server forks, to save or to replicate"
        return warn(
            "disable-thp",
            "disable-thp no, with forks",
            why,
            "disable-thp yes   (configuration file; needs a restart)",
        )
    why = "without forks this helps: 32 MiB SET took half the CPU, measured"
    return info("disable-thp", "disable-thp no", why)


RULES = (
    version,
    loading,
    copy_avoidance,
    io_threads,
    command_log,
    slow_log,
    latency_monitor,
    maxmemory,
    maxmemory_policy,
    evictions,
    allocator,
    activedefrag,
    fragmentation,
    lazy_flush,
    snapshots,
    append_only,
    failed_save,
    huge_pages,
)
