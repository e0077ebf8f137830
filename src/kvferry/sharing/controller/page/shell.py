"""What stands around a view: the head, the tabs, the filter. It has no data: no token is needed."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from kvferry import __version__
from kvferry.sharing.controller.page.elements import Html, PageView, Query, el, joined
from kvferry.sharing.controller.page.overview import WINDOWS

__all__ = ["document", "live"]

_KEYS = (
    ("1 to 8", "a view"),
    ("/", "the filter"),
    ("c", "copy this view as curl"),
    ("a", "actions on and off"),
    ("t", "dark, light, as the system"),
    ("?", "these keys"),
)


def document(view: PageView, views: Sequence[PageView], query: Query) -> str:
    """The page with one view in it."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="dark light"),
        el("meta", name="htmx-config", content=_CONFIG),
        el("title", f"{view.title} - kvferry controller"),
        el("link", rel="icon", href="page/icon.svg", type="image/svg+xml"),
        el("link", rel="stylesheet", href="page/page.css"),
        el("script", src="page/page.js"),
        # Not deferred: htmx would begin before its extension is there.
        el("script", src="page/htmx.min.js"),
        el("script", src="page/hx-sse.min.js"),
    )
    tabs = [
        el(
            "a",
            el("kbd", number),
            one.title,
            href=f"?view={one.name}",
            aria_current="page" if one is view else None,
        )
        for number, one in enumerate(views, 1)
    ]
    body = el(
        "body",
        el("a", "To the content", href="#live", class_="skip"),
        el(
            "header",
            el("strong", "kvferry", el("small", f"controller {__version__}")),
            el("nav", *tabs, aria_label="Views"),
            el(
                "div",
                el("span", "connecting", id="link", role="status"),
                el("button", "Read only", id="act", type="button", aria_pressed="false"),
                el("button", "Theme", id="theme", type="button"),
                el("button", "?", id="help", type="button", aria_label="Keys"),
                class_="tools",
            ),
        ),
        el("p", id="dead", role="alert", hidden=True),
        el(
            "section",
            el("div", el("h1", view.title), el("p", view.text), class_="about"),
            _choices(view, query),
            class_="head",
        ),
        view.above() if view.above is not None else None,
        live(view, query),
        _dialogs(),
    )
    return f"<!doctype html>{el('html', head, body, lang='en')}"


def live(view: PageView, query: Query) -> Html:
    """Where a view comes, once a second."""
    return el(
        "main",
        el("p", "Waiting for the controller.", class_="quiet"),
        id="live",
        hx_sse__connect=f"page/live?{_asked(view, query)}",
        hx_swap="innerMorph",
        tabindex="-1",
    )


# Nothing on the page is code, the stream comes back soon, and open rows stay open.
_CONFIG = (
    '{"includeIndicatorCSS": false, "history": false, "morphIgnore": ["data-htmx-powered"], '
    '"sse": {"reconnectDelay": 500, "reconnectMaxDelay": 2000, "connectTimeout": 3000}}'
)


def _asked(view: PageView, query: Query) -> str:
    kept = {name: query[name] for name in ("q", "window") if query.get(name)}
    return urlencode({"view": view.name, **kept})


def _choices(view: PageView, query: Query) -> Html:
    asked = {name: query[name] for name in ("window",) if query.get(name)}
    parts: list[Html | None] = []
    if view.windowed:
        chosen = query.get("window", "")
        chosen = chosen if chosen in WINDOWS else "300"
        parts.append(
            el(
                "span",
                *(
                    el(
                        "a",
                        text,
                        href=f"?view={view.name}&window={seconds}",
                        aria_current="true" if seconds == chosen else None,
                    )
                    for seconds, text in WINDOWS.items()
                ),
                class_="windows",
                role="group",
                aria_label="Window",
            )
        )
    if view.filtered:
        parts.append(
            el(
                "input",
                id="filter",
                name="q",
                type="search",
                value=query.get("q", ""),
                placeholder="Filter by node or name",
                aria_label="Filter by node or name",
                hx_get=f"page/view?{urlencode({'view': view.name, **asked})}",
                hx_trigger="input changed delay:200ms",
                hx_target="#live",
                hx_swap="outerHTML",
            )
        )
    if view.table:
        path = f"{view.path[1:]}?format=csv"
        parts.append(el("button", "CSV", type="button", class_="load", data_path=path))
    if view.filtered and view.name != "events":  # whose answer has no end
        parts.append(el("button", "JSON", type="button", class_="load", data_path=view.path[1:]))
    parts.append(
        el(
            "button",
            "Copy as curl",
            id="curl",
            type="button",
            class_="curl",
            data_path=view.path.removeprefix("/"),
        )
    )
    return el("div", *parts, class_="choices")


def _dialogs() -> Html:
    keys = [joined(el("dt", el("kbd", key)), el("dd", text)) for key, text in _KEYS]
    return joined(
        el("dialog", el("h2", "Keys"), el("dl", *keys), el("p", "Esc closes."), id="keys"),
        el(
            "dialog",
            el(
                "form",
                el("h2", "Token"),
                el("p", "This controller wants its token. It stays in this tab alone."),
                el("input", id="token", type="password", autocomplete="off", aria_label="Token"),
                el("button", "Go on", type="submit", class_="main"),
                method="dialog",
            ),
            id="ask",
        ),
    )
