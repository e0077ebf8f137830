"""Settings of a server: where they come from, which wins, what is said of impossible ones."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvferry.base.errors import ConfigError
from kvferry.config import CacheConfig, examine
from kvferry.config.removed import REMOVED
from kvferry.config.server import SERVER, ServerConfig
from kvferry.config.shown import server_summary, shown_server
from kvferry.config.url import is_loopback
from kvferry.server.memory.preflight import check_shared_memory
from support.config import SECRET, message, written

GIB = 1 << 30
PREFIX = "KVFERRY_SERVER_"
SETTINGS = SERVER.known


def load(
    path: Path | None = None, environ: dict[str, str] | None = None, **call: Any
) -> ServerConfig:
    return ServerConfig.load(path, environ=environ or {}, **call)


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    return written(tmp_path)


# --- Which wins ---


def test_without_anything_there_are_defaults() -> None:
    assert load() == ServerConfig()
    assert load().endpoints == ("tcp://127.0.0.1:5555",)
    assert load().http == ("127.0.0.1", 8080)


SOURCES: list[tuple[str, Any, Any, Any, Callable[[ServerConfig], Any]]] = [
    ("l1_size_gb", 1, 2, 3, lambda c: c.cache.max_local_cpu_size),
    ("eviction_policy", "FIFO", "ARC", "LFU", lambda c: c.cache.eviction_policy),
    ("chunk_size", 16, 32, 64, lambda c: c.chunk_size),
    ("port", 1001, 1002, 1003, lambda c: int(c.endpoints[0].rsplit(":", 1)[1])),
    ("http_port", 1001, 1002, 1003, lambda c: c.http and c.http[1]),
    ("http_token", "one", "two", "three", lambda c: c.http_token),
    ("shm_name", "one", "two", "three", lambda c: c.shm_name),
    ("hugetlb", True, False, True, lambda c: c.cache.hugetlb),
    ("state_file", "/a", "/b", "/c", lambda c: str(c.state_file)),
    ("token", "one", "two", "three", lambda c: c.token),
]


@pytest.mark.parametrize(("name", "low", "mid", "top", "seen"), SOURCES, ids=lambda v: str(v)[:14])
def test_the_call_wins_over_the_file_and_that_over_the_environment(
    file: Callable[[str], Path],
    name: str,
    low: Any,
    mid: Any,
    top: Any,
    seen: Callable[[ServerConfig], Any],
) -> None:
    environ = {PREFIX + name.upper(): str(low).lower() if isinstance(low, bool) else str(low)}
    path = file(f"server: {{{name}: {json.dumps(mid)}}}")
    assert seen(load(None, environ)) == low
    assert seen(load(path, environ)) == mid
    assert seen(load(path, environ, **{name: top})) == top
    assert seen(load(path, environ, **{name: None})) == mid


def test_a_file_may_be_named_by_the_environment(file: Callable[[str], Path]) -> None:
    path = file("server: {port: 1234}\ncache: {eviction_policy: arc}")
    for variable in ("KVFERRY_CONFIG_FILE", "LMCACHE_CONFIG_FILE"):
        config = load(None, {variable: str(path)})
        assert config.endpoints == ("tcp://127.0.0.1:1234",)
        assert config.cache.eviction_policy == "ARC"


def test_the_caches_settings_hold_where_the_server_says_nothing(
    file: Callable[[str], Path],
) -> None:
    path = file("cache: {max_local_cpu_size: 2, retrieve_timeout_s: 3}")
    config = load(path, {"KVFERRY_CACHE_POLICY": "LFU", "KVFERRY_CHUNK_SIZE": "64"})
    assert config.cache.max_local_cpu_size == 2
    assert config.cache.retrieve_timeout_s == 3
    assert config.cache.eviction_policy == "LFU"
    assert config.chunk_size == 64
    assert load(path).chunk_size is None
    theirs = {"LMCACHE_CACHE_POLICY": "LFU", "LMCACHE_CHUNK_SIZE": "64"}
    assert (load(None, theirs).cache.eviction_policy, load(None, theirs).chunk_size) == ("LFU", 64)
    assert (load(path, theirs).cache.eviction_policy, load(path, theirs).chunk_size) == (
        "LRU",
        None,
    )


def test_a_server_s_own_setting_wins_over_the_caches_in_the_same_place(
    file: Callable[[str], Path],
) -> None:
    path = file("server: {l1_size_gb: 7}\ncache: {max_local_cpu_size: 2}")
    assert load(path).cache.max_local_cpu_size == 7
    both = {"KVFERRY_MAX_LOCAL_CPU_SIZE": "3", "KVFERRY_SERVER_L1_SIZE_GB": "4"}
    assert load(None, both).cache.max_local_cpu_size == 4
    # But the environment never wins over a file.
    assert load(path, both).cache.max_local_cpu_size == 7
    assert load(file("cache: {max_local_cpu_size: 2}"), both).cache.max_local_cpu_size == 2
    assert load(file("server: {port: 1}"), both).cache.max_local_cpu_size == 4


def test_an_old_file_without_sections_is_understood(file: Callable[[str], Path]) -> None:
    path = file("chunk_size: 128\nmax_local_cpu_size: 3\nserver: {port: 99}")
    config = load(path)
    assert (config.chunk_size, config.cache.max_local_cpu_size) == (128, 3)
    assert config.endpoints == ("tcp://127.0.0.1:99",)


def test_the_call_may_have_settings_of_the_cache() -> None:
    config = load(cache={"retrieve_timeout_s": 4, "max_local_cpu_size": 1})
    assert (config.cache.retrieve_timeout_s, config.cache.max_local_cpu_size) == (4, 1)
    cache = CacheConfig(retrieve_timeout_s=5)
    assert load(cache=cache, l1_size_gb=3).cache == CacheConfig(
        retrieve_timeout_s=5, max_local_cpu_size=3
    )


# --- Stores ---

REDIS = {"type": "resp", "host": "cache-1", "port": 6380, "num_workers": 8, "max_capacity_gb": 10}


def test_adapters_come_as_json_from_the_environment() -> None:
    for text in (json.dumps(REDIS), json.dumps([REDIS])):
        for variable in ("KVFERRY_SERVER_L2_ADAPTER", "KVFERRY_SERVER_L2_ADAPTERS"):
            (store,) = load(None, {variable: text}).cache.stores
            assert store.client is not None
            assert (store.type, store.client.address) == ("redis", "cache-1:6380")
            assert store.client.connections == 8


def test_credentials_come_from_the_environment(file: Callable[[str], Path]) -> None:
    ours = {"KVFERRY_RESP_USERNAME": "writer", "KVFERRY_RESP_PASSWORD": SECRET}
    theirs = {"LMCACHE_RESP_USERNAME": "writer", "LMCACHE_RESP_PASSWORD": SECRET}
    path = file(f"server: {{l2_adapters: [{json.dumps(REDIS)}]}}")
    for environ in (ours, theirs):
        for config in (load(None, environ, l2_adapters=[REDIS]), load(path, environ)):
            client = config.cache.stores[0].client
            assert client is not None
            assert (client.username, client.password) == ("writer", SECRET)
            assert client.address == "cache-1:6380"
            assert SECRET not in repr(config) + json.dumps(shown_server(config)) + server_summary(
                config, None
            )


def test_what_the_adapter_says_of_its_user_wins() -> None:
    adapter = {**REDIS, "username": "me", "password": "mine"}
    environ = {"KVFERRY_RESP_USERNAME": "you", "KVFERRY_RESP_PASSWORD": SECRET}
    client = load(None, environ, l2_adapters=[adapter]).cache.stores[0].client
    assert client is not None
    assert (client.username, client.password) == ("me", "mine")


ADAPTER_FORMS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({**REDIS, "type": "redis"}, {"type": "redis"}),
    ({**REDIS, "type": "valkey"}, {"type": "redis"}),
    ({**REDIS, "type": "RESP"}, {"type": "redis"}),
    ({"type": "resp", "url": "rediss://h:1/3"}, {"type": "redis"}),
    ({**REDIS, "tls_enable": True, "tls_ca_file": "/ca"}, {"type": "redis"}),
    ({**REDIS, "cluster_mode": True, "nodes": ["b:1", "c:2"]}, {"type": "redis"}),
    ({"type": "file", "path": "/kv", "max_capacity_gb": 5}, {"type": "file", "path": "/kv"}),
    ({"type": "fs", "base_path": "/kv", "max_capacity_gb": 5}, {"type": "file", "path": "/kv"}),
    (
        {"type": "fs_native", "base_path": "/kv", "max_capacity_gb": 5, "use_odirect": False},
        {"type": "file"},
    ),
    ({"type": "file", "path": "/kv", "max_capacity_gb": 5, "num_workers": 4}, {"type": "file"}),
    ({"type": "memory", "max_capacity_gb": 1}, {"type": "memory"}),
    (
        {"type": "plugin", "module_path": "m", "class_name": "C", "params": {"a": 1}},
        {"module_path": "m:C", "params": {"a": 1}},
    ),
    (
        {"type": "native_plugin", "module_path": "m:C", "adapter_params": {"a": 1}},
        {"type": "native_plugin", "module_path": "m:C", "params": {"a": 1}},
    ),
]


@pytest.mark.parametrize(("adapter", "wanted"), ADAPTER_FORMS)
def test_each_kind_of_adapter(adapter: dict[str, Any], wanted: dict[str, Any]) -> None:
    (store,) = load(None, {}, l2_adapters=[adapter]).cache.stores
    for name, value in wanted.items():
        assert getattr(store, name) == value
    # The same through the environment and as the only one.
    (again,) = load(None, {"KVFERRY_SERVER_L2_ADAPTER": json.dumps(adapter)}).cache.stores
    assert again == store


def test_what_an_adapter_evicts() -> None:
    eviction = {"eviction_policy": "LRU", "trigger_watermark": 0.7, "eviction_ratio": 0.1}
    (store,) = load(l2_adapters=[{**REDIS, "eviction": eviction}]).cache.stores
    assert (store.eviction.trigger_watermark, store.eviction.eviction_ratio) == (0.7, 0.1)


BAD_ADAPTERS: list[tuple[dict[str, Any], str]] = [
    ({"host": "h"}, "needs a type"),
    ({"type": "s3"}, "type='s3'"),
    ({"type": "nixl_store"}, "nixl_store"),
    ({**REDIS, "hosst": "h"}, "unknown setting 'hosst'; did you mean 'host'"),
    ({"type": "file", "path": "/kv"}, "needs max_capacity_gb"),
    ({"type": "file", "path": "/kv", "url": "redis://h", "max_capacity_gb": 1}, "url is for"),
    ({**REDIS, "eviction": {"trigger": 1}}, "eviction: unknown setting 'trigger'"),
    ({**REDIS, "eviction": {"eviction_policy": "IsolatedLRU"}}, "IsolatedLRU"),
    ({**REDIS, "num_workers": 0}, "num_workers=0"),
    ({**REDIS, "password": 5}, "password"),
    ({**REDIS, "password": SECRET, "username": 7}, "username"),
    ({**REDIS, "password": SECRET, "db": -1}, "db=-1"),
]


@pytest.mark.parametrize(("adapter", "said"), BAD_ADAPTERS)
def test_adapters_that_cannot_be(adapter: dict[str, Any], said: str) -> None:
    text = message(load, None, {"KVFERRY_RESP_PASSWORD": SECRET}, l2_adapters=[REDIS, adapter])
    assert said in text
    assert "l2_adapters[1]" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"password": "' + SECRET + '",}', "line 1, column"),
        ('{"password":\n "' + SECRET, "line 2, column"),
        (SECRET, "line 1, column 1"),
        (f'"{SECRET}"', "use a list of mappings"),
        ('{"password": "' + SECRET + '", "password": "x"}', "'password' twice"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_adapters_that_are_no_json_are_never_quoted(text: str, said: str) -> None:
    found = message(SETTINGS["stores"].parse, text, "--l2-adapter")
    assert found.startswith("--l2-adapter ")
    assert said in found
    assert said in message(load, None, {"KVFERRY_SERVER_L2_ADAPTER": text})
    texts = {"KVFERRY_SERVER_L2_ADAPTER": f'["{SECRET}"]'}
    assert "L2_ADAPTER[0] is no mapping" in message(load, None, texts)


# --- Where it listens ---

LISTENING: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"host": "localhost", "port": 6555}, ("tcp://127.0.0.1:6555",)),
    ({"host": "::1"}, ("tcp://[::1]:5555",)),
    ({"host": "[::1]", "port": 0}, ("tcp://[::1]:0",)),
    ({"ipc": "/run/k.sock"}, ("tcp://127.0.0.1:5555", "ipc:///run/k.sock")),
    ({"ipc": "/run/k.sock", "tcp": False}, ("ipc:///run/k.sock",)),
    ({"endpoints": ["tcp://localhost:5"]}, ("tcp://127.0.0.1:5",)),
    ({"endpoints": ["ipc:///a", "tcp://127.0.0.2:1"]}, ("ipc:///a", "tcp://127.0.0.2:1")),
]


@pytest.mark.parametrize(("given", "endpoints"), LISTENING)
def test_where_engines_connect(given: dict[str, Any], endpoints: tuple[str, ...]) -> None:
    made = ServerConfig(**given) if "endpoints" in given else load(**given)
    assert made.endpoints == endpoints


def test_parts_of_listening_are_settings_like_others(file: Callable[[str], Path]) -> None:
    path = file("server: {port: 7}")
    assert load(path, ipc="/a").endpoints == ("tcp://127.0.0.1:7", "ipc:///a")
    assert load(path, {"KVFERRY_SERVER_IPC": "/a"}, tcp=False).endpoints == ("ipc:///a",)
    path = file("server: {endpoints: ['ipc:///a']}")
    assert "endpoints is gone: use host, port and ipc" in message(load, path)


def test_beyond_this_host_it_takes_a_token() -> None:
    assert "token_file" in message(ServerConfig, endpoints=["tcp://*:5555"])
    for host in ("0.0.0.0", "*", "192.0.2.7", "::", "2001:db8::1"):
        assert "token_file" in message(load, host=host)
        assert load(host=host, token="t").token == "t"
        assert "http_token" in message(load, http_host=host)
        assert load(http_host=host, http_token="t").http is not None
    for host in ("localhost", "127.0.0.1", "127.8.8.8", "::1"):
        assert load(host=host, http_host=host).token is None
    assert is_loopback("::ffff:192.0.2.1") is False
    assert is_loopback("::ffff:127.0.0.1") is True  # of Python before 3.13 as well


def test_http_can_be_off() -> None:
    assert load(http_port=0).http is None
    assert load(http=False).http is None
    assert load(http=("127.0.0.1", 0)).http == ("127.0.0.1", 0)  # any free port
    assert load(None, {"KVFERRY_SERVER_HTTP": "off", "KVFERRY_SERVER_HTTP_PORT": "99"}).http is None


@pytest.mark.parametrize("name", ["token", "http_token"])
def test_a_token_from_a_file(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, setting = tmp_path / "token", f"{name}_file"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    assert getattr(load(None, None, **{setting: path}), name) == SECRET
    assert not caplog.records
    path.chmod(0o644)
    assert getattr(load(None, {PREFIX + setting.upper(): str(path)}), name) == SECRET
    assert "chmod 600" in caplog.text
    for content in ("", "two words", "\x07", "x" * 5000):
        path.write_text(content)
        assert setting in message(load, **{setting: path})
    assert "No such file" in message(load, **{setting: tmp_path / "none"})
    assert "keep one" in message(load, **{setting: path, name: SECRET})


@pytest.mark.parametrize("name", ["token", "http_token"])
def test_a_token_in_a_file_that_others_may_open(
    name: str, file: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    load(file(f"server: {{{name}: {SECRET}}}", 0o644))
    assert "chmod 600" in caplog.text
    assert SECRET not in caplog.text


# --- What cannot be ---

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"l1_size_bg": 3}, "unknown setting 'l1_size_bg'; did you mean 'l1_size_gb'"),
    ({"l1_size_gb": 0}, "l1_size_gb=0"),
    ({"l1_size_gb": "10"}, "l1_size_gb='10'"),
    ({"eviction_policy": "MRU"}, "eviction_policy='MRU' is not valid; use LRU"),
    ({"chunk_size": 0}, "chunk_size=0"),
    ({"chunk_size": True}, "chunk_size=True"),
    ({"port": 65536}, "port=65536"),
    ({"host": ""}, "host=''"),
    ({"ipc": "/" + "x" * 107}, "at most 107 bytes"),
    ({"tcp": False}, "nobody could connect"),
    ({"endpoints": []}, "at least one"),
    ({"endpoints": ["udp://127.0.0.1:1"]}, "is no endpoint"),
    ({"endpoints": ["tcp://127.0.0.1:66666"]}, "is no endpoint"),
    ({"endpoints": ["tcp://cache-1:1"]}, "no name"),
    ({"endpoints": ["ipc://@abstract"]}, "absolute path"),
    ({"endpoints": ["ipc:///a", "ipc:///a"]}, "twice"),
    ({"http_port": -1}, "http_port=-1"),
    ({"http_token": f"{SECRET} "}, "http_token is not valid"),
    ({"token": f"{SECRET} "}, "token is not valid"),
    ({"curve_key_file": "/k"}, "unknown setting 'curve_key_file'"),
    ({"http_token": ["x", SECRET]}, "http_token is not valid"),
    ({"shm_name": "a/b"}, "shm_name='a/b'"),
    ({"shm_name": "../b"}, "shm_name='../b'"),
    ({"shm_name": "x" * 65}, "shm_name="),
    ({"prefault": 2}, "prefault=2"),
    ({"hugepages": True}, "hugepages is called hugetlb"),
    ({"tuning": {"lease": 1}}, "tuning is not valid"),
    ({"retrieve_timeout_s": 3}, "retrieve_timeout_s is a setting of the cache"),
    ({"cache": 5}, "cache is no CacheConfig"),
    ({"cache": {"chunk_sizes": 5}}, "unknown setting 'chunk_sizes'"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=lambda v: str(v)[:40])
def test_what_cannot_be_is_named(given: dict[str, Any], said: str) -> None:
    assert said in message(ServerConfig if "endpoints" in given else load, **given)


@pytest.mark.parametrize("name", sorted(REMOVED["server"]))
def test_what_is_gone_says_what_to_do_instead(file: Callable[[str], Path], name: str) -> None:
    said = REMOVED["server"][name]
    path = file(f"server: {{{name}: 1}}")
    assert message(load, path) == f"{path}: server: {name} {said}"
    variable = PREFIX + name.upper()
    assert message(load, None, {variable: "1"}) == f"{variable} {said}"
    assert message(load, None, {}, **{name: 1}) == f"{name} {said}"
    assert message(ServerConfig, **{name: 1}) == f"{name} {said}"


def test_a_file_s_errors_name_it(file: Callable[[str], Path]) -> None:
    path = file("server: {portt: 5}")
    assert message(load, path) == f"{path}: server: unknown setting 'portt'; did you mean 'port'?"
    path = file("server: {port: five}")
    assert message(load, path).startswith(f"{path}: server: port='five'")
    path = file("servers: {port: 5}")
    assert "rename it" in message(load, path)
    path = file(f"server: {{l2_adapters: [{{type: resp, passwort: {SECRET}}}]}}")
    assert f"{path}: server: l2_adapters[0]: unknown setting 'passwort'" in message(load, path)
    assert "no configuration file" in message(load, path.with_name("none"))


def test_the_same_thing_twice_in_one_place(file: Callable[[str], Path]) -> None:
    path = file("server: {l1_size_gb: 1, l1_size: 2}")
    assert "second time" in message(load, path)
    twice = {"KVFERRY_SERVER_L1_SIZE_GB": "1", "KVFERRY_SERVER_L1_SIZE": "2"}
    assert "second time" in message(load, None, twice)


def test_made_directly_it_is_checked_too() -> None:
    assert "cache" in message(ServerConfig, cache="x")
    assert "numactl" in message(ServerConfig, numa=1)
    assert "http" in message(ServerConfig, http="127.0.0.1:80")
    assert "http" in message(ServerConfig, http=("127.0.0.1", "80"))
    assert "no address" in message(ServerConfig, http=("cache-1", 80))
    assert "endpoints" in message(ServerConfig, endpoints="tcp://127.0.0.1:1")
    assert ServerConfig(state_file="/a").state_file == "/a"


# --- The environment ---


def test_every_setting_has_its_variable() -> None:
    for name in SETTINGS:
        variable = PREFIX + name.upper()
        with pytest.raises(ConfigError, match=rf"{variable}|{name}"):
            load(None, {variable: "\0"})
    assert all(name in SETTINGS for name, _ in SERVER.aliases.values())


def test_what_a_cluster_tells_its_pods_is_no_setting(caplog: pytest.LogCaptureFixture) -> None:
    environ = {
        "KVFERRY_SERVER_PORT": "tcp://10.0.0.7:6555",
        "KVFERRY_SERVER_SERVICE_HOST": "10.0.0.7",
        "KVFERRY_SERVER_SERVICE_PORT": "6555",
        "KVFERRY_SERVER_PORT_6555_TCP": "tcp://10.0.0.7:6555",
        "KVFERRY_SERVER_PORT_6555_TCP_ADDR": "10.0.0.7",
    }
    assert load(None, environ) == ServerConfig()
    assert "KVFERRY_SERVER_PORT" in caplog.text


def test_a_variable_that_was_mistyped(caplog: pytest.LogCaptureFixture) -> None:
    others = {"KVFERRY_SERVER_URL": "tcp://a:1", "KVFERRY_SERVER_BINARY": "valkey-server"}
    load(None, {"KVFERRY_SERVER_L1_SIZ_GB": "3", **others})
    assert "KVFERRY_SERVER_L1_SIZ_GB is not read; did you mean KVFERRY_SERVER_L1_SIZE_GB?" in (
        caplog.text
    )
    assert len(caplog.records) == 1
    # The engine's own search for such mistakes leaves variables of servers alone.
    assert not examine(None, environ={"KVFERRY_SERVER_EVICTION_POLICY": "LRU"}).warnings


# --- Memory ---


def test_a_pool_that_does_not_fit(tmp_path: Path) -> None:
    size = os.statvfs(tmp_path)
    free_gb = size.f_bavail * size.f_frsize / GIB
    too_much = ServerConfig(cache=CacheConfig(max_local_cpu_size=free_gb * 2 + 1))
    text = message(check_shared_memory, too_much, shm=tmp_path)
    assert f"{free_gb * 2 + 1:.2f} GB" in text
    assert "--shm-size=" in text
    assert "Kubernetes" in text
    check_shared_memory(ServerConfig(cache=CacheConfig(max_local_cpu_size=0.001)), shm=tmp_path)
    assert "mount" in message(check_shared_memory, too_much, shm=tmp_path / "none")


def test_huge_pages_that_were_not_set_aside(tmp_path: Path) -> None:
    mounts, proc = tmp_path / "mounts", tmp_path / "proc"
    proc.mkdir()
    mounts.write_text("tmpfs /dev/shm tmpfs rw 0 0\n")
    (proc / "meminfo").write_text("HugePages_Free:      512\nHugepagesize:       2048 kB\n")
    files = {"mounts": mounts, "proc": proc}
    one, two = (
        ServerConfig(cache=CacheConfig(hugetlb=True, max_local_cpu_size=gb)) for gb in (1, 2)
    )
    assert "mount -t hugetlbfs" in message(check_shared_memory, one, **files)
    mounts.write_text(f"none {tmp_path} hugetlbfs rw 0 0\n")
    check_shared_memory(one, **files)
    assert "vm.nr_hugepages=1024" in message(check_shared_memory, two, **files)


# --- Shown ---


def test_the_line_of_the_log() -> None:
    config = load(l2_adapters=[{**REDIS, "password": SECRET}], l1_size_gb=10, ipc="/run/k.sock")
    assert server_summary(config, "http://127.0.0.1:8080") == (
        "engines at tcp://127.0.0.1:5555, ipc:///run/k.sock; HTTP at http://127.0.0.1:8080; "
        "pool of 10 GB, LRU, taken as it fills; stores: redis (redis at cache-1:6380, 10 GB)"
    )
    assert server_summary(load(http=False), None).endswith(
        "no HTTP; pool of 5 GB, LRU, taken as it fills; stores: none"
    )
    assert "pool of 5 GB, LRU, taken at once;" in server_summary(load(prefault=True), None)


def test_shown_settings_are_json_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    config = load(
        l2_adapters=[
            {**REDIS, "password": SECRET},
            {"type": "plugin", "module_path": "m", "class_name": "C", "params": {"k": SECRET}},
        ],
        token=SECRET,
        http_token=SECRET,
        state_file="/s",
    )
    text = json.dumps(shown_server(config))
    assert SECRET not in text + repr(config) + caplog.text
    found = json.loads(text)
    assert (found["state_file"], found["http_port"], found["http_token"]) == ("/s", 8080, "***")
    assert found["token"] == "***"
    assert found["stores"][0]["connections"] == 8
