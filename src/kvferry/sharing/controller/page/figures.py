"""Numbers as people read them, and small charts of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from kvferry.sharing.controller.page.elements import Html, el

__all__ = ["ago", "bar", "chart", "clock", "count", "duration", "rate", "share", "size", "stack"]

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_WIDE, _HIGH = 600, 96


def size(value: float) -> str:
    """Bytes, in powers of ten."""
    at = 0
    while abs(value) >= 1000 and at < len(_BYTES) - 1:
        value, at = value / 1000, at + 1
    return f"{value:.0f} B" if at == 0 else f"{value:.{_digits(value)}f} {_BYTES[at]}"


def rate(bytes_s: float) -> str:
    """Bytes a second."""
    return f"{size(bytes_s)}/s"


def count(value: float) -> str:
    """A number with spaces between thousands, above a million in millions."""
    if value >= 1e9:
        return f"{value / 1e9:.2f} G"
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}")


def share(part: float, whole: float) -> str:
    """A percentage; a dash where there is nothing to take it of."""
    return f"{100 * part / whole:.1f} %" if whole else "\N{EN DASH}"


def duration(seconds: float) -> str:
    """A time that passed."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"


def ago(moment: float) -> str:
    """Since a moment, in seconds since 1970."""
    return f"{duration(max(0.0, time.time() - moment))} ago"


def clock(moment: float) -> str:
    """A moment of the last days, in UTC."""
    return time.strftime("%m-%d %H:%M:%S", time.gmtime(moment))


def _digits(value: float) -> int:
    return 2 if value < 10 else 1 if value < 100 else 0


def bar(part: float, whole: float, title: str) -> Html:
    """A part of a whole."""
    wide = round(100 * min(1.0, part / whole)) if whole > 0 else 0
    return el(
        "svg",
        el("title", title),
        el("rect", class_="room", width=100, height=8),
        el("rect", class_="used", width=wide, height=8),
        class_="bar",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        role="img",
    )


def stack(parts: Mapping[str, float], whole: float, label: str) -> Html:
    """Parts of a whole beside each other; what is missing is room. Colours by place: `tier-0`..."""
    at, pieces = 0.0, []
    for number, (name, value) in enumerate(parts.items()):
        wide = 600 * value / whole if whole > 0 else 0.0
        pieces.append(
            el(
                "rect",
                el("title", f"{name}: {share(value, whole)}"),
                class_=f"tier-{min(number, 5)}",
                x=f"{at:.1f}",
                width=f"{wide:.1f}",
                height=16,
            )
        )
        at += wide
    return el(
        "svg",
        el("rect", class_="room", width=600, height=16),
        *pieces,
        class_="stack",
        viewBox="0 0 600 16",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def chart(
    values: Sequence[float], texts: Sequence[str], label: str, top: float | None = None
) -> Html:
    """A line over time with the youngest value at the right; `texts` say what each value is."""
    if len(values) < 2:
        return el("p", "The first samples come within seconds.", class_="quiet")
    most = top or max(values) or 1.0
    step = _WIDE / (len(values) - 1)
    points = [
        (n * step, _HIGH - 4 - (_HIGH - 8) * min(1.0, value / most))
        for n, value in enumerate(values)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return el(
        "figure",
        el(
            "svg",
            *(
                el("line", class_="grid", x1=0, x2=_WIDE, y1=y, y2=y)
                for y in (4, _HIGH // 2, _HIGH - 4)
            ),
            el("polygon", class_="area", points=f"0,{_HIGH - 4} {line} {_WIDE},{_HIGH - 4}"),
            el("polyline", class_="line", points=line),
            el("line", class_="cursor", x1=0, x2=0, y1=0, y2=_HIGH),
            viewBox=f"0 0 {_WIDE} {_HIGH}",
            preserveAspectRatio="none",
            role="img",
            aria_label=label,
        ),
        el("figcaption", label, el("output", texts[-1])),
        class_="chart",
        data_texts="|".join(texts),
    )
