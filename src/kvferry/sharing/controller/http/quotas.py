"""Quotas: what each process of an instance may hold in memory."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from kvferry.base.received import Line, Name
from kvferry.http.answers import CallError
from kvferry.http.bodies import ById
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http.answers import QuotaRow, QuotaRows
from kvferry.sharing.controller.http.asking import instance_of
from kvferry.sharing.controller.quotas import SetQuota
from kvferry.sharing.membership.messages import Quota

__all__ = ["QuotaBody", "put", "quotas", "remove"]


class QuotaBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """What an instance may hold."""

    instance: Name
    bytes: Annotated[int, Meta(ge=0, le=1 << 62, description="Of each of its processes.")]
    model: Annotated[Line, Meta(description="Of its chunks; empty: of all models together.")] = ""


def quotas(controller: Controller) -> QuotaRows:
    """What instances may hold in memory."""
    return {"quotas": [_shown(one) for one in controller.quotas.all()]}


def put(controller: Controller, body: QuotaBody) -> QuotaRow:
    """Limit what an instance holds in memory; the one of the same model is replaced."""
    instance_of(controller, body.instance)
    return _shown(controller.quotas.put(body.instance, Quota(body.bytes, body.model)))


def remove(controller: Controller, body: ById) -> QuotaRow:
    """Remove a quota."""
    one = controller.quotas.remove(body.id)
    if one is None:
        raise CallError(404, "quota", "there is no quota with this id")
    return _shown(one)


def _shown(one: SetQuota) -> QuotaRow:
    quota = one.quota
    return {
        "id": one.id,
        "instance": one.instance,
        "model": quota.model,
        "bytes": quota.bytes,
        "since": one.since,
    }
