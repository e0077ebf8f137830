"""What there is, and what is where: one function for each route, without any HTTP in it.

The last one, `metrics_text`, says it in series for Prometheus.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct

from kvferry import __version__
from kvferry.base.threads import failures
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.http.answers import CallError
from kvferry.http.bodies import ById
from kvferry.metrics.collector import text_of
from kvferry.metrics.series import Family, family_of
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http.answers import (
    ChunkRow,
    ClusterReport,
    ExplainReport,
    IdentityRow,
    LookedUp,
    NodeRow,
    NodeRows,
    OneInstance,
    PrefixRow,
    PrefixRows,
)
from kvferry.sharing.controller.http.prompts import PromptBody, asked, looked_up
from kvferry.sharing.controller.http.usage import WindowQuery, work
from kvferry.sharing.controller.members import Member

__all__ = [
    "LookupBody",
    "PrefixesBody",
    "cluster",
    "explain",
    "lookup",
    "metrics_text",
    "node",
    "nodes",
    "prefixes",
]

_EXPLAINED_MAX = 1024
_NOBODY_S = 30.0  # for instances to find a controller that has just begun


class LookupBody(PromptBody, kw_only=True):
    """A prompt, and how many instances are to be named."""

    limit: Annotated[int, Meta(ge=1, le=1024)] = 64


class PrefixesBody(Struct):
    """How many prefixes are to be named."""

    limit: Annotated[int, Meta(ge=1, le=512)] = 50


def cluster(controller: Controller, body: WindowQuery) -> ClusterReport:
    """All of it in numbers, and what is wrong."""
    members = controller.members.all()
    states = [one.state for one in members]
    living = [one for one in members if one.state != "dead"]
    stats = controller.members.directory.stats()
    return {
        "version": __version__,
        "started": round(controller.started, 3),
        "instances": len({one.instance for one in living}),
        "states": {state: states.count(state) for state in ("alive", "suspect", "dead")},
        "synced": sum(one.synced and not one.gap for one in living),
        "entries": stats["entries"],
        "memory_bytes": stats["memory_bytes"],
        "capacity_bytes": sum(one.usage.capacity_bytes for one in living),
        "used_bytes": sum(one.usage.used_bytes for one in living),
        "identities": _identities(living),
        "ports": controller.ports,
        "heartbeat_s": controller.config.tuning.heartbeat_s,
        "suspect_s": controller.config.tuning.suspect_s,
        "dead_s": controller.config.tuning.dead_s,
        "counts": controller.counts,
        "last_event": controller.journal.last,
        "work": work(controller, body),
        "alarms": _alarms(controller, living, members),
    }


def nodes(controller: Controller) -> NodeRows:
    """Every process of every instance; the dead ones too, as long as they are remembered."""
    return {"nodes": [_shown(controller, one) for one in controller.members.all()]}


def node(controller: Controller, body: ById) -> OneInstance:
    """The processes of one instance."""
    name = body.id
    found = [one for one in controller.members.all() if one.instance == name]
    if not found:
        raise CallError(404, "instance", f"no instance {name!r} is known; see /v1/nodes")
    return {"instance": name, "nodes": [_shown(controller, one) for one in found]}


def lookup(controller: Controller, body: LookupBody) -> LookedUp:
    """Which instances hold how much of a prompt: the longest prefix first, the suspect last.

    An instance of several ranks holds what all of its ranks hold.
    """
    prompts = asked(controller, body)
    rows: list[Any] = []
    for one in _by_instance(controller, looked_up(controller, prompts)):
        chunks = min(one["ranks"].values())
        if chunks:
            rows.append({**one, "chunks": chunks, "tokens": chunks * one["chunk_size"]})
    rows.sort(key=lambda one: (one["state"] != "alive", -one["tokens"]))
    for row in rows:
        row["ranks"] = {str(rank): chunks for rank, chunks in sorted(row["ranks"].items())}
    return {"chunks": _chunks(prompts), "instances": rows[: body.limit]}


def explain(controller: Controller, body: LookupBody) -> ExplainReport:
    """For each chunk of a prompt who holds it; or why nobody can give it."""
    prompts = asked(controller, body)
    directory = controller.members.directory
    shown: list[ChunkRow] = []
    cut = False
    for one in prompts:
        count = len(one.hashes) // DIGEST_BYTES
        cut |= count > _EXPLAINED_MAX
        hashes = one.hashes[: _EXPLAINED_MAX * DIGEST_BYTES]
        states = [
            (member, directory.states(seat, hashes))
            for member in controller.members.living()
            for identity, seat in list(member.seats.items())
            if identity in one.identities
        ]
        chain = {member.name for member, _ in states}
        for chunk in range(len(hashes) // DIGEST_BYTES):
            held_by = (member.name for member, held in states if held[chunk])
            holders = list(dict.fromkeys(held_by))  # one may hold it for several identities
            chain &= set(holders)
            why = ""
            if not holders:
                why = "no instance holds it"
            elif not chain:
                why = "whoever holds it lacks a chunk before it"
            digest = hashes[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES].hex()
            shown.append(
                {
                    "chunk": chunk,
                    "hash": digest,
                    "chunk_size": one.chunk_size or None,
                    "holders": holders,
                    "prefix_of": sorted(chain),
                    "why": why,
                }
            )
    found = lookup(controller, body)
    told: ExplainReport = {"chunks": shown, "truncated": cut, "instances": found["instances"]}
    if not controller.members.living():
        told["why"] = "no instance is registered"
    return told


def prefixes(controller: Controller, body: PrefixesBody) -> PrefixRows:
    """The prefixes that were asked for most since the controller began, and who holds them now."""
    rows: list[PrefixRow] = []
    for one in controller.prefixes.top(body.limit):
        found = controller.members.lookup(one.longest or one.root)
        chunks = max(1, len(one.longest) // DIGEST_BYTES)
        rows.append(
            {
                "root": one.root.hex(),
                "lookups": one.lookups,
                "lookups_error": one.error,
                "found_chunks": one.found_chunks,
                "first": round(one.first, 3),
                "last": round(one.last, 3),
                "chunks": len(one.longest) // DIGEST_BYTES,
                "tokens": _tokens(one.longest, found),
                "holders": [each.member.name for each in found if each.chunks == chunks],
            }
        )
    return {"since": round(controller.started, 3), "prefixes": rows}


def _tokens(longest: bytes, found: Any) -> int:
    sizes = [
        each.member.identities[each.identity].chunk_size
        for each in found
        if each.identity in each.member.identities
    ]
    return len(longest) // DIGEST_BYTES * max(sizes, default=0)


def _by_instance(controller: Controller, found: Any) -> list[dict[str, Any]]:
    """What the ranks of each instance hold; a rank of the same model that holds nothing: 0."""
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    living = controller.members.living()
    for one, chunk_size in found:
        member: Member = one.member
        identity = member.identities.get(one.identity)
        model = identity.model if identity is not None else ""
        key = (member.instance, model, chunk_size)
        if key not in rows:
            ranks = [
                each
                for each in living
                if each.instance == member.instance
                and any(held.model == model for held in each.facts.identities)
            ]
            rows[key] = {
                "instance": member.instance,
                "model": model,
                "chunk_size": chunk_size,
                "state": max((each.state for each in ranks), default="alive"),  # a < s
                "addresses": {str(each.rank): each.facts.address for each in ranks},
                "ranks": dict.fromkeys((each.rank for each in ranks), 0),
            }
        ranks_of = rows[key]["ranks"]
        ranks_of[member.rank] = max(one.chunks, ranks_of.get(member.rank, 0))
    return list(rows.values())


def _chunks(prompts: Any) -> int:
    return max((len(one.hashes) // DIGEST_BYTES for one in prompts), default=0)


def _shown(controller: Controller, member: Member) -> NodeRow:
    dead = member.state == "dead"
    return {
        "instance": member.instance,
        "rank": member.rank,
        "state": member.state,
        "address": member.facts.address,
        "host": member.host,
        "incarnation": member.incarnation.hex(),
        "software": member.facts.software,
        "identities": [
            {"digest": one.digest.hex(), "model": one.model, "chunk_size": one.chunk_size}
            for one in member.facts.identities
        ],
        "actions": list(member.facts.actions),
        "chunks": 0 if dead else controller.members.chunks(member),
        "capacity_bytes": member.usage.capacity_bytes,
        "used_bytes": member.usage.used_bytes,
        "quota_bytes": {one.model: one.bytes for one in controller.quotas.of(member.instance)},
        "requested_tokens": member.work.requested_tokens,
        "hit_tokens": {one.tier: one.tokens for one in member.work.hits},
        "registered": round(member.registered_at, 3),
        "heartbeat": round(member.beat_at, 3),
        "heartbeat_age_s": round(time.time() - member.beat_at, 3),
        "synced": member.synced and not member.gap,
        "snapshots": member.resyncs,
        "seq": member.seq,
    }


def _identities(living: list[Member]) -> list[IdentityRow]:
    found: dict[bytes, IdentityRow] = {}
    for member in living:
        for digest, one in member.identities.items():
            row = found.setdefault(
                digest,
                {
                    "digest": digest.hex(),
                    "model": one.model,
                    "chunk_size": one.chunk_size,
                    "instances": 0,
                },
            )
            row["instances"] += 1
    return list(found.values())


def _alarms(controller: Controller, living: list[Member], members: list[Member]) -> list[str]:
    """What an operator should look at."""
    alarms = []
    shared = controller.shared
    if shared is not None and shared.problem:
        text = "other controllers are not heard"
        alarms.append(f"the directory at {shared.address} is of no use, {text}: {shared.problem}")
    if not living and time.time() - controller.started > _NOBODY_S:
        text = "died" if members else "has ever registered"
        alarms.append(
            f"no instance is registered: every look-up misses; {len(members)} {text}"
            if members
            else "no instance has registered: every look-up misses"
        )
    for member in living:
        if member.state == "suspect":
            alarms.append(f"{member.name} is silent")
        if not member.synced and time.time() - member.registered_at > _NOBODY_S:
            alarms.append(f"{member.name} has not said what it holds")
        if member.gap and member.synced:
            alarms.append(f"{member.name}: updates were lost, and no snapshot has come yet")
    return alarms


_family = partial(family_of, "kvferry_controller_")


def _families(controller: Controller) -> list[Family]:
    """All families as they are now."""
    members = controller.members.all()
    living = [one for one in members if one.state != "dead"]
    stats, counts = controller.members.directory.stats(), controller.counts
    states = dict.fromkeys(("alive", "suspect", "dead"), 0)
    for one in members:
        states[one.state] += 1
    chunks = {one.name: controller.members.chunks(one) for one in living}
    used = {one.name: one.usage.used_bytes for one in living}
    capacity = {one.name: one.usage.capacity_bytes for one in living}
    return [
        _family("members", "gauge", "Processes of instances, by state.", states, "state"),
        _family(
            "synced",
            "gauge",
            "Those whose snapshot is complete.",
            sum(one.synced and not one.gap for one in living),
        ),
        _family("entries", "gauge", "Chunks in the directory.", stats["entries"]),
        _family("directory_bytes", "gauge", "Memory of it.", stats["memory_bytes"]),
        _family("chunks", "gauge", "Chunks of a process.", chunks, "member"),
        _family("used_bytes", "gauge", "Memory that a process uses.", used, "member"),
        _family("capacity_bytes", "gauge", "Memory of a process.", capacity, "member"),
        _family("connections", "gauge", "Of instances.", counts["connections"]),
        _family("messages", "counter", "Of instances.", counts["messages"]),
        _family("refused", "counter", "Connections and messages.", counts["refused"]),
        _family("gaps", "counter", "Times that updates were lost.", counts["gaps"]),
        _family("snapshots", "counter", "That were taken.", counts["resyncs"]),
        _family("deaths", "counter", "Processes that fell silent.", counts["deaths"]),
        _family("thread_failures", "counter", "Faults in threads.", failures(), "thread"),
    ]


def metrics_text(controller: Controller) -> str:
    """All series in Prometheus' text format."""
    return text_of(_families(controller))
