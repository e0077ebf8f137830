"""The rules of the configuration, row by row, with the files and commands that the guides show.

LMCache's RESP guide has `resp-config.yaml`, the variables and the adapters; its P2P guide the file
of an instance. What they say holds here as it is written.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry import RedisClient
from kvferry.cache.memory import Memory
from kvferry.cli.main import main
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import (
    CacheConfig,
    ClientConfig,
    EvictionConfig,
    StoreConfig,
    examine,
    integrations,
    load_client_config,
    save_client_settings,
)
from kvferry.config.cache import CACHE
from kvferry.config.controller import ControllerConfig
from kvferry.config.foreign import ALIASES, ENGINE, FOREIGN
from kvferry.config.integrations import LmcacheSettings, SglangSettings, VllmConnectorSettings
from kvferry.config.node import NodeSettings
from kvferry.config.removed import REMOVED
from kvferry.config.server import ServerConfig, ServerSettings
from kvferry.config.setting import specs
from kvferry.config.stores import StoreSettings
from kvferry.integrations.vllm.connector.settings import read_settings as read_connector
from kvferry.integrations.vllm.tier.tier_options import read_options
from kvferry_lab.servers.same_host import tcp_config
from support.config import SECRET, message, written

# The RESP guide's.
RESP_CONFIG = 'chunk_size: 16\nremote_url: "resp://localhost:6379"\nremote_serde: "naive"\n'
RESP_ENVIRON = {"LMCACHE_RESP_USERNAME": "default", "LMCACHE_RESP_PASSWORD": SECRET}
RESP_ADAPTER = {"type": "resp", "host": "localhost", "port": 6379, "num_workers": 8}
EVICTION = {"eviction_policy": "LRU", "trigger_watermark": 0.8, "eviction_ratio": 0.2}
# The P2P guide's, with the peer part switched off and without.
P2P_CONFIG = """
chunk_size: 256
local_cpu: True
max_local_cpu_size: 100
enable_async_loading: True
# P2P configurations
enable_p2p: {on}
p2p_host: "localhost"
p2p_init_ports: 8200
p2p_lookup_ports: 8201
transfer_channel: "nixl"
# Controller configurations
enable_controller: {on}
lmcache_instance_id: "lmcache_instance_1"
controller_pull_url: "localhost:8300"
controller_reply_url: "localhost:8400"
lmcache_worker_ports: 8500
extra_config:
lookup_backoff_time: 0.001
"""


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    return written(tmp_path)


def client_of(config: CacheConfig | ServerConfig) -> ClientConfig:
    store = (config.cache if isinstance(config, ServerConfig) else config).stores[0]
    assert store.client is not None
    return store.client


# --- The call wins over the file, that over the environment, that over the default ---

FULL = {
    "LMCACHE_RESP_HOST": "of-the-environment",
    "LMCACHE_RESP_PORT": "7000",
    "LMCACHE_RESP_USERNAME": "nobody",
    "LMCACHE_RESP_PASSWORD": "nothing",
    "KVFERRY_RESP_HOST": "of-the-environment",
    "KVFERRY_RESP_PASSWORD": "nothing",
}
MINE = f"host: of-the-file, port: 6380, username: writer, password: {SECRET}"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (f"client: {{{MINE}}}", lambda path: load_client_config(path, environ=FULL)),
        (
            f"cache: {{stores: [{{type: resp, {MINE}}}]}}",
            lambda path: client_of(CacheConfig.load(path, environ=FULL)),
        ),
        (
            f"server: {{l2_adapters: [{{type: resp, {MINE}}}]}}",
            lambda path: client_of(ServerConfig.load(path, environ=FULL)),
        ),
        (
            f"client: {{{MINE}}}\ncache: {{stores: [{{type: redis}}]}}",
            lambda path: client_of(CacheConfig.load(path, environ=FULL)),
        ),
    ],
)
def test_a_file_with_host_user_and_password_wins_over_the_environment(
    file: Callable[[str], Path], text: str, read: Callable[[Path], ClientConfig]
) -> None:
    config = read(file(text))
    assert (config.host, config.port) == ("of-the-file", 6380)
    assert (config.username, config.password) == ("writer", SECRET)


def test_a_setting_of_the_cache_has_that_order_too(file: Callable[[str], Path]) -> None:
    path, environ = file("cache: {chunk_size: 64}"), {"KVFERRY_CHUNK_SIZE": "32"}
    assert CacheConfig.load(path, environ=environ, chunk_size=128).chunk_size == 128
    assert CacheConfig.load(path, environ=environ).chunk_size == 64
    assert CacheConfig.load(environ=environ).chunk_size == 32
    assert CacheConfig.load(environ={}).chunk_size == 256
    named = {"KVFERRY_CONFIG_FILE": str(path), **environ}
    assert read_connector({"kvferry.chunk_size": 128}, 16, environ=named).cache.chunk_size == 128
    assert read_connector({}, 16, environ=named).cache.chunk_size == 64


def test_a_setting_of_the_server_has_that_order_too(file: Callable[[str], Path]) -> None:
    environ = {"KVFERRY_SERVER_L1_SIZE_GB": "1", "KVFERRY_MAX_LOCAL_CPU_SIZE": "2"}
    both = file("server: {l1_size_gb: 3}\ncache: {max_local_cpu_size: 4}")
    assert ServerConfig.load(both, environ=environ, l1_size_gb=5).cache.max_local_cpu_size == 5
    assert ServerConfig.load(both, environ=environ).cache.max_local_cpu_size == 3
    engine = file("cache: {max_local_cpu_size: 4}")
    assert ServerConfig.load(engine, environ=environ).cache.max_local_cpu_size == 4
    assert ServerConfig.load(environ=environ).cache.max_local_cpu_size == 1


# --- LMCACHE_* of the cache where no file is named ---


def test_lmcache_s_variables_of_the_cache_are_read_where_no_file_is_named(
    file: Callable[[str], Path],
) -> None:
    environ = {"LMCACHE_CHUNK_SIZE": "64", "LMCACHE_MAX_LOCAL_CPU_SIZE": "2"}
    assert CacheConfig.load(environ=environ).chunk_size == 64
    config = CacheConfig.load(file("chunk_size: 16\n"), environ=environ)
    assert (config.chunk_size, config.max_local_cpu_size) == (16, 5)


# --- Host, port, user and password fall back to the environment ---


@pytest.mark.parametrize("empty", [{}, {"username": "", "password": ""}, {"username": None}])
def test_an_adapter_s_user_falls_back_to_the_environment(empty: dict[str, Any]) -> None:
    config = ServerConfig.load(environ=RESP_ENVIRON, l2_adapter=[{**RESP_ADAPTER, **empty}])
    client = client_of(config)
    assert (client.username, client.password) == ("default", SECRET)
    assert (client.host, client.port, client.connections) == ("localhost", 6379, 8)


@pytest.mark.parametrize("place", ["file", "json", "tier", "sglang", "client"])
@pytest.mark.parametrize("given", [{"host": "", "port": None}, {}])
def test_host_and_port_fall_back_to_the_environment(
    file: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    given: dict[str, Any],
) -> None:
    for name, value in {"LMCACHE_RESP_HOST": "cache-1", "LMCACHE_RESP_PORT": "6380"}.items():
        monkeypatch.setenv(name, value)
    if place == "file":
        text = json.dumps({"cache": {"stores": [{"type": "redis", **given}]}})
        address = client_of(CacheConfig.load(file(text))).address
    elif place == "json":
        address = client_of(ServerConfig.load(l2_adapter=[{"type": "resp", **given}])).address
    elif place == "tier":
        address = read_options(given, 1 << 20).store.address
    elif place == "sglang":
        address = integrations.SglangSettings.read(given).client.address
    else:
        address = load_client_config(file(json.dumps({"client": given}))).address
    assert address == "cache-1:6380"


def test_each_of_them_falls_back_alone(file: Callable[[str], Path]) -> None:
    environ = {**FULL, "KVFERRY_RESP_HOST": ""}
    config = load_client_config(file("client: {host: mine, username: me}"), environ=environ)
    assert (config.host, config.port) == ("mine", 7000)
    assert (config.username, config.password) == ("me", "nothing")
    url = ClientConfig.from_url("redis://me@mine", environ=FULL)
    assert (url.host, url.port, url.username, url.password) == ("mine", 7000, "me", "nothing")


def test_a_password_in_a_url_without_a_user_is_the_default_user_s() -> None:
    config = ClientConfig.from_url(f"redis://:{SECRET}@mine", environ=FULL)
    assert (config.username, config.password) == (None, SECRET)


def test_our_variables_win_over_lmcache_s() -> None:
    environ = {"KVFERRY_RESP_PORT": "1", "LMCACHE_RESP_PORT": "2", "LMCACHE_RESP_HOST": "theirs"}
    assert ClientConfig.from_env(environ).address == "theirs:1"


# --- A secret of the environment ---


def test_a_secret_of_the_environment_is_no_complaint_about_the_file(
    file: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = file(RESP_CONFIG, 0o644)
    assert examine(path, environ=RESP_ENVIRON).warnings == []
    load_client_config(file("client: {host: a}", 0o644), environ=RESP_ENVIRON)
    ServerConfig.load(
        file("server: {port: 1}", 0o644),
        environ={**RESP_ENVIRON, "KVFERRY_SERVER_HTTP_TOKEN": SECRET},
    )
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    open_file = file(f"client: {{host: a, password: {SECRET}}}", 0o644)
    load_client_config(open_file, environ={})
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (f"cache: {{p2p_secret: {SECRET}}}", CacheConfig.load),
        (f"server: {{l2_adapters: [{{type: redis, password: {SECRET}}}]}}", ServerConfig.load),
        (f"controller: {{secret: {SECRET}}}", ControllerConfig.load),
        (f"node: {{password: {SECRET}}}", NodeSettings.load),
    ],
)
def test_a_secret_of_any_section_is_not_for_others(
    text: str,
    load: Callable[..., object],
    file: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    load(file(text, 0o600), environ={})
    assert not caplog.records
    load(file(text, 0o644), environ={})
    assert "chmod 600" in caplog.text
    assert SECRET not in caplog.text


# --- One rule for the constructor and from_url ---


@pytest.mark.parametrize("client", [RedisClient, PureRedisClient])
def test_the_call_names_the_host_and_the_environment_may_supply_the_password(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in RESP_ENVIRON.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KVFERRY_RESP_URL", "redis://elsewhere/3")
    made = [client(host="127.0.0.1", port=1), client.from_url("redis://127.0.0.1:1")]
    for each in made:
        assert (each.config.host, each.config.port, each.config.db) == ("127.0.0.1", 1, 0)
        assert (each.config.username, each.config.password) == ("default", SECRET)
        each.close()


def test_a_store_of_our_own_is_not_sent_the_environment_s_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in RESP_ENVIRON.items():
        monkeypatch.setenv(name, value)
    store: Any = SimpleNamespace(url="unix:///run/own.sock", host="127.0.0.1", port=1)
    assert tcp_config(store) == ClientConfig(host="127.0.0.1", port=1)


# --- A file of LMCache ---


def test_doctor_and_tune_look_at_the_remote_url_of_lmcache_s_file(
    file: Callable[[str], Path],
) -> None:
    config = load_client_config(file(RESP_CONFIG), environ=RESP_ENVIRON)
    assert (config.address, config.password) == ("localhost:6379", SECRET)
    extra = f"extra_config: {{username: me, password: {SECRET}, resp_num_threads: 4}}\n"
    config = load_client_config(file(RESP_CONFIG + extra), environ={})
    assert (config.username, config.password, config.connections) == ("me", SECRET, 4)


def test_what_tune_writes_is_read_by_all_readers(
    file: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = file(RESP_CONFIG)
    tuned = {"tuned": {"chunk_bytes": 4 << 20, "measured": "2026-01-01"}}
    save_client_settings(path, {"connections": 6, "workers": 2}, others=tuned)
    client = load_client_config(path, environ={})
    assert (client.address, client.connections, client.workers) == ("localhost:6379", 6, 2)
    engine = CacheConfig.load(path, environ={})
    assert (engine.chunk_size, client_of(engine).connections) == (16, 6)
    assert client_of(ServerConfig.load(path, environ={})).connections == 6
    assert main(["config", "check", str(path)]) == 0
    assert "0 problems" in capsys.readouterr().out


def test_keys_of_lmcache_that_mean_nothing_here_are_listed(file: Callable[[str], Path]) -> None:
    beside = "p2p_socket_recv_timeout_ms: 30000\nkv_msg_batch_size: 50\n"
    found = examine(file(P2P_CONFIG.format(on=False) + beside), environ={})
    assert found.problems == []
    for name in ("lmcache_worker_ports", "p2p_socket_recv", "kv_msg_batch_size"):
        assert any(name in note and "no effect" in note for note in found.notes), name
    nested = "extra_config: {p2p_socket_send_timeout_ms: 10000, lookup_backoff_time: 0.01}"
    found = examine(file(nested), environ={})
    assert (found.problems, len(found.notes)) == ([], 1)
    assert found.values["lookup_backoff_time"] == (0.01, "file")


@pytest.mark.parametrize(
    "line",
    [
        "priority_limit: 0",
        "priority_limit: 5",
        "min_retrieve_tokens: 256",
        "hit_miss_ratio: 0",
        "hit_miss_ratio: 0.5",
        "reserve_local_cpu_size: 2.5",
        "extra_config: {priority_limit: 3}",
    ],
)
def test_what_lmcache_forbids_is_not_done_in_silence(
    line: str, file: Callable[[str], Path]
) -> None:
    name, _, value = line.removeprefix("extra_config: {").rstrip("}").partition(": ")
    assert name in message(CacheConfig.load, file(line), environ={})
    if "{" not in line:
        single = {f"LMCACHE_{name.upper()}": value}
        assert name.upper() in message(CacheConfig.load, environ=single)


@pytest.mark.parametrize(
    "line",
    [
        "priority_limit: null",
        "min_retrieve_tokens: 0",
        "reserve_local_cpu_size: 0.0",
        "hit_miss_ratio: null",
    ],
)
def test_what_forbids_nothing_is_no_problem(line: str, file: Callable[[str], Path]) -> None:
    assert examine(file(line), environ={}).problems == []
    name, value = line.split(": ")
    assert examine(environ={f"LMCACHE_{name.upper()}": value}).problems == []


def test_other_names_of_lmcache_for_what_we_have_count(file: Callable[[str], Path]) -> None:
    config = CacheConfig.load(
        file(
            "controller_url: localhost:8300\ncontroller_reply_url: localhost:8400\n"
            "enable_controller: true\nenable_p2p: true\np2p_host: localhost\n"
            "peer_init_ports: [8200]\npeer_lookup_ports: 8201\n"
        ),
        environ={},
    )
    assert config.controller_pull_url == "localhost:8300"
    assert (config.p2p_init_ports, config.p2p_lookup_ports) == ((8200,), (8201,))
    for word in (True, False):
        path = file(f"enable_lazy_memory_allocator: {word}")
        assert CacheConfig.load(path, environ={}).prefault is not word
        single = {"LMCACHE_ENABLE_LAZY_MEMORY_ALLOCATOR": str(word)}
        assert CacheConfig.load(environ=single).prefault is not word
    assert "enable_lazy" in message(
        CacheConfig.load, file("enable_lazy_memory_allocator: often"), environ={}
    )


def test_every_setting_of_lmcache_has_a_place() -> None:
    """Each is ours, another name for ours, refused, or said: in one of these places alone."""
    places = [set(ALIASES), set(FOREIGN), set(CACHE.known)]
    for one, other in itertools.combinations(places, 2):
        assert not one & other
    assert ENGINE.keys() <= CACHE.known.keys()
    assert {name for name, _ in ENGINE.values()} <= specs(VllmConnectorSettings).keys()
    assert {name for name, _ in ALIASES.values()} <= set(CACHE.known)


def test_the_p2p_guide_s_file_is_read_as_it_is(file: Callable[[str], Path]) -> None:
    path = file(P2P_CONFIG.format(on=True).replace("100", "1"))
    config = CacheConfig.load(path, environ={})
    assert (config.p2p_host, config.p2p_init_ports, config.p2p_lookup_ports) == (
        "localhost",
        (8200,),
        (8201,),
    )
    assert (config.instance_id, config.transfer_channel) == ("lmcache_instance_1", "nixl")
    assert (config.controller_pull_url, config.controller_reply_url) == (
        "localhost:8300",
        "localhost:8400",
    )
    assert config.lookup_backoff_time == 0.001
    notes = examine(path, environ={}).notes
    assert any("lmcache_worker_ports" in note and "no effect" in note for note in notes)


def test_the_serde_of_lmcaches_files_is_naive_or_one_of_ours(file: Callable[[str], Path]) -> None:
    for word in ("naive", "split12"):
        assert CacheConfig.load(file(f"remote_serde: {word}"), environ={}).remote_serde == word
    assert "naive" in message(CacheConfig.load, file("remote_serde: cachegen"), environ={})


def test_keys_of_extra_config_may_stand_at_the_top(file: Callable[[str], Path]) -> None:
    text = f"{RESP_CONFIG}extra_config:\nusername: me\npassword: {SECRET}\nresp_num_threads: 4\n"
    client = client_of(CacheConfig.load(file(text), environ={}))
    assert (client.username, client.password, client.connections) == ("me", SECRET, 4)


def test_a_key_that_lmcache_does_not_have_either_is_an_error(file: Callable[[str], Path]) -> None:
    said = message(CacheConfig.load, file("lookup_backof_time: 1\nchunk_size: 16\n"), environ={})
    assert "'lookup_backof_time'; did you mean 'lookup_backoff_time'?" in said


def test_one_store_needs_no_list(file: Callable[[str], Path]) -> None:
    one = file(f"cache: {{stores: {json.dumps(RESP_ADAPTER)}}}")
    assert client_of(CacheConfig.load(one, environ={})).connections == 8
    assert client_of(ServerConfig.load(environ={}, l2_adapter=RESP_ADAPTER)).connections == 8


# --- Eviction, memory, settings that went ---


def test_an_eviction_block_needs_a_capacity(file: Callable[[str], Path]) -> None:
    for call in (
        lambda: ServerConfig.load(environ={}, l2_adapter=[{**RESP_ADAPTER, "eviction": EVICTION}]),
        lambda: CacheConfig.load(
            file(json.dumps({"cache": {"stores": [{**RESP_ADAPTER, "eviction": EVICTION}]}})),
            environ={},
        ),
        lambda: StoreConfig.of(type="redis", eviction={}),
    ):
        assert "eviction is set without max_capacity_gb" in message(call)
    whole = StoreConfig.of(**RESP_ADAPTER, max_capacity_gb=10, eviction=EVICTION)
    assert whole.eviction.eviction_ratio == 0.2


@pytest.mark.parametrize("free_gb", [18, 1e6])  # the host says so, or the system refuses
def test_memory_that_the_host_does_not_have_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, free_gb: float
) -> None:
    monkeypatch.setattr("kvferry.cache.memory.available_memory_bytes", lambda: int(free_gb * 2**30))
    size = 100 << 40 if free_gb > 100 else 100 << 30
    said = message(Memory.private, 1 << 20, size, "LRU", hugetlb=False, prefault=False)
    assert "max_local_cpu_size is 1" in said
    assert f"use at most {0.9 * free_gb:.1f}" in said
    assert "kvferry.max_local_cpu_size" in said


@pytest.mark.parametrize("name", sorted(REMOVED["cache"] | REMOVED["vllm"]))
def test_a_setting_that_went_says_what_to_do_instead(
    file: Callable[[str], Path], name: str
) -> None:
    instead = f"{(REMOVED['cache'] | REMOVED['vllm'])[name]}"
    assert instead in message(CacheConfig.load, file(f"cache: {{{name}: 1}}"), environ={})
    assert instead in message(CacheConfig.load, environ={f"KVFERRY_{name.upper()}": "1"})
    assert instead in message(CacheConfig.load, environ={}, **{name: 1})


@pytest.mark.parametrize("of", [NodeSettings, ControllerConfig])
def test_a_setting_that_went_from_a_program_says_what_to_do_instead(
    file: Callable[[str], Path], of: Any
) -> None:
    for name, instead in of.removed.items():
        assert instead in message(of.load, file(f"{of.section}: {{{name}: 1}}"), environ={})
        variable = f"KVFERRY_{of.section.upper()}_{name.upper()}"
        assert message(of.load, environ={variable: "1"}).startswith(f"{variable} {instead}")
        assert message(of, **{name: 1}) == f"{name} {instead}"
        assert main([of.section, f"--{name.replace('_', '-')}", "1"]) == 2


@pytest.mark.parametrize("read", [read_options, SglangSettings.read, LmcacheSettings.read])
def test_a_setting_that_went_from_an_integration_says_what_to_do_instead(read: Any) -> None:
    own = {read_options: "tier", SglangSettings.read: "sglang", LmcacheSettings.read: "lmcache"}
    for name, instead in {**REMOVED["client"], **REMOVED[own[read]]}.items():
        more = (1 << 20,) if read is read_options else ()
        assert f"{name} {instead}" in message(read, {name: 1}, *more)


def test_a_section_that_was_renamed_says_its_new_name(file: Callable[[str], Path]) -> None:
    before = file("engine: {chunk_size: 64}\nclient: {db: 1}")
    for load in (CacheConfig.load, ServerConfig.load):
        assert "the section 'engine' is called 'cache' now" in message(load, before, environ={})
    assert load_client_config(before, environ={}).db == 1


# --- What a guide has to explain ---


def test_every_setting_says_what_it_is_and_a_guide_explains_forty_at_most() -> None:
    classes = (
        *(ClientConfig, CacheConfig, StoreSettings, StoreConfig, EvictionConfig, ServerSettings),
        *(integrations.VllmConnectorSettings, integrations.VllmServerSettings),
        *(integrations.VllmTierSettings, integrations.SglangSettings),
        integrations.LmcacheSettings,
    )
    declared = [spec for each in classes for spec in specs(each).values()]
    assert [spec.name for spec in declared if not spec.text] == []
    assert sum(spec.guide for spec in declared) <= 40


def test_an_empty_secret_is_none_in_every_section(file: Callable[[str], Path]) -> None:
    assert NodeSettings.load(file('node: {password: ""}'), environ={}).password is None
    beyond = file('node: {password: "", listen: ["0.0.0.0:6400"]}')
    assert "reachable from other hosts" in message(NodeSettings.load, beyond, environ={})
    assert CacheConfig.load(file('cache: {p2p_secret: ""}'), environ={}).p2p_secret is None


def test_a_setting_without_what_it_needs_says_both_names() -> None:
    for settings, name, needed in (
        ({"tls_ca_file": "/ca"}, "tls_ca_file", "tls"),
        ({"nodes": ["b"]}, "nodes", "topology='cluster' or 'sentinel'"),
        ({"tls": True, "tls_cert_file": "/c"}, "tls_cert_file", "tls_key_file"),
    ):
        said = f"{name} is set without {needed}; set both, or leave {name} out"
        assert message(ClientConfig, **settings) == said
