"""URLs of servers: every scheme, several hosts, and no word of what is secret."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.base.errors import ConfigError
from kvferry.config import ClientConfig
from kvferry.config.url import parse_endpoint, show_endpoint
from support.config import SECRET, message

pytestmark = pytest.mark.presence

CLUSTER: dict[str, Any] = {"topology": "cluster"}
SENTINEL: dict[str, Any] = {"topology": "sentinel", "port": 26379, "sentinel_master": "m"}


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
            "redis://h?connections=4&timeout_s=2&ttl_s=60.5",
            {
                "host": "h",
                "connections": 4,
                "timeout_s": 2.0,
                "ttl_s": 60.5,
            },
        ),
        ("rediss://cache-1", {"host": "cache-1", "tls": True}),
        ("VALKEYS://cache-1", {"host": "cache-1", "tls": True}),
        (
            "resps://h?tls_ca_file=/etc/ca.pem&tls_verify=ca",
            {
                "host": "h",
                "tls": True,
                "tls_ca_file": "/etc/ca.pem",
                "tls_verify": "ca",
            },
        ),
        ("redis://h?tls=yes", {"host": "h", "tls": True}),
        ("redis://h?tls=0&connections=2", {"host": "h", "connections": 2}),
        ("redis+cluster://h", CLUSTER | {"host": "h"}),
        ("redis-cluster://h:1,i:2/", CLUSTER | {"host": "h", "port": 1, "nodes": ("i:2",)}),
        ("valkey+cluster://h/0", CLUSTER | {"host": "h"}),
        (
            "rediss+cluster://u:p@[::1]:7,[::2],i:8?read_from=az&availability_zone=a-1",
            CLUSTER
            | {"host": "::1", "port": 7, "nodes": ("[::2]:6379", "i:8"), "tls": True}
            | {"username": "u", "password": "p", "read_from": "az", "availability_zone": "a-1"},
        ),
        (
            "valkeys+cluster://i,[::2]:1",
            CLUSTER | {"host": "i", "nodes": ("[::2]:1",), "tls": True},
        ),
        ("rediss-cluster://h", CLUSTER | {"host": "h", "tls": True}),
        ("redis://h?topology=cluster&nodes=i,j:7", CLUSTER | {"host": "h", "nodes": ("i", "j:7")}),
        ("redis-sentinel://s/m", SENTINEL | {"host": "s"}),
        ("redis+sentinel:///m", SENTINEL),
        (
            "redis+sentinel://u:p@s1,s2:7/m/3?sentinel_password=q",
            SENTINEL
            | {"host": "s1", "nodes": ("s2:7",), "db": 3}
            | {"username": "u", "password": "p", "sentinel_password": "q"},
        ),
        (
            "rediss+sentinel://s:1/a%2Fb",
            SENTINEL | {"host": "s", "port": 1, "sentinel_master": "a/b", "tls": True},
        ),
        (
            "redis://h?presence_prefix=kv%3A",
            {"host": "h", "presence_prefix": "kv:"},
        ),
        ("unix:///run/valkey.sock?db=1", {"unix_path": "/run/valkey.sock", "db": 1}),
        ("unix://u:p%40@/a%20b", {"unix_path": "/a b", "username": "u", "password": "p@"}),
    ],
)
def test_url(url: str, expected: dict[str, object]) -> None:
    assert ClientConfig.from_url(url) == ClientConfig(**expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("localhost:6379", "must begin with redis://"),
        ("http://h", "must begin with redis://"),
        ("redis+ring://h", "must begin with redis://"),
        ("unixs:///s", "must begin with redis://"),
        (f"redis-sentinel://:{SECRET}@h", "needs sentinel_master"),
        (f"redis+cluster://:{SECRET}@h/1", "db=1"),
        (f"redis://:{SECRET}@h,i", "topology='cluster'"),
        (f"redis+cluster://:{SECRET}@h,", "malformed"),
        (f"redis+cluster://:{SECRET}@,h", "malformed"),
        (f"redis+cluster://:{SECRET}@h,[::1", "malformed"),
        (f"redis+cluster://:{SECRET}@h,::1", "malformed"),
        (f"redis+cluster://:{SECRET}@h,u:{SECRET}@i", "malformed"),
        (f"rediss://:{SECRET}@h?tls=false", "tls twice"),
        (f"redis+cluster://:{SECRET}@h?topology=sentinel", "topology twice"),
        (f"redis://:{SECRET}@h?tls=maybe", "true or false"),
        (f"redis://:{SECRET}@h?tls=", "true or false"),
        (f"redis://:{SECRET}@h?tls_verify=none", "without tls"),
        (f"redis://:{SECRET}@h?credentials=x", "unknown query parameter 'credentials'"),
        (f"redis+sentinel://h/m?sentinel_password=12&{SECRET}=1", "unknown query parameter"),
        (
            f"redis+sentinel://h/m?sentinel_password=12&db={SECRET}",
            "the URL's db is not valid; use a whole number",
        ),
        (f"redis://:{SECRET}@h:notaport", "malformed"),
        (f"redis://:{SECRET}@h:99999", "a port of the URL is not from 1 to 65535"),
        (f"redis://:{SECRET}@h:0", "a port of the URL is not from 1 to 65535"),
        (f"redis://:{SECRET}@[::1]:65536/1", "a port of the URL is not from 1 to 65535"),
        (f"redis+cluster://:{SECRET}@h,i:70000", "a port of the URL is not from 1 to 65535"),
        (f"redis://u:99999{SECRET}", "malformed"),
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
        (f"redis://:{SECRET}@h?timeout_s=soon", "use a number of seconds above 0"),
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


@given(
    st.text("abc.-_09", min_size=1) | st.ip_addresses().map(str),
    st.integers(1, 65535),
)
def test_endpoints_survive_being_shown(host: str, port: int) -> None:
    assert parse_endpoint(show_endpoint(host, port)) == (host, port)
