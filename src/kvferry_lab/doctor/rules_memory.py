"""Checks of a server's memory: the limit, what happens at it, and the allocator beneath."""

from __future__ import annotations

from kvferry_lab.doctor.facts import ClientNeed, ServerFacts
from kvferry_lab.doctor.finding import Finding, fault, info, ok, size_text, warn

__all__ = ["RULES"]

_MIB = 1 << 20
_CHUNKS_MIN = 64  # room for fewer is hardly a cache
_FULL = 0.95
_FRAGMENTED_BYTES_MIN = 1 << 30


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


RULES = (
    maxmemory,
    maxmemory_policy,
    evictions,
    allocator,
    activedefrag,
    fragmentation,
    lazy_flush,
)
