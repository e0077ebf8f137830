"""Connectors out of specifications: every mistake is named, and no secret is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kvferry.base.errors import ConfigError, UsageError
from kvferry.connectors import Space, load_connector
from kvferry.connectors.load import TYPES

SPACE = Space("p:", b"i" * 16, 100)
PLUGIN = """
from kvferry.connectors import BlockingConnector
from kvferry.connectors.memory import MemoryConnector
class Store:
    def __init__(self, space, **params): raise RuntimeError(f"cannot: {params}")
class Half(BlockingConnector):
    def delete_one(self, name, left_s): pass
class Nothing:
    def __init__(self, space, **params): pass
def memory(space, **params): return MemoryConnector(space, **params)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "plugin_of_a_test.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plugin_of_a_test", raising=False)
    return "plugin_of_a_test"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "has no type"),
        ({"type": "rediss"}, "did you mean 'redis'"),
        ({"type": "flie", "path": "x"}, "did you mean 'file'"),
        ({"type": "memory", "capacity_mb": 1}, "did you mean 'capacity_gb'"),
        ({"type": "memory", "capacity_gb": 0}, "capacity_gb"),
        ({"type": "memory", "capacity_gb": "much"}, "capacity_gb"),
        ({"type": "file"}, "needs a path"),
        ({"type": "file", "path": "x", "fsynch": "full"}, "did you mean 'fsync'"),
        ({"type": "file", "path": "x", "fsync": "ful"}, "did you mean 'full'"),
        ({"type": "file", "path": "x", "direct": "yes"}, "direct"),
        ({"type": "redis", "hots": "a"}, "did you mean 'host'"),
        ({"type": "redis", "url": "redis://a", "port": 5}, "url and port"),
        ({"type": "valkey", "url": "redsi://a"}, "must begin with"),
        ({"type": "plugin"}, "needs module_path"),
        ({"type": "plugin", "module_path": "no_such_module:X"}, "no_such_module"),
        ({"type": "plugin", "module_path": "plugin_of_a_test:Stoer"}, "did you mean 'Store'"),
        ({"type": "plugin", "module_path": "plugin_of_a_test"}, "name its class"),
        ({"type": "plugin", "module_path": "plugin_of_a_test:Half"}, "lacks exists_one, get_"),
        ({"type": "plugin", "module_path": "plugin_of_a_test:Nothing"}, "derive it from that"),
        ({"type": "plugin", "module_path": "plugin_of_a_test:Half", "params": 5}, "no mapping"),
        ({"type": "plugin", "module": "x"}, "did you mean 'module_path'"),
    ],
)
def test_mistakes_are_named(module: str, spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_connector(spec, SPACE)


def test_secrets_stay_out_of_errors_and_reprs(module: str) -> None:
    specs: list[dict[str, Any]] = [
        {"type": "redis", "url": "redis://u:hush@[bad", "password": "hush"},
        {"type": "redis", "host": "localhost", "password": "hush", "port": 0},
        {"type": "plugin", "module_path": f"{module}:Store", "params": {"password": "hush"}},
    ]
    for spec in specs:
        with pytest.raises(ConfigError) as caught:
            load_connector(spec, SPACE)
        assert "hush" not in str(caught.value)
    spec = {"type": "redis", "url": "redis://u:hush@127.0.0.1:1"}
    with load_connector(spec, SPACE) as store:
        assert "hush" not in repr(store)
        assert "127.0.0.1:1" in repr(store)


def test_a_plugin_may_be_any_callable(module: str) -> None:
    spec = {"type": "plugin", "module_path": module, "class_name": "memory"}
    with load_connector({**spec, "params": {"capacity_bytes": 1000}}, SPACE) as store:
        assert store.batch_set(["a"], [b"x" * 100]).ok
        assert store.usage().capacity_bytes == 1000


def test_memory_stores_of_one_name_agree_on_their_capacity() -> None:
    spec = {"type": "memory", "name": "agreed"}
    with (
        load_connector({**spec, "capacity_gb": 1}, SPACE),
        pytest.raises(UsageError, match="capacity"),
    ):
        load_connector({**spec, "capacity_gb": 2}, SPACE)


@pytest.mark.parametrize("field", [{"identity": b"short"}, {"value_size_bytes": 0}])
def test_a_space_is_checked(field: dict[str, Any]) -> None:
    good: dict[str, Any] = {"prefix": "p:", "identity": b"i" * 16, "value_size_bytes": 1}
    with pytest.raises(UsageError):
        Space(**{**good, **field})


def test_all_types_are_known() -> None:
    assert TYPES == ("redis", "valkey", "resp", "file", "memory", "plugin", "native_plugin")
