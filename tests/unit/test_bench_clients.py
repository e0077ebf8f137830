"""What other clients and other processes are told of a configuration: all of it, or a refusal."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from kvferry.base.credentials import Credentials
from kvferry.base.errors import UsageError
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import NotMeasured, redis_arguments
from kvferry_lab.bench.clients import config_url, open_client

pytestmark = pytest.mark.presence

AWKWARD = "p w:/?#@%&=é"
TLS: dict[str, Any] = {
    "tls": True,
    "tls_ca_file": "/certificates/a b&c.pem",
    "tls_cert_file": "/certificates/mine.pem",
    "tls_key_file": "/certificates/mine.key",
    "tls_server_name": "cache.test",
    "tls_verify": "ca",
}
CONFIGS = [
    ClientConfig(),
    ClientConfig(host="::1", port=7000, db=3, username="us er", password=AWKWARD),
    ClientConfig(unix_path="/tmp/a b?c.sock", db=2, password=AWKWARD, timeout_s=0.25),
    ClientConfig(host="cache", connections=3),
    ClientConfig(host="cache", **TLS),
    ClientConfig(host="one", topology="cluster", nodes=("two:7001", "[::2]:7002")),
    ClientConfig(host="one", topology="cluster", read_from="az", availability_zone="z 1", **TLS),
    ClientConfig(
        host="watcher",
        port=26379,
        topology="sentinel",
        nodes=("other:26380",),
        sentinel_master="my/master",
        sentinel_username="w",
        sentinel_password=AWKWARD,
        password="of the servers",
        db=1,
        tls=True,
    ),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.address)
def test_a_url_says_all_that_the_configuration_says(config: ClientConfig) -> None:
    assert ClientConfig.from_url(config_url(config)) == config


def test_no_url_can_hold_a_function() -> None:
    with pytest.raises(UsageError, match="a URL needs user and password"):
        config_url(ClientConfig(credentials=lambda: Credentials(None, "x")))


def test_redis_py_is_told_of_tls() -> None:
    config = ClientConfig(host="cache", **{**TLS, "tls_server_name": None})
    found = redis_arguments(config)
    assert found["ssl"] is True
    assert found["ssl_ca_certs"] == config.tls_ca_file
    assert (found["ssl_certfile"], found["ssl_keyfile"]) == (
        config.tls_cert_file,
        config.tls_key_file,
    )
    assert (found["ssl_cert_reqs"], found["ssl_check_hostname"]) == ("required", False)
    assert found["ssl_min_version"] is ssl.TLSVersion.TLSv1_2
    assert "ssl" not in redis_arguments(ClientConfig(host="cache"))


def test_what_a_client_cannot_be_told_is_said() -> None:
    with pytest.raises(NotMeasured, match="tls_server_name"):
        open_client("redis-py", ClientConfig(host="cache", **TLS))
    cluster = ClientConfig(host="cache", topology="cluster")
    for kind in ("redis-py-async", "glide", "lmcache"):
        with pytest.raises(NotMeasured, match="not on a cluster"):
            open_client(kind, cluster)
    for kind in ("glide", "lmcache"):
        with pytest.raises(NotMeasured, match="without TLS only"):
            open_client(kind, ClientConfig(tls=True))
