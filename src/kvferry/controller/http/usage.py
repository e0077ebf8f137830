"""What instances have done, and what fills their memory: one function for each route."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.controller.controller import Controller
from kvferry.controller.traffic import HELD_S
from kvferry.errors import UsageError
from kvferry.http.answers import field

__all__ = ["TABLES", "WINDOW_S", "as_csv", "keys", "transfers", "work"]

Body = Mapping[str, Any]
WINDOW_S = 300.0
# Of the answer of a path, the list that is its table as CSV.
TABLES = {
    "/v1/nodes": "nodes",
    "/v1/prefixes": "prefixes",
    "/v1/keys": "keys",
    "/v1/transfers": "transfers",
}
_PREFIXES = 512
_TRANSFERS = 2000
_AGES = ((60.0, "under 1 min"), (600.0, "1 to 10 min"), (3600.0, "10 to 60 min"))
_OLDER, _NEVER = "over 60 min", "not looked up"


def work(controller: Controller, body: Body) -> dict[str, Any]:
    """Hits by tier and prefill that was saved, in the last `window_s` seconds."""
    seconds = field(body, "window_s", float, WINDOW_S)
    if not 1 <= seconds <= HELD_S:
        raise UsageError(f"'window_s' is 1 to {HELD_S:g}")
    done = controller.members.traffic.window(seconds)
    return {
        "window_s": round(done.at, 1),
        "requested_tokens": done.requested_tokens,
        "hit_tokens": dict(done.tokens),
        "hit_bytes": dict(done.bytes),
        "saved_s": round(done.saved_s, 3),
    }


def transfers(controller: Controller, body: Body) -> dict[str, Any]:
    """Who has read how much from whom: the 2000 pairs with most bytes, these first."""
    rows = [
        {
            "from": one.source,
            "to": one.target,
            "tokens": one.tokens,
            "bytes": one.bytes,
            "window_s": round(one.recent_s, 3),
            "window_bytes": one.recent_bytes,
            "bytes_s": round(one.recent_bytes / one.recent_s) if one.recent_s > 0 else 0,
        }
        for one in controller.members.traffic.moved(_TRANSFERS)
    ]
    return {"since": round(controller.started, 3), "transfers": rows}


def keys(controller: Controller, body: Body) -> dict[str, Any]:
    """What fills the memory of instances: bytes by model and process, by prefix, and by age.

    The age is the time since a prefix was last looked up here, which is all that is known of it.
    """
    rows: list[dict[str, Any]] = []
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


def _prefixes(controller: Controller, sizes: Mapping[bytes, int]) -> list[dict[str, Any]]:
    """The longest prefix of each root that was looked up, wherever it is."""
    found: list[dict[str, Any]] = []
    now = time.time()
    for prefix in controller.prefixes.top(_PREFIXES):
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


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table with its heads; what is a list or has parts is one text."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(rows[0] if rows else ())
    for row in rows:
        writer.writerow([_cell(one) for one in row.values()])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping):
        value = " ".join(f"{name}={one}" for name, one in value.items())
    elif isinstance(value, list | tuple):
        value = " ".join(_cell(one) if isinstance(one, str) else str(one) for one in value)
    # A name that a spreadsheet would take for a formula.
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@" and value else value
