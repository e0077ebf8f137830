"""Settings: what is accepted, what is refused with advice, and what stays secret."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import pytest

from kvferry.base.credentials import Credentials
from kvferry.base.errors import ConfigError, UsageError
from kvferry.config import ClientConfig
from kvferry.config.removed import REMOVED
from kvferry.config.tuning import ClientTuning
from support.config import SECRET, message

pytestmark = pytest.mark.presence

TLS: dict[str, Any] = {"tls": True}
CLUSTER: dict[str, Any] = {"topology": "cluster"}
SENTINEL: dict[str, Any] = {"topology": "sentinel", "sentinel_master": "m"}


def _provide() -> Credentials:
    return Credentials(None, SECRET)


def test_defaults_are_those_of_a_local_server() -> None:
    config = ClientConfig()
    assert config.address == "localhost:6379"
    assert (config.password, config.db, config.ttl_s) == (None, 0, None)
    assert repr(config) == "ClientConfig()"


def test_config_is_frozen_and_keyword_only() -> None:
    config = ClientConfig()
    with pytest.raises(AttributeError):
        config.port = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        ClientConfig("host")  # type: ignore[call-arg]
    assert pickle.loads(pickle.dumps(config)) == config
    assert config.replace(db=3).db == 3


def test_secrets_are_in_no_representation() -> None:
    config = ClientConfig(username="u", password=SECRET, db=3)
    assert repr(config) == "ClientConfig(username='u', password='***', db=3)"
    assert SECRET not in f"{config} {config!s} {config.address}"
    everything = ClientConfig(
        topology="sentinel",
        sentinel_master="m",
        sentinel_password=SECRET,
        tls=True,
        tls_cert_file="cert.pem",
        tls_key_file="key.pem",
        credentials=functools.partial(Credentials, None, SECRET),
    )
    assert SECRET not in f"{everything} {everything!r} {everything.address}"
    assert repr(everything).count("'***'") == 2


def test_deadline_grows_with_bytes() -> None:
    config = ClientConfig(timeout_s=2, tuning=ClientTuning(floor_rate_bytes_s=10e6))
    assert config.deadline_s(0) == 2
    assert config.deadline_s(40_000_000) == 6


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"port": 0}, "whole number from 1 to 65535"),
        ({"port": "6379"}, "whole number"),
        ({"port": True}, "whole number"),
        ({"db": -1}, "whole number"),
        ({"connections": 0}, "whole number"),
        ({"timeout_s": 0}, "above 0"),
        ({"timeout_s": float("nan")}, "above 0"),
        ({"timeout_s": float("inf")}, "above 0"),
        ({"timeout_s": None}, "above 0"),
        ({"timeout_s": "2"}, "above 0"),
        ({"ttl_s": 0}, "from 0.001"),
        ({"ttl_s": 0.0001}, "a number of seconds from 0.001"),
        ({"ttl_s": 1e13}, "from 0.001 to 1000000000000"),
        ({"host": ""}, "use a host name"),
        ({"host": f"redis://:{SECRET}@h"}, "from_url"),
        ({"unix_path": ""}, "use a path"),
        ({"username": "u"}, "set both"),
        ({"password": SECRET.encode()}, "use a text"),
        ({"password": SECRET + "\ud800"}, "surrogate"),
        # TLS.
        ({"tls": "yes"}, "true or false"),
        ({"tls_ca_file": "ca"}, "tls_ca_file is set without tls"),
        ({"tls_verify": "none"}, "tls_verify is set without tls"),
        (TLS | {"tls_verify": "no"}, "use full, ca or none"),
        (TLS | {"tls_ca_file": ""}, "use a path"),
        (TLS | {"tls_cert_file": "c"}, "without tls_key_file"),
        (TLS | {"tls_key_file": "k"}, "without tls_cert_file"),
        (TLS | {"tls_server_name": "a b"}, "use a host name"),
        (TLS | {"unix_path": "/s"}, "Unix socket"),
        # Where servers are.
        ({"topology": "ring"}, "use standalone, cluster or sentinel"),
        ({"topology": ["cluster"]}, "standalone"),
        ({"nodes": ("h:1",)}, "topology"),
        ({"topology": "cluster", "nodes": "h:1"}, "list of hosts"),
        ({"topology": "cluster", "nodes": ("a:1", "b:x")}, "nodes[1]"),
        ({"topology": "cluster", "nodes": ("a:0",)}, "nodes[0]"),
        ({"topology": "cluster", "nodes": ("::1:7000",)}, "brackets"),
        ({"topology": "cluster", "nodes": ("[h]:7",)}, "nodes[0]"),
        ({"topology": "cluster", "nodes": (":7",)}, "nodes[0]"),
        ({"topology": "cluster", "nodes": (7,)}, "list of hosts"),
        ({"topology": "cluster", "nodes": (f"u:{SECRET}@h",)}, "nodes[0]"),
        ({"host": f"a,{SECRET}"}, "use a host name"),
        ({"topology": "cluster", "db": 1}, "db=1 does not exist"),
        ({"topology": "cluster", "unix_path": "/s"}, "Unix socket"),
        ({"topology": "sentinel"}, "needs sentinel_master"),
        (SENTINEL | {"unix_path": "/s"}, "Unix socket"),
        (SENTINEL | {"sentinel_username": "u"}, "without sentinel_password"),
        ({"sentinel_master": "m"}, "without topology='sentinel'"),
        ({"sentinel_password": SECRET}, "without topology='sentinel'"),
        ({"read_from": "replica"}, "set without topology='cluster' or 'sentinel'"),
        (CLUSTER | {"read_from": "anywhere"}, "use primary"),
        (CLUSTER | {"read_from": "az"}, "needs availability_zone"),
        ({"same_host": "sometimes"}, "auto, tcp or unix"),
        ({"same_host": "unix", "host": "cache-1"}, "at an address of this host"),
        ({"same_host": "unix", "tls": True}, "without tls"),
        ({"same_host": "unix", **CLUSTER}, "is for one server"),
        # Credentials, presence.
        ({"credentials": SECRET}, "a str"),
        ({"credentials": _provide, "password": SECRET}, "one or the other"),
        ({"presence_prefix": b"kv:"}, "use a text"),
        ({"tuning": {"stall_s": 1}}, "tuning is not valid"),
    ],
)
def test_bad_setting_is_refused_with_advice(settings: dict[str, object], advice: str) -> None:
    assert advice in message(ClientConfig, **settings)
    assert issubclass(ConfigError, UsageError)


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, "localhost:6379"),
        ({"host": "::1", "port": 7}, "[::1]:7"),
        ({"unix_path": "/s"}, "unix:/s"),
        (CLUSTER | {"host": "a"}, "cluster a:6379"),
        (
            CLUSTER | {"host": "a", "nodes": ["b", "[::1]:7", "[::2]"]},
            "cluster a:6379,b:6379,[::1]:7,[::2]:6379",
        ),
        (SENTINEL | {"port": 26379, "nodes": ("b", "c:7")}, "m at localhost:26379,b:26379,c:7"),
    ],
)
def test_address_for_people(settings: dict[str, Any], address: str) -> None:
    assert ClientConfig(**settings).address == address


def test_nodes_are_normal_and_seeds_are_pairs() -> None:
    config = ClientConfig(topology="cluster", host="a", nodes=("b", "[::1]:7"))
    assert config.nodes == ("b:6379", "[::1]:7")
    assert config.seeds == (("a", 6379), ("b", 6379), ("::1", 7))
    assert ClientConfig(host="a").seeds == (("a", 6379),)
    assert config.replace(nodes=config.nodes) == config


def test_settings_of_one_server_keep_what_is_not_about_where() -> None:
    cluster = ClientConfig(**CLUSTER, nodes=("b",), password=SECRET, read_from="replica", tls=True)
    assert cluster.for_node("::1", 7) == ClientConfig(host="::1", port=7, password=SECRET, tls=True)
    watched = ClientConfig(**SENTINEL, db=2, credentials=_provide, sentinel_password=SECRET)
    assert watched.for_node("h", 7) == ClientConfig(host="h", port=7, db=2, credentials=_provide)
    assert watched.for_sentinel("s", 8) == ClientConfig(host="s", port=8, password=SECRET)


@pytest.mark.parametrize("name", sorted(REMOVED["client"]))
def test_what_is_gone_says_what_to_do_instead(name: str) -> None:
    said = f"{name} {REMOVED['client'][name]}"
    assert message(ClientConfig, **{name: 1}) == said
    assert message(ClientConfig.from_env, {}, **{name: 1}) == said
    assert message(ClientConfig.from_url, f"redis://h?{name}=1", environ={}).endswith(said)
    assert ClientConfig.from_env({}, **{name: None}) == ClientConfig(), "as older files have it"


def test_environment_precedence() -> None:
    environ = {
        "KVFERRY_RESP_HOST": "ours",
        "LMCACHE_RESP_HOST": "theirs",
        "KVFERRY_RESP_PORT": "",
        "LMCACHE_RESP_PORT": "7000",
        "LMCACHE_RESP_PASSWORD": SECRET,
    }
    config = ClientConfig.from_env(environ)
    assert (config.host, config.port, config.password) == ("ours", 7000, SECRET)
    explicit = ClientConfig.from_env(environ, host="mine", port=None, db=2)
    assert (explicit.host, explicit.port, explicit.db) == ("mine", 7000, 2)
    assert explicit.password == SECRET  # each variable stands alone
    assert ClientConfig.from_env({}) == ClientConfig()


def test_url_of_the_environment() -> None:
    environ = {
        "KVFERRY_RESP_URL": "rediss://cache?connections=4",
        "KVFERRY_RESP_HOST": "other",
        "KVFERRY_RESP_PORT": "7000",
        "KVFERRY_RESP_PASSWORD": SECRET,
    }
    config = ClientConfig.from_env(environ)  # single variables fill what the URL leaves open
    wanted = ClientConfig(host="cache", port=7000, tls=True, connections=4, password=SECRET)
    assert config == wanted
    explicit = ClientConfig.from_env(environ, connections=2, port=7)
    assert (explicit.host, explicit.port, explicit.connections) == ("cache", 7, 2)
    # Who names another host does not mean the one of the URL.
    other = ClientConfig.from_env(environ, host="mine")
    assert other == ClientConfig(host="mine", port=7000, password=SECRET)
    # The password of a URL without a user is that of the default user, not of somebody else.
    environ |= {"KVFERRY_RESP_URL": "redis://:own@h:6379", "KVFERRY_RESP_USERNAME": "u"}
    assert ClientConfig.from_env(environ) == ClientConfig(host="h", password="own")
    bad = {"KVFERRY_RESP_URL": f"redis://u:{SECRET}#@h"}
    assert "KVFERRY_RESP_URL: the URL is malformed" in message(ClientConfig.from_env, bad)


def test_a_provider_of_credentials_replaces_those_of_the_environment() -> None:
    environ = {"KVFERRY_RESP_USERNAME": "u", "KVFERRY_RESP_PASSWORD": SECRET}
    config = ClientConfig.from_env(environ, credentials=_provide)
    assert (config.username, config.password) == (None, None)
    environ = {"KVFERRY_RESP_URL": f"redis://u:{SECRET}@h"}
    config = ClientConfig.from_env(environ, credentials=_provide)
    assert config == ClientConfig(host="h", credentials=_provide)


@pytest.mark.parametrize("text", ["x", "0", "70000", "-1", " 1", "1_0", "²"])
def test_bad_port_names_its_variable(text: str) -> None:
    environ = {"LMCACHE_RESP_PORT": text, "LMCACHE_RESP_PASSWORD": SECRET}
    assert "LMCACHE_RESP_PORT" in message(ClientConfig.from_env, environ)
    assert ClientConfig.from_env(environ, port=5).port == 5


def test_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_RESP_HOST", "from-process")
    assert ClientConfig.from_env().host == "from-process"
