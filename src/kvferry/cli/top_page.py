"""One frame of `kvferry top`: what a watch saw, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kvferry.cli.table import facts, table
from kvferry.cli.top_watch import Watch
from kvferry.connectors.calls import lacks_room

__all__ = ["page"]

_GB = 1 << 30
_BAR = 30
_SESSIONS_MAX = 20


def page(watch: Watch) -> RenderableType:
    """The frame."""
    parts: list[RenderableType] = [_head(watch)]
    if watch.status:
        parts += [Text(), facts(_facts(watch))]
        for show in (_tiers, _identities, _stores, _sessions, _refused):
            rows = show(watch)
            if rows is not None:
                parts += [Text(), rows]
    return Group(*parts)


def _head(watch: Watch) -> Text:
    status = watch.status
    text = Text(f"{watch.title}  ")
    if watch.problem is not None:
        text.append("AWAY", style="bold red")
        text.append(f" for {watch.away_s:.0f} s: {watch.problem}")
        if status:
            text.append("  (below: what it said last)")
        return text
    state = str(status.get("state", "?"))
    text.append(state, style="bold green" if state == "ready" else "bold yellow")
    return text.append(f", up {_duration(_number(status.get('uptime_s')))}")


def _facts(watch: Watch) -> Iterator[tuple[str, str]]:
    pool = _mapping(watch.status.get("pool"))
    limit, backed = _number(pool.get("bytes")), _number(pool.get("granted_bytes"))
    used = sum(_number(one.get("used_bytes")) for one in _rows(watch.status, "identities"))
    part = min(1.0, used / limit) if limit else 0.0
    bar = "#" * round(part * _BAR)
    yield (
        "pool",
        f"[{bar:<{_BAR}}] {part:.0%}  {_gb(used)} of {_gb(limit)}, {_gb(backed)} backed by memory",
    )
    wanted, hit = _rate(watch, "requested"), _rate(watch, "hit")
    yield "tokens", f"{_each(wanted)} wanted, {_each(hit)} from the cache"
    came, out = _rate(watch, "came_bytes"), _rate(watch, "hit_bytes")
    loaded, written = _rate(watch, "load_bytes"), _rate(watch, "store_bytes")
    stored = None if came is None else max(0.0, came - (loaded or 0.0))
    yield "GB/s", f"engines: {_gbs(stored)} in, {_gbs(out)} out"
    yield "", f"stores: {_gbs(loaded)} in, {_gbs(written)} out"
    evicted, shed = _total(watch, "evicted"), _total(watch, "shed")
    yield (
        "chunks",
        f"{evicted:,.0f} evicted ({_each(_rate(watch, 'evicted'))}), {shed:,.0f} not stored",
    )
    yield "requests", f"{_each(_rate(watch, 'requests'))}, {_waiting(watch)}"


def _tiers(watch: Watch) -> RenderableType | None:
    tiers = watch.labels("hit")
    wanted, wanted_rate = _total(watch, "requested"), _rate(watch, "requested")
    rows = []
    for tier in sorted(tiers, key=lambda name: (name != "l1", name)):
        total, rate = watch.total("hit", tier) or 0.0, watch.rate("hit", tier)
        rows.append(
            (
                tier,
                _part(rate, wanted_rate),
                _part(total, wanted),
                _each(rate),
                f"{total:,.0f}",
            )
        )
    return (
        table(("tier", "hit rate now", "since start", "tokens", "in all"), rows) if rows else None
    )


def _identities(watch: Watch) -> RenderableType | None:
    rows = [
        (
            str(one.get("model", "")),
            str(one.get("identity", ""))[:12],
            f"{_number(one.get('chunk_size')):.0f}",
            _gb(_number(one.get("used_bytes"))),
            f"{_number(_mapping(one.get('memory')).get('resident')):,.0f}",
            f"{_number(one.get('engines')):.0f}",
        )
        for one in _rows(watch.status, "identities")
    ]
    names = ("model", "identity", "chunk", "in memory", "chunks", "engines")
    return table(names, rows) if rows else None


def _stores(watch: Watch) -> RenderableType | None:
    rows: list[tuple[str, ...]] = []
    for identity in _rows(watch.status, "identities"):
        for name, found in _mapping(identity.get("stores")).items():
            store = _mapping(found)
            metrics = _mapping(identity.get("metrics"))
            used = _mapping(metrics.get("kvferry_store_used_bytes")).get(name)
            rows.append(
                (
                    name,
                    str(identity.get("identity", ""))[:12],
                    _state(store),
                    f"{_number(store.get('queue_bytes')) / (1 << 20):,.1f} MB",
                    "-" if used is None else _gb(_number(used)),
                    f"{_number(store.get('bandwidth_bytes_s')) / 1e9:.2f} GB/s",
                    str(store.get("problem") or ""),
                )
            )
    names: tuple[str, ...] = (
        "store",
        "identity",
        "state",
        "to be written",
        "used",
        "speed seen",
        "why",
    )
    if not any(row[-1] for row in rows):
        names, rows = names[:-1], [row[:-1] for row in rows]
    return table(names, rows) if rows else None


def _state(store: Mapping[str, Any]) -> str:
    if not store.get("available"):
        return "AWAY"
    problem = str(store.get("problem") or "")
    return "ok" if not problem else "FULL" if lacks_room(problem) else "REFUSES"


def _sessions(watch: Watch) -> RenderableType | None:
    found = _rows(watch.status, "sessions")
    rows: list[tuple[str, ...]] = [
        (
            f"{_number(one.get('pid')):.0f}",
            str(one.get("software", "")),
            str(one.get("model", "")),
            _duration(_number(one.get("age_s"))),
            f"{_number(one.get('requests')):,.0f}",
            f"{_number(one.get('pages')):,.0f}",
            f"{_number(one.get('silent_s')):.1f} s ago" if "silent_s" in one else "-",
        )
        for one in found[:_SESSIONS_MAX]
    ]
    if len(found) > _SESSIONS_MAX:
        rows.append((f"and {len(found) - _SESSIONS_MAX} more", *[""] * 6))
    names = ("pid", "engine", "model", "since", "requests", "pages held", "heard")
    return table(names, rows) if rows else None


def _refused(watch: Watch) -> RenderableType | None:
    found = _rows(_mapping(watch.status.get("refusals")), "engines")
    rows = [
        (
            f"{_number(one.get('pid')):.0f}",
            str(one.get("software", "")),
            str(one.get("model", "")),
            f"{_number(one.get('count')):,.0f}",
            str(one.get("text", "")),
        )
        for one in found
    ]
    names = ("pid", "REFUSED", "model", "times", "why")
    return table(names, rows, right=False) if rows else None


def _waiting(watch: Watch) -> str:
    protocol = _mapping(watch.status.get("protocol"))
    failures = sum(_number(one) for one in _mapping(protocol.get("failures")).values())
    return f"{_number(protocol.get('waiting')):.0f} wait, {failures:,.0f} were refused"


def _rate(watch: Watch, name: str) -> float | None:
    """The rate of a counter over all its labels."""
    rates = [watch.rate(name, label) for label in watch.labels(name)]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _total(watch: Watch, name: str) -> float:
    return sum(watch.total(name, label) or 0.0 for label in watch.labels(name))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rows(status: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    found = status.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _part(part: float | None, whole: float | None) -> str:
    return f"{part / whole:.1%}" if part is not None and whole else "-"


def _each(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}/s"


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / _GB:,.2f} GB"


def _gbs(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e9:,.2f}"


def _duration(seconds: float) -> str:
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86_400
    if days >= 2:
        return f"{days:.0f} days"
    if hours >= 2:
        return f"{hours:.0f} h"
    return f"{minutes:.0f} min" if minutes >= 2 else f"{seconds:.0f} s"
