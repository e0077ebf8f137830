"""The routes of LMCache's controller, with their bodies and answers.

Their tokens are counted as ours are: those of full chunks that could be had. A location is always
"LocalCPUBackend", the memory of an instance; another one has nothing. `event_id` is that of a job
where there is one, and `/check_finish` knows it.

Source: the HTTP interface of LMCache's controller, in its documentation.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from kvferry.controller.controller import Controller
from kvferry.controller.http.actions import Actions, no_such
from kvferry.controller.http.asking import asked, instance_of
from kvferry.controller.http.views import lookup as looked_up
from kvferry.controller.jobs import Job
from kvferry.controller.members import Member
from kvferry.errors import UsageError
from kvferry.http.answers import CallError, field
from kvferry.membership.framing import host_and_port
from kvferry.membership.messages import Malformed

__all__ = ["ROUTES", "key_stats", "workers"]

Body = Mapping[str, Any]
Call = Callable[[Controller, Actions, Body], dict[str, Any]]

LOCATION = "LocalCPUBackend"
_WAIT_S = 10.0


def lookup(controller: Controller, actions: Actions, body: Body) -> dict[str, Any]:
    """{"tokens"} -> how many of them each instance has."""
    found = looked_up(controller, {"tokens": body.get("tokens")})["instances"]
    info: dict[str, Any] = {}
    for one in found:  # the longest first: of two models of one instance that one counts
        info.setdefault(one["instance"], [LOCATION, one["tokens"]])
    return {"event_id": _event(body), "layout_info": info}


def query_instance(controller: Controller, actions: Actions, body: Body) -> dict[str, Any]:
    """{"ip"} -> the instance there."""
    ip = field(body, "ip", str)
    if ip is None:
        raise UsageError("name the 'ip'")
    for one in controller.members.living():
        if ip in (one.host, _address(one)[0]):
            return {"event_id": _event(body), "res": one.instance, "instance_id": one.instance}
    raise CallError(404, "instance", f"no instance at {ip!r} is registered")


def query_worker_info(controller: Controller, actions: Actions, body: Body) -> dict[str, Any]:
    """{"instance_id", "worker_ids"} -> where they are."""
    members = instance_of(controller, _instance(body))
    wanted = field(body, "worker_ids", list)
    if wanted:
        members = [one for one in members if one.rank in wanted]
    return {"event_id": _event(body), "worker_infos": [_worker(controller, m) for m in members]}


def health(controller: Controller, actions: Actions, body: Body) -> dict[str, Any]:
    """{"instance_id"} -> 0 for each rank that is heard, -1 for one that is not."""
    codes = {
        str(one.rank): 0 if one.state == "alive" else -1
        for one in controller.members.all()
        if one.instance == _instance(body)
    }
    whole = 0 if codes and not any(codes.values()) else -1
    return {"event_id": _event(body), "error_code": whole, "error_codes": codes}


def clear(controller: Controller, actions: Actions, body: Body) -> dict[str, Any]:
    """{"instance_id", "location"} -> how many tokens are forgotten."""
    members = instance_of(controller, _instance(body))
    return _done(actions, "clear", body, {"instance": members[0].instance}, _sizes(members))


def pin(controller: Controller, actions: Actions, body: Body) -> dict[str, Any]:
    """{"instance_id", "location", "tokens"} -> how many tokens are pinned."""
    return _of_prompt(controller, actions, "pin", body)


def unpin(controller: Controller, actions: Actions, body: Body) -> dict[str, Any]:
    """{"instance_id", "location", "tokens"} -> how many tokens were pinned."""
    return _of_prompt(controller, actions, "unpin", body)


def move(controller: Controller, actions: Actions, body: Body) -> dict[str, Any]:
    """{"old_position", "new_position", "tokens", "copy"} -> how many tokens are there now."""
    places = []
    for name in ("old_position", "new_position"):
        place = field(body, name, list)
        if place is None or len(place) != 2 or not all(isinstance(x, str) for x in place):
            raise UsageError(f"{name!r} is [instance, location]")
        _check_location(place[1])
        places.append(place[0])
    action = "copy" if field(body, "copy", bool, False) else "move"
    asked_for = {"instance": places[0], "to": places[1], "tokens": body.get("tokens")}
    members = instance_of(controller, places[1])
    return _done(actions, action, body, asked_for, _sizes(members))


def compress(controller: Controller, actions: Actions, body: Body) -> dict[str, Any]:
    """It is not done here."""
    raise no_such("compress")


def decompress(controller: Controller, actions: Actions, body: Body) -> dict[str, Any]:
    """It is not done here."""
    raise no_such("decompress")


def check_finish(controller: Controller, actions: Actions, body: Body) -> dict[str, Any]:
    """{"event_id"} -> how far that is."""
    state = actions.found(field(body, "event_id", str, "")).state
    return {"status": {"running": "pending", "done": "success"}.get(state, state)}


def workers(controller: Controller, body: Body) -> dict[str, Any]:
    """All ranks, those of an instance, or one."""
    members = controller.members.living()
    name, rank = body.get("instance_id"), body.get("worker_id")
    if rank is not None and not str(rank).isdecimal():
        raise UsageError("'worker_id' is a whole number")
    if name is not None:
        members = [one for one in members if one.instance == name]
    if rank is not None:
        members = [one for one in members if one.rank == int(rank)]
    rows = [_worker(controller, one) for one in members]
    if rank is not None and name is not None:
        if not rows:
            raise CallError(404, "instance", f"no worker {rank} of {name!r} is registered")
        return rows[0]
    return {"workers": rows, "total_count": len(rows)}


def key_stats(controller: Controller, body: Body) -> dict[str, Any]:
    """How many chunks each instance holds."""
    members = controller.members.living()
    rows: dict[str, dict[str, Any]] = {}
    for one in members:
        row = rows.setdefault(
            one.instance, {"instance_id": one.instance, "key_count": 0, "worker_count": 0}
        )
        row["key_count"] += controller.members.chunks(one)
        row["worker_count"] += 1
    return {
        "total_key_count": sum(row["key_count"] for row in rows.values()),
        "total_instance_count": len(rows),
        "total_worker_count": len(members),
        "instances": list(rows.values()),
    }


ROUTES: dict[str, Call] = {
    "/lookup": lookup,
    "/query_instance": query_instance,
    "/query_worker_info": query_worker_info,
    "/health": health,
    "/clear": clear,
    "/pin": pin,
    "/unpin": unpin,
    "/move": move,
    "/compress": compress,
    "/decompress": decompress,
    "/check_finish": check_finish,
}


def _of_prompt(controller: Controller, actions: Actions, action: str, body: Body) -> dict[str, Any]:
    members = instance_of(controller, _instance(body))
    asked_for = {"instance": members[0].instance, "tokens": body.get("tokens")}
    asked(controller, {"tokens": body.get("tokens")})
    return _done(actions, action, body, asked_for, _sizes(members))


def _done(
    actions: Actions, action: str, body: Body, asked_for: Body, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Do it and wait for a while; `num_tokens` is 0 as long as it runs."""
    if action != "move" and action != "copy":
        _check_location(field(body, "location", str, LOCATION))
    job: Job = actions.job(action, {k: v for k, v in asked_for.items() if v is not None})
    job.ended.wait(_WAIT_S)
    if job.state == "failed":
        raise CallError(502, "instance", job.text)
    # Each rank has its part of every chunk: what all of them did is done.
    chunks = job.chunks // max(1, len(sizes)) if action == "clear" else job.least or 0
    tokens = chunks * max(sizes.values(), default=0) if job.state == "done" else 0
    return {"event_id": job.id, "num_tokens": tokens}


def _sizes(members: list[Member]) -> dict[str, int]:
    """Tokens of a chunk, by rank."""
    return {
        one.name: max((held.chunk_size for held in one.facts.identities), default=0)
        for one in members
    }


def _check_location(location: str) -> None:
    if location != LOCATION:
        raise CallError(501, "unsupported", f"a controller sees {LOCATION} alone, not {location!r}")


def _instance(body: Body) -> str:
    name = field(body, "instance_id", str)
    if name is None:
        raise UsageError("name the 'instance_id'")
    return str(name)


def _event(body: Body) -> str:
    return str(body.get("event_id") or secrets.token_hex(8))


def _address(member: Member) -> tuple[str, int]:
    try:
        return host_and_port(member.facts.address)
    except Malformed:
        return member.host, 0


def _worker(controller: Controller, member: Member) -> dict[str, Any]:
    host, port = _address(member)
    return {
        "instance_id": member.instance,
        "worker_id": member.rank,
        "ip": host,
        "port": port,
        "peer_init_url": member.facts.address or None,
        "registration_time": member.registered_at,
        "last_heartbeat_time": member.beat_at,
        "key_count": controller.members.chunks(member),
    }
