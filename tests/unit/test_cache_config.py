"""Settings of an engine as objects: defaults, ranges, stores, and what no text of them shows."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import kvferry
from kvferry.config import CacheConfig, ClientConfig, EvictionConfig, StoreConfig
from kvferry.config.setting import specs
from support.config import SECRET, message

pytestmark = pytest.mark.presence


def test_defaults_are_those_of_the_field() -> None:
    config = CacheConfig()
    assert (config.chunk_size, config.local_cpu, config.max_local_cpu_size) == (256, True, 5.0)
    assert (config.retrieve_timeout_s, config.lookup_timeout_s) == (10.0, None)
    assert config.stores == ()
    assert config.l1_bytes == 5 * 2**30
    assert repr(config) == "CacheConfig()"
    assert kvferry.CacheConfig is CacheConfig
    assert kvferry.StoreConfig is StoreConfig


def test_every_setting_has_a_rule_a_text_and_its_default_obeys() -> None:
    rules = specs(CacheConfig)
    assert list(rules) == list(CacheConfig.__struct_fields__)
    for name, rule in rules.items():
        assert rule.text, name
        assert rule.check(rule.default) == rule.default


def test_it_is_frozen_comparable_and_can_be_sent() -> None:
    config = CacheConfig(chunk_size=16, stores=(StoreConfig.of(type="redis", db=3),))
    with pytest.raises(AttributeError):
        config.chunk_size = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(config.replace())
    assert config.replace(chunk_size=32).stores == config.stores


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ({"chunk_size": 0}, "chunk_size=0 is not valid; use a whole number of tokens from 1"),
        ({"chunk_size": "256"}, "chunk_size='256' is not valid; use a whole number"),
        ({"chunk_size": True}, "a whole number"),
        ({"chunk_size": 256.0}, "a whole number"),
        ({"local_cpu": "yes"}, "true or false"),
        ({"local_cpu": 1}, "true or false"),
        ({"max_local_cpu_size": 0}, "a number of GB above 0"),
        ({"max_local_cpu_size": float("nan")}, "a number of GB"),
        ({"max_local_cpu_size": 10**400}, "a number of GB"),
        ({"eviction_policy": "MRU"}, "use LRU, LFU, FIFO, S3-FIFO, ARC or W-TinyLFU"),
        ({"retrieve_timeout_s": float("inf")}, "a number of seconds above 0 to 86400"),
        ({"retrieve_timeout_s": None}, "a number of seconds"),
        ({"lookup_timeout_s": 0}, "a number of seconds"),
        ({"write_queue_bytes_max": 1}, "write_queue_bytes_max is gone"),
        ({"load_threads": 2}, "load_threads is gone"),
        ({"recompute": "maybe"}, "use auto or never"),
        ({"stores": ({"type": "redis"},)}, "StoreConfig.of"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_advice(wrong: dict[str, Any], advice: str) -> None:
    text = message(CacheConfig, **wrong)
    assert next(iter(wrong)) in text
    assert advice in text


@pytest.mark.parametrize("text", ["S3-FIFO", "s3fifo", "S3_FIFO", "s3-fifo"])
def test_policies_may_be_spelled_as_people_do(text: str) -> None:
    settings: dict[str, Any] = {"eviction_policy": text}
    assert CacheConfig(**settings).eviction_policy == "S3-FIFO"


def test_stores_have_names_of_their_own() -> None:
    def names(*stores: StoreConfig) -> list[str]:
        return [store.name for store in CacheConfig(stores=stores).stores]

    redis, memory = StoreConfig.of(type="redis"), StoreConfig.of(type="memory", max_capacity_gb=1)
    assert names(redis, memory, redis, redis) == ["redis", "memory", "redis-2", "redis-3"]
    named = memory.replace(name="redis")
    assert names(redis, named) == ["redis-2", "redis"]
    assert "name='redis'" in message(names, named, named)
    assert "'l1'" in message(names, memory.replace(name="l1"))


def test_a_redis_store_takes_the_settings_of_a_client() -> None:
    store = StoreConfig.of(
        type="redis",
        url="rediss://u:pw@cache-1:7/2",
        connections=16,
        ttl_s=60,
        max_capacity_gb=0.5,
        eviction={"eviction_policy": "ARC", "trigger_watermark": 0.9},
    )
    assert store.client == ClientConfig(
        host="cache-1",
        port=7,
        db=2,
        username="u",
        password="pw",
        tls=True,
        connections=16,
        ttl_s=60,
    )
    assert store.capacity_bytes == 2**29
    assert store.eviction == EvictionConfig(eviction_policy="ARC", trigger_watermark=0.9)
    assert store.address == "cache-1:7"
    assert StoreConfig(type="redis").client == ClientConfig()
    assert StoreConfig(type="redis").capacity_bytes is None


def test_names_of_adapters_of_others_are_understood() -> None:
    store = StoreConfig.of(
        type="valkey",
        startup_nodes=["a:1", "b:2", "c"],
        cluster_mode=True,
        num_workers=4,
        tls_enable=True,
        request_timeout=3,
        connection_timeout=1.5,
        ttl_seconds=9,
        persist_enabled=True,
        serde=None,
        eviction={"eviction_policy": "noop"},
    )
    assert store.type == "redis"
    assert store.client is not None
    assert store.client.seeds == (("a", 1), ("b", 2), ("c", 6379))
    assert (store.client.topology, store.client.connections) == ("cluster", 4)
    assert (store.client.timeout_s, store.client.connect_timeout_s) == (3, 1.5)
    assert (store.client.ttl_s, store.client.tls) == (9, True)
    assert store.eviction.eviction_policy == "none"
    file = StoreConfig.of(
        type="fs", base_path="/kv", use_odirect=False, num_workers=2, max_capacity_gb=9
    )
    assert (file.type, file.path) == ("file", "/kv")
    plugin = StoreConfig.of(
        type="native_plugin", module_path="m", class_name="C", adapter_params={"a": 1}
    )
    assert (plugin.type, plugin.params) == ("native_plugin", {"a": 1})
    short = StoreConfig.of(type="native_plugin", module_path="m:C", params={"a": 1})
    assert short == plugin


def test_a_store_says_how_its_connector_is_opened() -> None:
    def spec(**settings: Any) -> dict[str, Any]:
        return StoreConfig.of(**settings).connector_spec()

    assert spec(type="redis", url=f"redis://:{SECRET}@h", nodes=[]) == {
        "type": "redis",
        "host": "h",
        "password": SECRET,
    }
    assert spec(type="file", path="/kv", max_capacity_gb=2) == {
        "type": "file",
        "path": "/kv",
        "capacity_gb": 2.0,
    }
    memory = {"type": "memory", "capacity_gb": 1.0}
    assert spec(type="memory", max_capacity_gb=1, name="fast") == memory
    assert spec(type="plugin", module_path="m", class_name="C", params={"a": 1}) == {
        "type": "plugin",
        "module_path": "m:C",
        "params": {"a": 1},
    }


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ({}, "needs a type: redis, file, memory, plugin or native_plugin"),
        ({"type": "s3"}, "type='s3' is not valid; use redis, file, memory, plugin or native_pl"),
        ({"type": ["redis"]}, "use redis, file"),
        ({"type": "redis", "hots": "h"}, "unknown setting 'hots'; did you mean 'host'"),
        ({"type": "memory", "host": "h"}, "unknown setting 'host'"),
        ({"type": "memory"}, "max_capacity_gb"),
        ({"type": "memory", "max_capacity_gb": -1}, "a number of GB from 0"),
        ({"type": "file", "max_capacity_gb": 1}, "needs path"),
        ({"type": "file", "max_capacity_gb": 1, "path": ""}, "the path of a directory"),
        (
            {"type": "file", "max_capacity_gb": 1, "path": "/x", "fsync": "data"},
            "fsync is gone",
        ),
        ({"type": "plugin", "module_path": "m"}, "with class_name"),
        ({"type": "plugin", "module_path": "m", "class_name": "C", "url": "redis://h"}, "url"),
        ({"type": "redis", "path": "/x"}, "path is set without type='file'"),
        ({"type": "redis", "url": f"redis://:{SECRET}@h:x"}, "malformed"),
        ({"type": "redis", "url": f"s3://{SECRET}"}, "must begin with redis://"),
        ({"type": "redis", "password": SECRET, "port": 0}, "from 1 to 65535"),
        ({"type": "redis", "username": "u"}, "without password"),
        ({"type": "redis", "num_workers": 2, "connections": 2}, "a second time"),
        ({"type": "redis", "key_prefix": SECRET}, "key_prefix"),
        ({"type": "redis", "serde": {"type": "fp8", "key": SECRET}}, "stored as they are"),
        ({"type": "redis", "eviction": {"eviction_policy": "IsolatedLRU"}}, "IsolatedLRU"),
        ({"type": "redis", "eviction": {"eviction_ratio": 0}}, "eviction_ratio"),
        ({"type": "redis", "eviction": {"trigger_watermark": 1.5}}, "above 0 to 1"),
        ({"type": "redis", "eviction": {"policy": "LRU"}}, "did you mean 'eviction_policy'"),
        ({"type": "redis", "eviction": "LRU"}, "eviction is no mapping"),
        ({"type": "redis", "name": "a b"}, "short word"),
        ({"type": "redis", "nodes": [3]}, "list of hosts"),
    ],
    ids=str,
)
def test_stores_that_cannot_be_are_refused(wrong: dict[str, Any], advice: str) -> None:
    assert advice in message(StoreConfig.of, **wrong)


def test_no_text_shows_a_secret() -> None:
    stores = (
        StoreConfig.of(type="redis", url=f"redis://:{SECRET}@h"),
        StoreConfig.of(
            type="plugin", module_path="m", class_name="C", params={"host": "h", "password": SECRET}
        ),
    )
    config = CacheConfig(stores=stores)
    assert SECRET not in f"{config} {config!r} {stores} {[store.address for store in stores]}"
    assert "params='***'" in repr(config)
    assert "password='***'" in repr(config)
