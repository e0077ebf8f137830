"""What instances have done, and what fills their memory: one function for each route."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http.answers import (
    HeldPrefix,
    KeyRow,
    KeysReport,
    TransferRows,
    WorkReport,
)
from kvferry.sharing.controller.traffic import HELD_S

__all__ = ["WindowQuery", "keys", "transfers", "work"]

_PREFIXES_MAX = 512
_TRANSFERS_MAX = 2000
_AGES = ((60.0, "under 1 min"), (600.0, "1 to 10 min"), (3600.0, "10 to 60 min"))
_OLDER, _NEVER = "over 60 min", "not looked up"


class WindowQuery(Struct):
    """The time that is looked at."""

    window_s: Annotated[float, Meta(ge=1, le=HELD_S, description="Of `work`.")] = 300.0


def work(controller: Controller, body: WindowQuery) -> WorkReport:
    """Hits by tier and prefill that was saved, in the last `window_s` seconds."""
    done = controller.members.traffic.window(body.window_s)
    return {
        "window_s": round(done.at, 1),
        "requested_tokens": done.requested_tokens,
        "hit_tokens": dict(done.tokens),
        "hit_bytes": dict(done.bytes),
        "saved_s": round(done.saved_s, 3),
    }


def transfers(controller: Controller) -> TransferRows:
    """Who has read how much from whom: the 2000 pairs with most bytes, these first."""
    rows = controller.members.traffic.moved(_TRANSFERS_MAX)
    return {"since": round(controller.started, 3), "transfers": rows}


def keys(controller: Controller) -> KeysReport:
    """What fills the memory of instances: bytes by model and process, by prefix, and by age.

    The age is the time since a prefix was last looked up here, which is all that is known of it.
    """
    rows: list[KeyRow] = []
    sizes: dict[bytes, int] = {}
    for member in controller.members.living():
        for digest, seat in list(member.seats.items()):
            one = member.identities.get(digest)
            if one is None:
                continue
            sizes[digest] = one.chunk_bytes
            chunks = controller.members.directory.size(seat)
            rows.append(
                {
                    "model": one.model,
                    "identity": digest.hex(),
                    "instance": member.instance,
                    "rank": member.rank,
                    "chunks": chunks,
                    "chunk_bytes": one.chunk_bytes,
                    "bytes": chunks * one.chunk_bytes,
                }
            )
    rows.sort(key=lambda one: -one["bytes"])
    prefixes = _prefixes(controller, sizes)
    ages = dict.fromkeys([*(name for _, name in _AGES), _OLDER], 0)
    for prefix in prefixes:
        age_s = prefix["age_s"]
        ages[next((name for most_s, name in _AGES if age_s < most_s), _OLDER)] += prefix["bytes"]
    ages[_NEVER] = max(0, sum(one["bytes"] for one in rows) - sum(ages.values()))
    return {
        "keys": rows,
        "prefixes": prefixes,
        "ages": [{"age": name, "bytes": size} for name, size in ages.items()],
    }


def _prefixes(controller: Controller, sizes: Mapping[bytes, int]) -> list[HeldPrefix]:
    """The longest prefix of each root that was looked up, wherever it is."""
    found: list[HeldPrefix] = []
    now = time.time()
    for prefix in controller.prefixes.top(_PREFIXES_MAX):
        holders = controller.members.lookup(prefix.longest or prefix.root)
        if not holders:
            continue
        first = holders[0].member.identities.get(holders[0].identity)
        found.append(
            {
                "root": prefix.root.hex(),
                "model": first.model if first is not None else "",
                "chunks": len(prefix.longest) // DIGEST_BYTES,
                "copies": len(holders),
                "bytes": sum(one.chunks * sizes.get(one.identity, 0) for one in holders),
                "age_s": round(max(0.0, now - prefix.last), 1),
                "lookups": prefix.lookups,
            }
        )
    found.sort(key=lambda one: -one["bytes"])
    return found
