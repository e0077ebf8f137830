"""Settings: what is accepted, what is refused with advice, and what stays secret."""

from __future__ import annotations

import dataclasses
import pickle
import traceback
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.config import ClientConfig
from kvferry.errors import ConfigError, UsageError

SECRET = "s3cr3t-w0rd"


def message(call: object, *args: object, **settings: object) -> str:
    """The text of the ConfigError, after checking that no part of the trace holds the secret."""
    with pytest.raises(ConfigError) as caught:
        call(*args, **settings)  # type: ignore[operator]
    error: BaseException | None = caught.value
    while error is not None:  # hidden causes count as well: error reporters collect them
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__
    assert SECRET not in "".join(traceback.format_exception_only(caught.value))
    return str(caught.value)


def test_defaults_are_those_of_a_local_server() -> None:
    config = ClientConfig()
    assert config.address == "localhost:6379"
    assert (config.password, config.db, config.protocol, config.ttl_s) == (None, 0, 3, None)
    assert repr(config) == "ClientConfig()"


def test_config_is_frozen_and_keyword_only() -> None:
    config = ClientConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.port = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        ClientConfig("host")  # type: ignore[call-arg]
    assert pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config, db=3).db == 3


def test_password_is_in_no_representation() -> None:
    config = ClientConfig(username="u", password=SECRET, db=3)
    assert repr(config) == "ClientConfig(username='u', password='***', db=3)"
    assert SECRET not in f"{config} {config!s} {config.address}"


def test_deadline_grows_with_bytes() -> None:
    config = ClientConfig(timeout_s=2, floor_rate_bytes_s=10e6)
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
        ({"attempts_max": 0}, "whole number"),
        ({"timeout_s": 0}, "above 0"),
        ({"timeout_s": float("nan")}, "above 0"),
        ({"timeout_s": float("inf")}, "above 0"),
        ({"timeout_s": None}, "above 0"),
        ({"timeout_s": "2"}, "above 0"),
        ({"ttl_s": 0}, "above 0"),
        ({"ttl_s": 0.0001}, "millisecond"),
        ({"protocol": 4}, "use 3"),
        ({"host": ""}, "non-empty"),
        ({"host": f"redis://:{SECRET}@h"}, "from_url"),
        ({"unix_path": ""}, "non-empty"),
        ({"client_name": "two words"}, "without spaces"),
        ({"username": "u"}, "set both"),
        ({"password": SECRET.encode()}, "bytes"),
        ({"password": SECRET + "\ud800"}, "surrogate"),
        ({"reconnect_min_s": 2, "reconnect_max_s": 1}, "reconnect_min_s"),
    ],
)
def test_bad_setting_is_refused_with_advice(settings: dict[str, object], advice: str) -> None:
    assert advice in message(ClientConfig, **settings)
    assert issubclass(ConfigError, UsageError)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", {}),
        ("redis://cache-1", {"host": "cache-1"}),
        ("resp://cache-1:7000", {"host": "cache-1", "port": 7000}),
        ("valkey://:pw@h/2", {"host": "h", "password": "pw", "db": 2}),
        ("redis://u:p@h:1/", {"host": "h", "port": 1, "username": "u", "password": "p"}),
        ("redis://[::1]:7", {"host": "::1", "port": 7}),
        (
            "redis://a%40b:p%2Fw%3F%23%25%3A@h",
            {"host": "h", "username": "a@b", "password": "p/w?#%:"},
        ),
        (
            "redis://h?connections=4&timeout_s=2&ttl_s=60.5&window_bytes=1024&client_name=me",
            {
                "host": "h",
                "connections": 4,
                "timeout_s": 2.0,
                "ttl_s": 60.5,
                "window_bytes": 1024,
                "client_name": "me",
            },
        ),
        ("unix:///run/valkey.sock?db=1", {"unix_path": "/run/valkey.sock", "db": 1}),
        ("unix://u:p%40@/a%20b", {"unix_path": "/a b", "username": "u", "password": "p@"}),
    ],
)
def test_url(url: str, expected: dict[str, object]) -> None:
    assert ClientConfig.from_url(url) == ClientConfig(**expected)  # type: ignore[arg-type]


def test_ipv6_address_is_shown_in_brackets() -> None:
    assert ClientConfig.from_url("redis://[fe80::1]:7").address == "[fe80::1]:7"
    assert ClientConfig.from_url("unix:///s").address == "unix:/s"


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("localhost:6379", "must begin with redis://"),
        ("http://h", "must begin with redis://"),
        (f"rediss://:{SECRET}@h", "TLS"),
        (f"redis-sentinel://:{SECRET}@h/master", "Sentinel"),
        (f"redis+cluster://:{SECRET}@h", "cluster"),
        (f"redis://:{SECRET}@h:notaport", "malformed"),
        (f"redis://:{SECRET}@h:99999", "malformed"),
        (f"redis://:{SECRET}@[::1", "malformed"),
        (f"redis://u:{SECRET}/x@h", "percent-encoded"),
        (f"redis://u:12?{SECRET}=1@h", "percent-encoded"),
        (f"redis://u:12#{SECRET}@h", "percent-encoded"),
        (f"redis://u:x@{SECRET}@h", "percent-encoded"),
        (f"redis://u:%ff{SECRET}@h", "percent-encoded"),
        (f"redis://{SECRET}@h", "set both"),
        (f"unix://u:{SECRET}/x@/path", "percent-encoded"),
        (f"redis://:{SECRET}@h/zero", "whole number"),
        (f"redis://:{SECRET}@h?conections=4", "'connections'"),
        (f"redis://:{SECRET}@h?timeout=4", "'timeout_s'"),
        (f"redis://:{SECRET}@h?host=x", "unknown query parameter 'host'"),
        (f"redis://:{SECRET}@h?db=x", "whole number"),
        (f"redis://:{SECRET}@h?timeout_s=soon", "not a number"),
        (f"redis://:{SECRET}@h/1?db=2", "twice"),
        (f"redis://:{SECRET}@h?db=1&db=2", "twice"),
        ("unix://", "names no socket"),
    ],
)
def test_bad_url_is_refused_with_advice(url: str, advice: str) -> None:
    assert advice in message(ClientConfig.from_url, url)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_any_encoded_password_survives_a_url(password: str) -> None:
    config = ClientConfig.from_url(f"redis://u:{quote(password, safe='')}@h")
    assert config.password == password


@given(st.text(st.characters(codec="utf-8"), max_size=20), st.text(max_size=20))
def test_a_raw_password_is_never_quoted(before: str, after: str) -> None:
    # Any characters around it, encoded or not: the outcome is a config or an error without it.
    try:
        said: object = ClientConfig.from_url(f"redis://u:{before}{SECRET}{after}@h")
    except ConfigError as error:
        said = error
    assert SECRET not in repr(said)


def test_overrides_win_over_the_url_unless_none() -> None:
    config = ClientConfig.from_url("redis://h:1?timeout_s=3", port=2, timeout_s=None)
    assert (config.host, config.port, config.timeout_s) == ("h", 2, 3.0)
    assert "'connections'" in message(ClientConfig.from_url, "redis://h", conections=1)


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


@pytest.mark.parametrize("text", ["x", "0", "70000", "-1", " 1", "1_0", "²"])
def test_bad_port_names_its_variable(text: str) -> None:
    environ = {"LMCACHE_RESP_PORT": text, "LMCACHE_RESP_PASSWORD": SECRET}
    assert "LMCACHE_RESP_PORT" in message(ClientConfig.from_env, environ)
    assert ClientConfig.from_env(environ, port=5).port == 5


def test_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_RESP_HOST", "from-process")
    assert ClientConfig.from_env().host == "from-process"
