"""What the page is made of: HTML elements, tables, tiles, and what a view is.

Every text is escaped, and what was made here is not escaped again.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvferry.sharing.controller.controller import Controller

__all__ = [
    "ROWS_MAX",
    "Column",
    "Html",
    "PageView",
    "Query",
    "chosen",
    "el",
    "joined",
    "table",
    "tile",
]

ROWS_MAX = 300
Query = Mapping[str, str]
R = TypeVar("R")
_VOID = {"input", "link", "meta", "br"}


class Html(str):
    """A piece of a document."""


Child = str | int | None


def el(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Html:
    """An element.

    Args:
        name: Of it.
        children: Texts, numbers and elements; None: nothing.
        attributes: `class_` is "class", `hx_get` is "hx-get" and "sse__x" is "sse:x"; True: it is
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


@dataclass(frozen=True)
class PageView:
    """A tab of the page.

    Attributes:
        name, title: In its address, and on its tab.
        path: Of the route that says the same as JSON.
        text: What its numbers are, with their window.
        render: What it shows now.
        above: What stands above it and stays as it is: forms.
        filtered: Its rows can be chosen by a word.
        windowed: It has a window of time that can be chosen.
        table: It can be had as CSV.
    """

    name: str
    title: str
    path: str
    text: str
    render: Callable[[Controller, Query], Html]
    above: Callable[[], Html] | None = None
    filtered: bool = False
    windowed: bool = False
    table: bool = False


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column of a table.

    Attributes:
        text, unit: Its head, and what stands below that.
        cell: What a row has there.
        number: It stands to the right.
    """

    text: str
    cell: Callable[[R], Child]
    unit: str = ""
    number: bool = False

    @property
    def style(self) -> str | None:
        """The class of its cells."""
        return "number" if self.number else None


def table(
    columns: Sequence[Column[R]],
    rows: Sequence[R],
    empty: str,
    foot: Sequence[Child] = (),
    mark: Callable[[R], str] = lambda row: "",
) -> Html:
    """Rows below heads; the first column stays in sight when the rest is moved.

    Args:
        columns: All of them.
        rows: What their cells are made of.
        empty: What is said where there are none.
        foot: Totals.
        mark: The class of a row, if it has one.
    """
    if not rows:
        return el("p", empty, class_="quiet")

    def cells(found: Iterable[Child]) -> Html:
        pairs = zip(columns, found, strict=False)
        return joined(*(el("td", one, class_=column.style) for column, one in pairs))

    heads = [
        el(
            "th",
            one.text,
            el("small", one.unit) if one.unit else None,
            class_=one.style,
            scope="col",
        )
        for one in columns
    ]
    body = [
        el("tr", cells(column.cell(row) for column in columns), class_=mark(row) or None)
        for row in rows[:ROWS_MAX]
    ]
    more = len(rows) - ROWS_MAX
    return joined(
        el(
            "div",
            el(
                "table",
                el("thead", el("tr", *heads)),
                el("tbody", *body),
                el("tfoot", el("tr", cells(foot))) if foot else None,
            ),
            class_="scroll",
            tabindex=0,
        ),
        el("p", f"{more} more rows; a filter shows fewer.", class_="quiet") if more > 0 else None,
    )


def tile(title: str, window: str, value: str, *rest: Html | str | None) -> Html:
    """One number with its window, and what explains it."""
    return el(
        "section",
        el("h2", title, el("small", window)),
        el("p", value, class_="value"),
        *rest,
        class_="tile",
    )


def chosen(query: Query, *texts: object) -> bool:
    """Whether a row has the word of the filter in one of its texts."""
    word = query.get("q", "").strip().lower()
    return not word or any(word in str(one).lower() for one in texts)
