"""HTML from Python: every text is escaped, and what was made here is not escaped again."""

from __future__ import annotations

import html

__all__ = ["Html", "el", "joined"]

_VOID = {"input", "link", "meta", "br"}


class Html(str):
    """A piece of a document."""


Child = str | int | None


def el(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Html:
    """An element.

    Args:
        name: Of it.
        children: Texts, numbers and elements; None: nothing.
        attributes: `class_` is "class", `hx_get` is "hx-get" and `sse__x` is "sse:x"; True: it is
            there without a value; None and False: it is not there.
    """
    said = "".join(
        f" {_attribute(key)}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Html:
    """Pieces behind each other."""
    return Html(
        "".join(
            one if isinstance(one, Html) else html.escape(str(one))
            for one in children
            if one is not None
        )
    )


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("__", ":").replace("_", "-")
