"""The options of vLLM's tier: where the store is, limits, and one clear error for the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvferry.base.credentials import provided
from kvferry.base.errors import ConfigError
from kvferry.connectors.base import Space
from kvferry.integrations.vllm.tier.tier_options import TierOptions, read_options

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("URL", "HOST", "PORT", "USERNAME", "PASSWORD"):
        for prefix in ("KVFERRY_RESP_", "LMCACHE_RESP_"):
            monkeypatch.delenv(f"{prefix}{variable}", raising=False)
    monkeypatch.delenv("KVFERRY_CONFIG_FILE", raising=False)


def client_of(options: TierOptions) -> Any:
    """The settings that a server would be reached with."""
    opened: Any = options.open
    return opened.keywords["config"]


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, "localhost:6379"),
        ({"url": "redis://cache-1:7000"}, "cache-1:7000"),
        ({"url": "resp://cache-1"}, "cache-1:6379"),
        ({"url": "valkey+cluster://a,b:7001"}, "cluster a:6379,b:7001"),
        ({"url": "redis+sentinel://a,b/main"}, "main at a:26379,b:26379"),
        ({"url": "unix:///run/valkey.sock"}, "unix:/run/valkey.sock"),
        ({"host": "cache-2", "port": 7000}, "cache-2:7000"),
        ({"host": "a", "nodes": ["b:7001"], "topology": "cluster"}, "cluster a:6379,b:7001"),
        ({"store": {"type": "redis", "url": "redis://c"}}, "c:6379"),
        ({"store": {"type": "file", "path": "/kv", "max_capacity_gb": 1}}, "/kv"),
        ({"url": "file:///kv", "capacity_gb": 0.5}, "/kv"),
    ],
)
def test_where_the_store_is(given: dict[str, Any], address: str) -> None:
    assert read_options(given, GIB).address == address


def test_limits() -> None:
    options = read_options({}, GIB)
    limits = options.limits
    assert limits.lookup_timeout_s is None
    assert limits.load_stall_s is None
    assert limits.store_bytes_max == GIB // 2
    given = {
        "lookup_timeout_ms": 7,
        "tuning": {"load_stall_s": 0.3, "store_bytes_max": 3 << 19},
        "connections": None,
    }
    limits = read_options(given, GIB).limits
    assert limits.lookup_timeout_s == pytest.approx(0.007)
    assert limits.load_stall_s == pytest.approx(0.3)
    assert limits.store_bytes_max == 3 << 19


def test_settings_of_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"url": "rediss://u:hush@c?connections=3", "tls_verify": "ca", "ttl_s": 60}
    config = client_of(read_options(given, GIB))
    assert (config.tls, config.tls_verify, config.connections) == (True, "ca", 3)
    assert (config.username, config.password, config.ttl_s) == ("u", "hush", 60)
    monkeypatch.setenv("KVFERRY_RESP_PASSWORD", "from the environment")
    assert client_of(read_options({"url": "redis://c"}, GIB)).password == "from the environment"
    file = tmp_path / "kvferry.yaml"
    file.write_text("client: {url: 'redis://in-a-file', connections: 5}\n")
    file.chmod(0o600)
    config = client_of(read_options({"config_file": str(file)}, GIB))
    assert (config.host, config.connections) == ("in-a-file", 5)


def test_a_password_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    given = {"url": "redis://c", "username": "app", "password_file": str(file)}
    provider = client_of(read_options(given, GIB)).credentials
    assert provided(provider).password == "first"
    file.write_text("second")
    assert (provided(provider).username, provided(provider).password) == ("app", "second")


def test_a_directory(tmp_path: Path) -> None:
    options = read_options({"url": f"file://{tmp_path}/kv", "capacity_gb": 0.01}, GIB)
    with options.open(Space("kvf:", bytes(16), 1000)) as store:
        assert store.batch_set(["a"], [b"x" * 1000]).ok
    assert any((tmp_path / "kv").rglob("*"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"uri": "redis://c"}, "unknown setting 'uri'; did you mean 'url'"),
        (
            {"lookup_timeout": 1},
            "unknown setting 'lookup_timeout'; did you mean 'lookup_timeout_",
        ),
        ({"credentials": 1}, "unknown setting 'credentials'"),
        (
            {"lookup_timeout_ms": 0},
            "lookup_timeout_ms=0.0 is not valid",
        ),
        ({"lookup_timeout_ms": True}, "lookup_timeout_ms=True"),
        ({"load_stall_ms": 1}, "load_stall_ms is gone: it follows from"),
        ({"store_mb_max": 1}, "store_mb_max is gone"),
        ({"tuning": {"load_stall": 1}}, "tuning is not valid"),
        ({"locality": "REMOTE"}, "locality is gone"),
        ({"enable_kv_events": "yes"}, "enable_kv_events='yes' is not valid; use true or false"),
        ({"identity": 5}, "identity=5 is not valid; use a text"),
        ({"url": 5}, "url is not valid; use a URL"),
        ({"url": "http://c"}, "the URL must begin with"),
        ({"url": "file:///kv"}, "needs max_capacity_gb"),
        ({"url": "file:///kv", "capacity_gb": 1, "connections": 2}, "connections is for servers"),
        ({"url": "redis://c", "capacity_gb": 1}, "capacity_gb is for file://"),
        ({"store": "redis"}, "store is not valid; use a mapping"),
        ({"store": {"type": "redis"}, "port": 1}, "leave port out"),
        ({"store": {"type": "disk"}}, "type"),
        ({"connections": 0}, "connections"),
        ({"password_file": "f", "password": "hush", "username": "u"}, "both set"),
    ],
)
def test_one_clear_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options(given, GIB)
    assert message in str(caught.value)
    assert "hush" not in str(caught.value)
