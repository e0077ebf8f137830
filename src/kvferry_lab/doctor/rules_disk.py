"""Checks of what a server does with disks and forks; a cache needs neither."""

from __future__ import annotations

from kvferry_lab.doctor.facts import ClientNeed, ServerFacts
from kvferry_lab.doctor.finding import Finding, fault, info, ok, warn

__all__ = ["RULES"]


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


RULES = (snapshots, append_only, failed_save, huge_pages)
