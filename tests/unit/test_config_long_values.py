"""A value of 100,000 letters, lines or digits is cut before an error says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvferry.base.errors import ConfigError
from kvferry.config.cache import CacheConfig
from kvferry.config.client import ClientConfig
from kvferry.config.controller import ControllerConfig
from kvferry.config.file import FILE_VARIABLE
from kvferry.config.node import NodeSettings
from kvferry.config.server import ServerConfig, ServerSettings
from kvferry.config.setting import specs

LONG = 100_000
VALUES: tuple[Any, ...] = (
    *("x" * LONG, "z:" * LONG, "\n" * LONG, "\x1b[" * LONG, b"b" * LONG, 10**5000, 10**300),
    *(["y" * LONG], {"q" * LONG: "r" * LONG}, [[["x" * LONG] * 9] * 9] * 9),
)
READERS: dict[str, tuple[Any, Any]] = {
    "cache": (CacheConfig, CacheConfig),
    "client": (ClientConfig, ClientConfig),
    "controller": (ControllerConfig, ControllerConfig),
    "node": (NodeSettings, NodeSettings),
    "server": (ServerConfig, ServerSettings),
}


def check(reader: Any, **given: Any) -> None:
    said = ""
    try:
        reader.load(**given)
    except ConfigError as error:
        said = str(error)
    assert len(said) < 1500, said[:200]
    assert "\n\n" not in said
    assert "\x1b" not in said


@pytest.mark.parametrize("name", READERS)
def test_a_long_value_is_cut(name: str) -> None:
    reader, settings = READERS[name]
    for setting in specs(settings):
        for value in VALUES:
            check(reader, **{setting: value})


@pytest.mark.parametrize("name", READERS)
def test_a_long_name_of_a_setting_is_cut(name: str) -> None:
    reader, _ = READERS[name]
    for setting in ("f" * LONG, "\n" * LONG):
        check(reader, **{setting: 1})


@pytest.mark.parametrize("name", READERS)
def test_long_values_of_a_file_are_cut(name: str, tmp_path: Path) -> None:
    reader, settings = READERS[name]
    file = tmp_path / "settings.yaml"
    for setting in (*specs(settings), "f" * LONG):
        for value in ("x" * LONG, "[[" + "y" * LONG + "]]", "9" * 4000, '"' + "\\n" * LONG + '"'):
            file.write_text(f"{name}:\n  ? {setting}\n  : {value}\n")
            check(reader, path=file)


def test_a_long_path_of_a_file_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, "/tmp/" + "x" * LONG)
    for reader, _ in READERS.values():
        check(reader)
