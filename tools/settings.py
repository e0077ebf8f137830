"""settings: what the pages say of settings, metrics and decisions, written from where these are.

    python tools/settings.py [--check]

A table stands between ``<!-- settings: CLASS, ... -->`` and ``<!-- end of settings -->``. Behind
the classes may stand ``guide`` (those that users need explained), ``appendix`` (the others), and
``options`` (named as on the command line of `kvferry server`). With ``--check`` nothing is written,
and a page that is not as its declarations are is named, with exit code 1.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from kvferry.cli.serving import declared, option_of
from kvferry.config import CacheConfig, ClientConfig, EvictionConfig, StoreConfig, integrations
from kvferry.config.controller import ControllerConfig
from kvferry.config.node import NodeSettings
from kvferry.config.server import ServerSettings
from kvferry.config.setting import Settings
from kvferry.config.spec import Spec
from kvferry.config.stores import StoreSettings
from kvferry.metrics.cache import cache_families

CLASSES: dict[str, type[Settings]] = {
    each.__name__: each
    for each in (
        *(ClientConfig, CacheConfig, EvictionConfig, StoreConfig, StoreSettings, ServerSettings),
        *(integrations.VllmConnectorSettings, integrations.VllmServerSettings),
        *(integrations.VllmTierSettings, integrations.SglangSettings),
        *(integrations.LmcacheSettings, ControllerConfig, NodeSettings),
    )
}
BLOCK = re.compile(r"<!-- settings: (.*?) -->\n.*?<!-- end of settings -->", re.DOTALL)
LISTS = re.compile(r"<!-- (metrics|decisions) -->\n.*?<!-- end of \1 -->", re.DOTALL)
ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Write or check all pages."""
    check, wrong = "--check" in sys.argv[1:], 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        made = BLOCK.sub(lambda found: table(found[1]), text)
        made = LISTS.sub(lambda found: marked(found[1], found[1], LISTED[found[1]]()), made)
        if made == text:
            continue
        if check:
            wrong = 1
            print(f"{page.relative_to(ROOT)}: not as it is declared; run make stub")
        else:
            page.write_text(made, encoding="utf-8")
    return wrong


def table(wanted: str) -> str:
    """A block with its markers."""
    words = [word.strip() for word in wanted.split(",")]
    head = "Option" if "options" in words else "Setting"
    lines = [f"| {head} | Values | Default | What it is |", "|---|---|---|---|"]
    for word in words:
        if word in CLASSES:
            lines += rows(CLASSES[word], words)
    return marked(f"settings: {wanted}", "settings", lines)


def series() -> Iterator[str]:
    """The lines of the series of a cache."""
    yield "| Series | Label | What it is |"
    yield "|---|---|---|"
    for family in cache_families(()).values():
        name = family.name + ("_total" if family.kind == "counter" else "")
        label = f"`{family.label}`" if family.label else ""
        yield f"| `{name}` | {label} | {family.help} |"


def decisions() -> Iterator[str]:
    """The lines of the decisions: each by its number, with its title."""
    yield "| | |"
    yield "|---|---|"
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        number, _, title = page.read_text(encoding="utf-8").splitlines()[0][2:].partition(": ")
        yield f"| [{number}](decisions/{page.name}) | {title} |"


def marked(begin: str, end: str, lines: Iterable[str]) -> str:
    """Lines between their markers."""
    return "\n".join((f"<!-- {begin} -->", *lines, f"<!-- end of {end} -->"))


LISTED = {"metrics": series, "decisions": decisions}


def rows(of: type[Settings], words: list[str]) -> Iterator[str]:
    """The lines of a class."""
    for spec in sorted(declared(of), key=lambda spec: not spec.guide):
        if ("guide" in words and not spec.guide) or ("appendix" in words and spec.guide):
            continue
        if spec.private or (spec.program and not spec.use):
            continue
        name = option_of(spec) if "options" in words else spec.name
        if name:
            cells = (f"`{name}`", values(spec), default(spec), spec.text)
            if name.startswith("--no-"):
                cells = (f"`{name}`", "", "", f"Do not {spec.text[0].lower()}{spec.text[1:]}")
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def values(spec: Spec) -> str:
    """What it may be, in a few words."""
    if spec.words:
        return " ".join(f"`{word}`" for word in spec.words)
    if spec.kind is bool:
        return "true, false"
    return spec.use or spec.unit or spec.wanted


def default(spec: Spec) -> str:
    """Its default, where there is one that says something."""
    value = spec.default
    if value in (None, (), "", {}) or isinstance(value, Settings) or "NODEFAULT" in repr(value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value)
    if isinstance(value, dict):
        return f"`{json.dumps(value)}`"
    return f"`{value}`" if isinstance(value, str) else f"{value:.10g}"


if __name__ == "__main__":
    sys.exit(main())
