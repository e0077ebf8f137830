"""How many settings there are: each is something that an operator must read, and we must keep."""

from __future__ import annotations

from collections.abc import Iterator

from kvferry.config import cache, integrations, node, server
from kvferry.config.controller import ControllerConfig
from kvferry.config.setting import Settings, specs

FIELDS_MAX, NAMES_MAX, GUIDE_MAX = 130, 100, 40
CLASSES = (cache, integrations, node, server, ControllerConfig)


def classes(of: type[Settings] = Settings) -> Iterator[type[Settings]]:
    for each in of.__subclasses__():
        if each.__module__.startswith("kvferry."):
            yield each
            yield from classes(each)


def declared(of: type[Settings]) -> list[str]:
    """What a class itself adds for users: its pages have a row for each."""
    own = [spec for name, spec in specs(of).items() if name in of.__annotations__]
    return [spec.name for spec in own if not spec.private and (spec.use or not spec.program)]


def test_settings_are_few() -> None:
    found = {of.__name__: declared(of) for of in dict.fromkeys(classes())}
    assert sum(map(len, found.values())) <= FIELDS_MAX, found
    assert len({name for names in found.values() for name in names}) <= NAMES_MAX


def test_few_of_them_must_be_known() -> None:
    explained = {of.__name__: of.guide for of in dict.fromkeys(classes()) if "guide" in vars(of)}
    assert sum(map(len, explained.values())) <= GUIDE_MAX, explained
