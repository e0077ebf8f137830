"""The routes of LMCache's controller, with their bodies and answers.

Tokens in its answers are those of full chunks that could be had, as in all of kvferry's. A location
is always "LocalCPUBackend", the memory of an instance; another location has nothing. `event_id` is
the id of a job where there is one, and `/check_finish` knows it.

Source: the HTTP interface of LMCache's controller, in its documentation.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from kvferry.http.answers import CallError
from kvferry.http.bodies import Tokens
from kvferry.http.waits import AnswerLater
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http.actions import Actions, JobBody, no_such
from kvferry.sharing.controller.http.prompts import PromptBody, asked, instance_of
from kvferry.sharing.controller.http.views import LookupBody
from kvferry.sharing.controller.http.views import lookup as looked_up
from kvferry.sharing.controller.jobs import Job
from kvferry.sharing.controller.members import Member
from kvferry.sharing.membership.controller_link import host_and_port
from kvferry.sharing.membership.messages import Malformed

__all__ = ["ROUTES", "key_stats", "workers"]

Answer = dict[str, Any]
Call = Callable[[Controller, Actions, Any], Any]

LOCATION = "LocalCPUBackend"
_WAIT_S = 10.0


class LmcacheBody(Struct, kw_only=True):
    event_id: str | None = None


class LmcacheTokens(LmcacheBody, kw_only=True):
    tokens: Tokens


class LmcacheAddress(LmcacheBody, kw_only=True):
    ip: str


class LmcacheInstance(LmcacheBody, kw_only=True):
    instance_id: str


class LmcacheRanks(LmcacheInstance, kw_only=True):
    worker_ids: list[int] = []


class LmcacheLocated(LmcacheInstance, kw_only=True):
    location: str = LOCATION


class LmcachePrompt(LmcacheLocated, kw_only=True):
    tokens: Tokens


class LmcacheMove(LmcacheBody, kw_only=True):
    old_position: Annotated[tuple[str, str], Meta(description="[instance, location]")]
    new_position: tuple[str, str]
    tokens: Tokens
    copy: bool = False


class LmcacheEvent(Struct):
    event_id: str


class LmcacheWorkerQuery(Struct):
    instance_id: str | None = None
    worker_id: Annotated[int, Meta(ge=0)] | None = None


def lookup(controller: Controller, actions: Actions, body: LmcacheTokens) -> dict[str, Any]:
    """As LMCache: the tokens that each instance has."""
    found = looked_up(controller, LookupBody(tokens=body.tokens))["instances"]
    info: dict[str, Any] = {}
    for one in found:  # the longest first: of two models of one instance that one counts
        info.setdefault(one["instance"], [LOCATION, one["tokens"]])
    return {"event_id": _event(body), "layout_info": info}


def query_instance(
    controller: Controller, actions: Actions, body: LmcacheAddress
) -> dict[str, Any]:
    """As LMCache: the instance at an address."""
    for one in controller.members.living():
        if body.ip in (one.host, _address(one)[0]):
            return {"event_id": _event(body), "res": one.instance, "instance_id": one.instance}
    raise CallError(404, "instance", f"no instance at {body.ip!r} is registered")


def query_worker_info(
    controller: Controller, actions: Actions, body: LmcacheRanks
) -> dict[str, Any]:
    """As LMCache: where the ranks of an instance are."""
    members = instance_of(controller, body.instance_id)
    if body.worker_ids:
        members = [one for one in members if one.rank in body.worker_ids]
    return {"event_id": _event(body), "worker_infos": [_worker(controller, m) for m in members]}


def health(controller: Controller, actions: Actions, body: LmcacheInstance) -> dict[str, Any]:
    """As LMCache: whether an instance is heard."""
    codes = {
        str(one.rank): 0 if one.state == "alive" else -1
        for one in controller.members.all()
        if one.instance == body.instance_id
    }
    whole = 0 if codes and not any(codes.values()) else -1
    return {"event_id": _event(body), "error_code": whole, "error_codes": codes}


def clear(controller: Controller, actions: Actions, body: LmcacheLocated) -> AnswerLater[Answer]:
    """As LMCache: forget all."""
    _check_location(body.location)
    members = instance_of(controller, body.instance_id)
    asked_for = JobBody(action="clear", instance=body.instance_id)
    return _done(actions, asked_for, _sizes(members))


def pin(controller: Controller, actions: Actions, body: LmcachePrompt) -> AnswerLater[Answer]:
    """As LMCache: keep a prompt."""
    return _of_prompt(controller, actions, "pin", body)


def unpin(controller: Controller, actions: Actions, body: LmcachePrompt) -> AnswerLater[Answer]:
    """As LMCache: let it go."""
    return _of_prompt(controller, actions, "unpin", body)


def move(controller: Controller, actions: Actions, body: LmcacheMove) -> AnswerLater[Answer]:
    """As LMCache: have another instance have a prompt."""
    (old, old_location), (new, new_location) = body.old_position, body.new_position
    _check_location(old_location)
    _check_location(new_location)
    action = "copy" if body.copy else "move"
    asked_for = JobBody(action=action, instance=old, to=new, tokens=body.tokens)
    return _done(actions, asked_for, _sizes(instance_of(controller, new)))


def compress(controller: Controller, actions: Actions, body: LmcacheBody) -> dict[str, Any]:
    """As LMCache; it is not done here."""
    raise no_such("compress")


def decompress(controller: Controller, actions: Actions, body: LmcacheBody) -> dict[str, Any]:
    """As LMCache; it is not done here."""
    raise no_such("decompress")


def check_finish(controller: Controller, actions: Actions, body: LmcacheEvent) -> dict[str, Any]:
    """As LMCache: how far a job is."""
    state = actions.found(body.event_id).state
    return {"status": {"running": "pending", "done": "success"}.get(state, state)}


def workers(controller: Controller, body: LmcacheWorkerQuery) -> dict[str, Any]:
    """As LMCache: the ranks of all instances, of one, or one rank."""
    members = controller.members.living()
    name, rank = body.instance_id, body.worker_id
    if name is not None:
        members = [one for one in members if one.instance == name]
    if rank is not None:
        members = [one for one in members if one.rank == rank]
    rows = [_worker(controller, one) for one in members]
    if rank is not None and name is not None:
        if not rows:
            raise CallError(404, "instance", f"no worker {rank} of {name!r} is registered")
        return rows[0]
    return {"workers": rows, "total_count": len(rows)}


def key_stats(controller: Controller) -> dict[str, Any]:
    """As LMCache: chunks of each instance."""
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


def _of_prompt(
    controller: Controller, actions: Actions, action: str, body: LmcachePrompt
) -> AnswerLater[Answer]:
    _check_location(body.location)
    members = instance_of(controller, body.instance_id)
    asked(controller, PromptBody(tokens=body.tokens))
    asked_for = JobBody(action=action, instance=body.instance_id, tokens=body.tokens)
    return _done(actions, asked_for, _sizes(members))


def _done(actions: Actions, body: JobBody, sizes: Mapping[str, int]) -> AnswerLater[Answer]:
    """Do it and wait for a while; `num_tokens` is 0 as long as it runs."""
    job = actions.job(body)
    return AnswerLater(job.ended, _WAIT_S, lambda: _done_so_far(job, body.action, sizes))


def _done_so_far(job: Job, action: str, sizes: Mapping[str, int]) -> Answer:
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


def _event(body: LmcacheBody) -> str:
    return body.event_id or secrets.token_hex(8)


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
