"""Where the server connector finds its server, and what may be set there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvferry.base.errors import ConfigError
from kvferry.integrations.vllm.connector.settings import MpSettings, read_mp_settings


def read(environ: dict[str, str] | None = None, /, **extra: Any) -> MpSettings:
    named = {name.replace("__", "."): value for name, value in extra.items()}
    return read_mp_settings(named, 16, environ=environ or {}, quiet=True)


@pytest.mark.parametrize(
    ("extra", "url"),
    [
        ({}, "tcp://localhost:5555"),
        (
            {"kvferry__mp__host": "tcp://localhost", "kvferry__mp__port": 6555},
            "tcp://localhost:6555",
        ),
        ({"kvferry__mp__host": "localhost", "kvferry__mp__port": "6555"}, "tcp://localhost:6555"),
        ({"kvferry__mp__host": "tcp://cache-1"}, "tcp://cache-1:5555"),
        ({"kvferry__mp__host": "tcp://cache-1:7000"}, "tcp://cache-1:7000"),
        ({"kvferry__mp__host": "tcp://[::1]", "kvferry__mp__port": 6555}, "tcp://[::1]:6555"),
        ({"kvferry__mp__port": 6555}, "tcp://localhost:6555"),
        ({"kvferry__mp__host": "ipc:///run/kv.sock"}, "ipc:///run/kv.sock"),
        ({"kvferry__mp__host": "ipc:///run/kv.sock", "kvferry__mp__port": 1}, "ipc:///run/kv.sock"),
        (
            {"lmcache__mp__host": "tcp://localhost", "lmcache__mp__port": 6555},
            "tcp://localhost:6555",
        ),
        ({"lmcache__mp__port": 1, "kvferry__mp__port": 6555}, "tcp://localhost:6555"),
        ({"lmcache__mp__mq_timeout": 10, "somebody": "else"}, "tcp://localhost:5555"),
    ],
)
def test_where_the_server_is(extra: dict[str, Any], url: str) -> None:
    assert read(**extra).url == url


def test_the_environment_counts_when_nothing_else_does() -> None:
    environ = {"KVFERRY_SERVER_URL": "tcp://cache-2:6555"}
    assert read(environ).url == "tcp://cache-2:6555"
    assert read(environ, kvferry__mp__port=7).url == "tcp://localhost:7"


def test_a_chunk_size_that_nobody_named_is_the_servers() -> None:
    asked: list[object] = []

    def server(url: str, keys: Path | None) -> int:
        asked.append((url, keys))
        return 24

    host = {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": 6555}
    settings = read_mp_settings(host, 16, environ={}, quiet=True, chunk_size=server)
    assert settings.connector.cache.chunk_size == 32  # whole blocks
    assert asked == [("tcp://localhost:6555", None)]
    named = {**host, "kvferry.chunk_size": 64}
    settings = read_mp_settings(named, 16, environ={}, quiet=True, chunk_size=server)
    assert (settings.connector.cache.chunk_size, len(asked)) == (64, 1)
    silent = read_mp_settings(host, 16, environ={}, quiet=True, chunk_size=lambda url, keys: 0)
    assert silent.connector.cache.chunk_size == 256


def test_what_the_engine_decides_can_be_set() -> None:
    settings = read(
        kvferry__chunk_size=20,
        kvferry__retrieve_timeout_s=3,
        kvferry__save_generated=False,
        kvferry__mp__token_file="/run/token",
    )
    assert settings.connector.cache.chunk_size == 32  # whole blocks
    assert settings.connector.cache.retrieve_timeout_s == 3
    assert settings.connector.save_generated is False
    assert settings.token_file == Path("/run/token")


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"kvferry__mp__hots": "x"}, "kvferry.mp.hots"),
        ({"kvferry__mp__curve_key_file": "/k"}, "kvferry.mp.curve_key_file"),
        ({"kvferry__remote_url": "redis://cache-1"}, "kvferry.remote_url"),
        ({"kvferry__max_local_cpu_size": 5}, "kvferry.max_local_cpu_size"),
        ({"kvferry__nonsense": 5}, "kvferry.nonsense"),
        ({"kvferry__mp__port": 0}, "kvferry.mp.port"),
        ({"kvferry__mp__port": 65536}, "kvferry.mp.port"),
        ({"kvferry__mp__port": True}, "kvferry.mp.port"),
        ({"kvferry__mp__port": "six"}, "kvferry.mp.port"),
        ({"kvferry__mp__host": 5}, "kvferry.mp.host"),
        ({"kvferry__mp__host": ""}, "kvferry.mp.host"),
        ({"kvferry__mp__host": "http://cache-1"}, "kvferry.mp.host"),
        ({"kvferry__mp__host": "ipc://"}, "kvferry.mp.host"),
        ({"kvferry__mp__host": "tcp://a:1", "kvferry__mp__port": 2}, "kvferry.mp.port"),
        ({"lmcache__mp__port": "six"}, "lmcache.mp.port"),
        ({"kvferry__chunk_size": 0}, "chunk_size"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        read(**extra)
