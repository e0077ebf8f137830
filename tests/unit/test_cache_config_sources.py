"""Sources of an engine's settings: what wins, files of LMCache, secrets, every problem at once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from kvferry.base.errors import ConfigError
from kvferry.config import CacheConfig, ClientConfig, StoreConfig, examine
from support.config import SECRET, message

LMCACHE = """
chunk_size: 128
local_cpu: true
max_local_cpu_size: 20
cache_policy: "LFU"
remote_url: "resp://cache-1:6380"
remote_serde: "naive"
save_unfull_chunk: False
blocking_timeout_secs: 7
lookup_timeout_ms: 250
local_disk: "file:///var/kv/"
max_local_disk_size: 30
pre_caching_hash_algorithm: sha256_cbor
enable_p2p: false
p2p_host: "a"
p2p_init_ports: [1, 2]
extra_config:
  resp_num_threads: 12
  save_chunk_meta: false
  username: writer
  password: PASSWORD
""".replace("PASSWORD", SECRET)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kvferry.yaml"


def put(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def load(path: Path | None = None, environ: dict[str, str] | None = None, **kw: Any) -> CacheConfig:
    return CacheConfig.load(path, environ=environ or {}, **kw)


def test_nothing_said_is_the_defaults(file: Path) -> None:
    assert load() == CacheConfig()
    for text in ("", "cache:\n", "client: {host: h}\n", "tuned: {chunk_bytes: 1}\n"):
        assert load(put(file, text)) == CacheConfig()


def test_the_call_wins_over_the_file_that_over_the_environment(file: Path) -> None:
    put(file, "cache: {chunk_size: 16, local_cpu: false, lookup_timeout_s: 1}\n")
    environ = {
        "KVFERRY_CHUNK_SIZE": "32",
        "LMCACHE_CHUNK_SIZE": "64",
        "KVFERRY_LOCAL_CPU": "True",
        "KVFERRY_RETRIEVE_TIMEOUT_S": "3",
        "KVFERRY_HUGETLB": "",
    }
    config = load(file, environ, chunk_size=48, lookup_timeout_s=None)
    assert (config.chunk_size, config.retrieve_timeout_s, config.local_cpu) == (48, 3, False)
    assert (config.lookup_timeout_s, config.hugetlb) == (1, False)
    assert load(file, environ).chunk_size == 16
    assert load(None, environ).chunk_size == 32
    del environ["KVFERRY_CHUNK_SIZE"]
    assert load(None, environ).chunk_size == 64
    assert load(None).chunk_size == 256


def test_variables_of_lmcache_are_read_where_no_file_is_named(file: Path) -> None:
    environ = {"LMCACHE_CHUNK_SIZE": "64", "LMCACHE_CACHE_POLICY": "FIFO"}
    assert load(put(file, "cache: {retrieve_timeout_s: 3}\n"), environ) == CacheConfig(
        retrieve_timeout_s=3
    )
    config = load(None, environ)
    assert (config.chunk_size, config.eviction_policy) == (64, "FIFO")


def test_every_setting_knows_its_source(file: Path) -> None:
    put(file, "cache: {chunk_size: 16, remote_url: 'redis://h'}\n")
    environ = {"LMCACHE_CACHE_POLICY": "FIFO", "KVFERRY_RETRIEVE_TIMEOUT_S": "2"}
    found = examine(file, environ=environ, local_cpu=False)
    assert found.values["chunk_size"] == (16, "file")
    assert found.values["eviction_policy"] == ("LRU", "default")
    assert found.values["retrieve_timeout_s"] == (2.0, "KVFERRY_RETRIEVE_TIMEOUT_S")
    assert found.values["local_cpu"] == (False, "call")
    assert found.values["recompute"] == ("auto", "default")
    assert [source for _, source in found.stores] == ["file"]
    assert examine(environ=environ).values["eviction_policy"] == ("FIFO", "LMCACHE_CACHE_POLICY")


def test_the_file_may_be_named_by_the_environment(file: Path, tmp_path: Path) -> None:
    ours = put(tmp_path / "ours.yaml", "cache: {chunk_size: 1}\n")
    theirs = put(tmp_path / "theirs.yaml", "chunk_size: 2\n")
    environ = {"LMCACHE_CONFIG_FILE": str(theirs)}
    assert load(None, environ).chunk_size == 2
    environ["KVFERRY_CONFIG_FILE"] = str(ours)
    assert load(None, environ).chunk_size == 1
    assert load(put(file, "cache: {chunk_size: 3}\n"), environ).chunk_size == 3
    assert "no configuration file" in message(load, tmp_path / "missing.yaml")


def test_a_file_of_lmcache_is_understood_as_it_is(file: Path) -> None:
    found = examine(put(file, LMCACHE), environ={})
    assert found.problems == []
    config = CacheConfig(**found.settings())
    assert (config.chunk_size, config.max_local_cpu_size) == (128, 20.0)
    assert (config.eviction_policy, config.retrieve_timeout_s) == ("LFU", 7.0)
    assert config.lookup_timeout_s == 0.25
    disk, remote = config.stores
    assert (disk.type, disk.path, disk.max_capacity_gb) == ("file", "/var/kv/", 30.0)
    assert remote.client == ClientConfig(
        host="cache-1", port=6380, connections=12, username="writer", password=SECRET
    )
    assert all(note.startswith(f"{file}: ") for note in found.notes)
    without_effect = {note.removesuffix(" has no effect here").split()[-1] for note in found.notes}
    assert without_effect == {
        "save_chunk_meta",
        "save_unfull_chunk",
        "pre_caching_hash_algorithm",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable_pd", "true"),
        ("enable_blending", "true"),
        ("gds_path", "/gds"),
        ("remote_storage_plugins", '["x"]'),
        ("retrieve_locations", '["LocalCPUBackend"]'),
    ],
)
def test_what_is_not_here_is_refused_only_when_it_is_on(file: Path, name: str, value: str) -> None:
    text = message(load, put(file, f"{name}: {value}\n"))
    assert f"{file}: {name} " in text
    assert name.upper() in message(load, None, {f"LMCACHE_{name.upper()}": value})
    for off in ("false", "null", '""', "[]"):
        assert load(put(file, f"chunk_size: 1\n{name}: {off}\n")).chunk_size == 1
    assert load(None, {f"LMCACHE_{name.upper()}": "False"}) == CacheConfig()


CONTROLLER: dict[str, Any] = {
    "enable_controller": True,
    "controller_pull_url": "localhost:8300",
    "controller_reply_url": "localhost:8400",
}
PEER: dict[str, Any] = {
    **CONTROLLER,
    "enable_p2p": True,
    "p2p_host": "localhost",
    "p2p_init_ports": 8200,
}


@pytest.mark.parametrize("name", [*PEER])
def test_sharing_says_what_it_needs(name: str) -> None:
    settings = {key: value for key, value in PEER.items() if key != name}
    if name == "enable_p2p":
        assert not load(**settings).enable_p2p
    else:
        assert name in message(load, **settings)


@pytest.mark.parametrize(
    "url", ["localhost", ":8300", "localhost:0", "tcp://localhost:1", "a b:1:2"]
)
def test_a_controller_is_host_and_port(url: str) -> None:
    said = message(load, **{**CONTROLLER, "controller_pull_url": url})
    assert "controller_pull_url" in said
    assert "HOST:PORT" in said


def test_what_other_hosts_can_reach_needs_a_secret(tmp_path: Path) -> None:
    assert "p2p_secret_file" in message(load, **{**PEER, "p2p_host": "10.0.0.7"})
    assert "p2p_secret_file" in message(load, **{**PEER, "p2p_bind": "0.0.0.0"})
    assert load(**{**PEER, "p2p_host": "node-7", "p2p_bind": "127.0.0.1"}).secret == ""
    word = put(tmp_path / "secret", SECRET + "\n")
    assert load(**PEER, p2p_bind="0.0.0.0", p2p_secret_file=word).secret == SECRET
    shared = load(**PEER, p2p_bind="0.0.0.0", p2p_secret=SECRET)
    assert shared.secret == SECRET
    assert SECRET not in repr(shared)
    both = message(load, **PEER, p2p_secret="x", p2p_secret_file=word)
    assert "keep one" in both


def test_ports_are_one_or_one_for_each_rank(file: Path) -> None:
    assert load(put(file, "p2p_init_ports: 8200\n")).p2p_init_ports == (8200,)
    assert load(put(file, "p2p_init_ports: [8200, 8202]\n")).p2p_init_ports == (8200, 8202)
    assert load(None, {"KVFERRY_P2P_INIT_PORTS": "8200"}).p2p_init_ports == (8200,)
    assert load(None, {"LMCACHE_P2P_INIT_PORTS": "[1, 2]"}).p2p_init_ports == (1, 2)


def test_stores_come_in_their_order_and_from_all_places(file: Path) -> None:
    put(
        file,
        "cache:\n  local_disk: /d\n  max_local_disk_size: 1\n  remote_url: redis://r\n"
        "  stores: [{type: memory, max_capacity_gb: 1}, {type: redis, host: s}]\n",
    )
    assert [s.address for s in load(file).stores] == ["/d", "r:6379", "this process", "s:6379"]
    environ = {"KVFERRY_STORES": '[{"type": "redis", "host": "e"}]'}
    assert [s.address for s in load(file, environ).stores][2:] == ["this process", "s:6379"]
    assert [s.address for s in load(None, environ).stores] == ["e:6379"]
    mine = StoreConfig.of(type="redis", host="m")
    assert [s.address for s in load(file, environ, stores=[mine]).stores] == [
        "/d",
        "r:6379",
        "m:6379",
    ]
    alias = put(file, "cache: {l2_adapters: [{type: resp, host: a, port: 7}]}\n")
    assert [s.address for s in load(alias).stores] == ["a:7"]
    assert load(alias, stores=[]).stores == ()


def test_a_redis_store_takes_from_the_section_of_clients_what_it_leaves_open(file: Path) -> None:
    client = f"client: {{url: 'redis://:{SECRET}@tuned', connections: 16, timeout_s: 2}}\n"
    put(file, client + "cache: {stores: [{type: redis, timeout_s: 1}]}\n")
    (store,) = load(file).stores
    assert store.client == ClientConfig(host="tuned", password=SECRET, connections=16, timeout_s=1)
    # The password of one server is not sent to another.
    put(file, client + "cache: {stores: [{type: redis, host: other}]}\n")
    (store,) = load(file).stores
    assert store.client == ClientConfig(host="other", connections=16, timeout_s=2)
    (store,) = load(file, stores=[{"type": "redis", "host": "mine"}]).stores
    assert store.client == ClientConfig(host="mine", connections=16, timeout_s=2)


def test_the_environment_speaks_for_the_first_redis_store_only(file: Path) -> None:
    put(file, "cache: {remote_url: 'redis://a', stores: [{type: redis, host: b}]}\n")
    first, second = load(file, {"LMCACHE_RESP_PASSWORD": SECRET}).stores
    assert first.client == ClientConfig(host="a", password=SECRET)
    assert second.client == ClientConfig(host="b")
    first, second = load(file, {"KVFERRY_RESP_URL": "redis://e/3"}).stores
    assert (first.address, second.address) == ("a:6379", "b:6379")
    first, second = load(file, {"KVFERRY_RESP_URL": "redis://e"}, remote_url="redis://c").stores
    assert (first.address, second.address) == ("c:6379", "b:6379")
    mine = f"redis://:{SECRET}@c"
    (store, _) = load(file, {"KVFERRY_RESP_PASSWORD": "other"}, remote_url=mine).stores
    assert store.client == ClientConfig(host="c", password=SECRET)
    put(file, "cache: {stores: [{type: redis}, {type: redis, host: b}]}\n")
    first, second = load(file, {"KVFERRY_RESP_URL": "redis://e/3"}).stores
    assert first.client == ClientConfig(host="e", db=3)
    assert second.client == ClientConfig(host="b")


def test_variables_of_servers_are_defaults_beneath_a_file(file: Path) -> None:
    environ = {f"LMCACHE_RESP_{name}": "7000" for name in ("HOST", "PORT", "USERNAME", "PASSWORD")}
    theirs: dict[str, Any] = {"username": "7000", "password": "7000"}
    put(file, "remote_url: 'resp://localhost:6379'\nremote_serde: naive\n")
    (store,) = load(file, environ).stores
    assert store.client == ClientConfig(host="localhost", port=6379, **theirs)
    put(file, "remote_url: 'resp://a'\nextra_config: {username: u, password: p}\n")
    file.chmod(0o600)
    (store,) = load(file, environ).stores
    assert store.client == ClientConfig(host="a", port=7000, username="u", password="p")
    put(file, "cache: {stores: [{type: resp, host: '', username: '', password: ''}]}\n")
    (store,) = load(file, environ).stores
    assert store.client == ClientConfig(host="7000", port=7000, **theirs)
    put(file, "cache: {stores: [{type: resp, unix_path: /s}]}\n")
    (store,) = load(file, environ).stores
    assert store.client == ClientConfig(unix_path="/s", **theirs)
    # So are ours, which are stronger than theirs.
    put(file, "cache: {remote_url: 'resp://a'}\n")
    ours = {"KVFERRY_RESP_HOST": "mine", "KVFERRY_RESP_PORT": "7001"}
    (store,) = load(file, {**environ, **ours}).stores
    assert store.address == "a:7001"


def test_a_server_of_the_environment_alone_becomes_a_store() -> None:
    environ = {"LMCACHE_RESP_HOST": "h", "LMCACHE_RESP_PORT": "7"}
    assert [store.address for store in load(None, environ).stores] == ["h:7"]
    assert load(None, environ, stores=()).stores == ()
    assert load(None, {"KVFERRY_RESP_PASSWORD": SECRET}).stores == ()
    assert "use a whole number from 1 to 65535" in message(
        load, None, {**environ, "LMCACHE_RESP_PORT": "x"}
    )


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "cache: {chunksize: 1}",
            "cache: unknown setting 'chunksize'; did you mean 'chunk_size'",
        ),
        ("chunk_size: 1\nmax_local_cpusize: 1", "did you mean 'max_local_cpu_size'"),
        ("chunk_sise: 1", "did you mean 'chunk_size'"),
        ("cache: {chunk_size: '256'}", "a whole number of tokens"),
        ("cache: {local_cpu: 1}", "local_cpu=1 is not valid; use true or false"),
        ("cache: {retrieve_timeout_s: 1, blocking_timeout_secs: 2}", "a second time"),
        ("cache: {local_disk: /d}", "local_disk needs max_local_disk_size, in GB"),
        ("cache: {remote_url: 'lm://h:1'}", "remote_url: the URL must begin with redis://"),
        (f"cache: {{remote_url: 'redis://:{SECRET}@h:x'}}", "remote_url: the URL is malformed"),
        (
            f"cache: {{remote_url: ['{SECRET}']}}",
            "remote_url is not valid; use e.g. redis://host:port",
        ),
        (f"cache: {{stores: '{SECRET}'}}", "stores is not valid; use a list"),
        (f"cache: {{stores: ['{SECRET}']}}", "stores[0] is no mapping"),
        ("cache: {stores: [{1: 2}]}", "not a word"),
        (
            f"cache: {{stores: [{{type: memory, max_capacity_gb: 1}}, "
            f"{{type: redis, password: {SECRET}, port: 0}}]}}",
            "stores[1]: port=0",
        ),
        (f"cache: {{extra_config: {{passwort: {SECRET}}}}}", "did you mean 'password'"),
        ("cache: {extra_config: {save_chunk_meta: true}}", "set it to false"),
        ("cache: {save_unfull_chunk: true}", "set it to false"),
        ("cach: {chunk_size: 1}", "'cach'; rename it"),
        (f"cache: [{SECRET}]", "'name: value'"),
        (
            f"cache: {{chunk_size: 1}}\nclient: {{conections: 1, password: {SECRET}}}",
            "connections",
        ),
        ("cache: {chunk_size: 1, chunk_size: 2}", "twice at line 1"),
    ],
)
def test_what_is_wrong_is_said_with_the_place(file: Path, text: str, advice: str) -> None:
    said = message(load, put(file, text + "\n"))
    assert advice in said
    assert str(file) in said or "save_unfull_chunk" in said


@pytest.mark.parametrize(
    ("variable", "text", "advice"),
    [
        (
            "KVFERRY_CHUNK_SIZE",
            "many",
            "KVFERRY_CHUNK_SIZE='many' is not valid; use a whole number",
        ),
        ("LMCACHE_LOCAL_CPU", "maybe", "true or false"),
        ("LMCACHE_LOOKUP_TIMEOUT_MS", "-1", "a number"),
        (
            "KVFERRY_STORES",
            f"[{SECRET}",
            "KVFERRY_STORES is no JSON: see line 1, column 2; use a list",
        ),
        ("KVFERRY_EXTRA_CONFIG", f'"{SECRET}"', "use a mapping"),
        (
            "LMCACHE_REMOTE_URL",
            f"redis://:{SECRET}@h:x",
            "LMCACHE_REMOTE_URL: the URL is malformed",
        ),
        ("KVFERRY_RESP_URL", f"redis://:{SECRET}@h:x", "malformed"),
    ],
)
def test_variables_are_named_when_they_are_wrong(variable: str, text: str, advice: str) -> None:
    said = message(load, None, {variable: text})
    assert advice in said
    assert variable in said


def test_unknown_keywords_are_refused() -> None:
    assert "did you mean 'chunk_size'" in message(load, chunk_sise=3)


def test_every_problem_is_found_at_once(file: Path) -> None:
    put(file, "cache: {chunk_size: 0, chunksize: 1, stores: [{type: x}, {type: memory}]}\n")
    environ = {"KVFERRY_LOAD_THREADS": "0", "KVFERRY_LOCAL_CPUU": "1", "KVFERRY_TRACEBACK": "1"}
    found = examine(file, environ=environ)
    assert len(found.problems) == 5
    assert found.warnings == ["KVFERRY_LOCAL_CPUU is not read; did you mean KVFERRY_LOCAL_CPU?"]
    with pytest.raises(ConfigError, match=r"\(and 4 more\)"):
        found.settings()


def test_a_secret_that_others_may_read_is_warned_of(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(file, f"cache: {{remote_url: 'redis://:{SECRET}@h'}}\n")
    with caplog.at_level(logging.INFO):
        load(file)
        assert caplog.text == ""
        file.chmod(0o644)
        load(file)
    assert "chmod 600" in caplog.text
    assert SECRET not in caplog.text
