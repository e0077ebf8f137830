"""`kvferry node` over TLS: our client, redis-py and redis-cli, and who is turned away."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from kvferry import RedisClient
from kvferry.base.errors import ConfigError, TlsError, UnavailableError
from kvferry.sharing.node import Node, NodeSettings
from support.certificates import Certificates
from support.servers import wait_for

VALUE = os.urandom(9 << 20)  # beyond what is received at a time


def settings_of(certs: Certificates, **settings: Any) -> NodeSettings:
    return NodeSettings(
        **{
            "listen": ("127.0.0.1:0",),
            "size_gb": 0.1,
            "tuning": {"prefault": False},
            "tls_cert_file": certs.server.cert_file,
            "tls_key_file": certs.server.key_file,
            "tls_ca_file": certs.ca_file,
            **settings,
        }
    )


def port_of(node: Node) -> int:
    return int(node.endpoints[0].rpartition(":")[2])


@pytest.fixture
def secured(certs: Certificates) -> Iterator[Node]:
    with Node(settings_of(certs)) as node:
        yield node


@pytest.fixture
def shown(certs: Certificates) -> dict[str, Any]:
    """What a client of ours shows and trusts."""
    return {
        "tls": True,
        "tls_ca_file": certs.ca_file,
        "tls_cert_file": certs.client.cert_file,
        "tls_key_file": certs.client.key_file,
    }


@pytest.mark.parametrize("protocol", [2, 3])
def test_our_client_writes_and_reads_values_of_every_size(
    secured: Node, shown: dict[str, Any], protocol: int
) -> None:
    sizes = [1, 16_383, 16_384, 16_385, (1 << 20) + 1, len(VALUE)]
    keys = [f"k{size}" for size in sizes]
    with RedisClient(
        host="localhost", port=port_of(secured), tuning={"protocol": protocol}, **shown
    ) as client:
        for _ in range(3):
            values = [VALUE[:size] for size in sizes]
            assert client.batch_set(keys, values).ok
            targets = [bytearray(size) for size in sizes]
            assert client.batch_get(keys, targets).ok
            assert [bytes(target) for target in targets] == values
    wait_for("pages come back", lambda: secured.stats()["in_flight_bytes"] == 0)


def test_redis_py_and_redis_cli(secured: Node, certs: Certificates) -> None:
    port, client = port_of(secured), certs.client
    with redis.Redis(
        host="localhost",
        port=port,
        ssl=True,
        ssl_ca_certs=certs.ca_file,
        ssl_certfile=client.cert_file,
        ssl_keyfile=client.key_file,
    ) as other:
        assert other.set("a", VALUE)
        assert other.get("a") == VALUE
    if shutil.which("redis-cli") is None:
        pytest.skip("no redis-cli on PATH")
    words = ["--tls", "--cacert", certs.ca_file, "--cert", client.cert_file]
    words += ["--key", client.key_file, "-h", "localhost", "-p", str(port), "STRLEN", "a"]
    done = subprocess.run(
        ["redis-cli", *words], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.split() == [str(len(VALUE))]


def test_who_shows_no_certificate_of_ours_is_turned_away_at_once(
    secured: Node, shown: dict[str, Any], certs: Certificates
) -> None:
    mine = {name: shown[name] for name in ("tls", "tls_ca_file")}
    theirs = {**shown, "tls_cert_file": certs.unknown.cert_file}
    theirs["tls_key_file"] = certs.unknown.key_file
    for options, reason in ((mine, "wants a client certificate"), (theirs, "unknown ca")):
        with (
            pytest.raises(UnavailableError, match=reason),
            RedisClient(host="localhost", port=port_of(secured), **options) as client,
        ):
            client.set("a", b"x")
    wait_for("both are counted", lambda: secured.stats()["tls_refused"] >= 2)
    assert secured.stats()["commands"] == 0


def test_certificates_of_clients_serve_beyond_this_host_and_users_may_be_asked_for_besides(
    certs: Certificates, shown: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "node.sock"
    listen = ("0.0.0.0:0", f"unix:{path}")
    with (
        Node(settings_of(certs, listen=listen)) as node,
        RedisClient(host="localhost", port=port_of(node), **shown) as client,
        RedisClient(unix_path=str(path)) as neighbour,  # of our user: without TLS, as ever
    ):
        client.set("a", b"x")
        assert neighbour.exists("a")
    with Node(settings_of(certs, password="word")) as node:
        with (
            pytest.raises(UnavailableError, match="NOAUTH"),
            RedisClient(host="localhost", port=port_of(node), **shown) as nobody,
        ):
            nobody.set("a", b"x")
        with RedisClient(host="localhost", port=port_of(node), password="word", **shown) as client:
            client.set("a", b"x")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tls_key_file": None}, "tls_cert_file is set without tls_key_file"),
        ({"tls_cert_file": None, "tls_key_file": None}, "tls_ca_file is set without tls_cert"),
        ({"tls_ca_file": None, "listen": ("0.0.0.0:0",)}, "reachable from other hosts"),
    ],
)
def test_tls_that_is_not_whole_is_refused(
    certs: Certificates, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        settings_of(certs, **given)


def test_files_of_no_use_are_named(certs: Certificates, tmp_path: Path) -> None:
    for name in ("tls_cert_file", "tls_key_file", "tls_ca_file"):
        wrong = tmp_path / name
        wrong.write_text("nothing\n")
        with pytest.raises(TlsError, match=str(wrong)):
            Node(settings_of(certs, **{name: str(wrong)}))
