"""The pure-Python client over TLS: what it stores and reads, whom it refuses, who refuses it."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from kvferry.client.pure.client import PureRedisClient
from kvferry.client.pure.tls import shake_hands
from kvferry.config import ClientConfig
from support.certificates import Certificates
from support.proxy import Direction, FaultProxy
from support.pure import MIB, payload
from support.servers import TestServer, address_of
from support.stamps import until, within
from support.tls import ServerTls
from support.tuned import tuned

Start = Callable[..., TestServer]
DIRECTIONS: tuple[Direction, ...] = ("down", "up")
SIZES = [0, 1, 4095, 4096, 16_383, 16_384, 16_385, MIB + 1, 4 * MIB, 8 * MIB + 3]


def secured(server: TestServer, **settings: Any) -> PureRedisClient:
    """A client that the server lets in, unless the settings prevent it."""
    assert server.tls is not None
    settings = tuned(ClientConfig, **(server.tls.client_settings | settings))
    return PureRedisClient.from_url(server.tls_url, **settings)


def refusal(client: PureRedisClient) -> str:
    """Why it cannot connect; it must say so soon, and again, and not try without a pause."""
    began = time.monotonic()
    with client, within(10):
        for _ in range(50):
            with pytest.raises(errors.TlsError) as caught:
                client.ping()
        assert client.stats()["connect_failures"] < 10 * max(1, time.monotonic() - began)
    return str(caught.value)


# What it stores and reads.


@pytest.mark.parametrize("protocol", [2, 3])
def test_values_of_every_size_come_back(tls_server: TestServer, protocol: int) -> None:
    with secured(tls_server, protocol=protocol) as client:
        for size in SIZES:
            target = bytearray(size)
            assert client.get(f"v{size}", target) is False
            client.set(f"v{size}", payload(size))
            assert client.get(f"v{size}", target) is True
            assert target == payload(size)
        assert client.stats()["connects"] == 1


def test_batches(tls_server: TestServer) -> None:
    sizes = SIZES * 3
    keys = [f"key-{index}" for index in range(len(sizes))]
    values = [payload(size, index) for index, size in enumerate(sizes)]
    with secured(tls_server) as client:
        assert client.batch_set(keys, values).ok
        targets = [bytearray(size) for size in sizes]
        assert client.batch_get(keys, targets).ok
        assert targets == values
        assert client.batch_exists([*keys, "none"], prefix=True).prefix_len == len(keys)
        mismatched = client.batch_get(keys[-1:] + keys[:2], [bytearray(9) for _ in range(3)])
        assert list(mismatched) == [Status.SIZE_MISMATCH] * 3
        assert client.batch_delete(keys).ok
        assert client.stats()["connects"] == 2  # the 8 MiB were beyond drain_bytes_max


def test_small_commands_go_thousands_deep(tls_server: TestServer) -> None:
    keys = [f"{'k' * (index % 500)}{index}" for index in range(10_000)]
    with secured(tls_server) as client, within(30):
        client.batch_set(keys[::2], [b"x"] * 5_000)
        assert [bool(status) for status in client.batch_exists(keys)] == [False, True] * 5_000


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3"])
def test_versions(start: Start, versions: str) -> None:
    server = start("redis7", tls=ServerTls(versions=versions))
    with secured(server) as client:
        client.set("k", payload(MIB))
        assert client.exists("k")


# Whom it refuses.


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        ("expired", "certificate has expired"),
        ("not_yet", "not yet valid"),
        ("other_host", "mismatch"),
        ("unknown", "unable to get local issuer"),
    ],
)
def test_bad_certificates(start: Start, certs: Certificates, certificate: str, words: str) -> None:
    server = start("redis7", tls=ServerTls(getattr(certs, certificate)))
    reason = refusal(secured(server))
    assert "the server's certificate is refused: " in reason
    assert words in reason
    assert server.info("stats")["total_error_replies"] == "0"
    with secured(server, tls_verify="none") as client:  # nobody looks
        client.ping()
    if certificate == "other_host":
        for settings in ({"tls_verify": "ca"}, {"tls_server_name": "other.test"}):
            with secured(server, **settings) as client:
                client.ping()
    else:
        assert words in refusal(secured(server, tls_verify="ca"))


def test_a_name_is_asked_for_and_verified(tls_server: TestServer) -> None:
    assert tls_server.tls is not None
    settings = tls_server.tls.client_settings
    with PureRedisClient("localhost", tls_server.tls_port, **settings) as client:
        client.ping()
    reason = refusal(secured(tls_server, tls_server_name="elsewhere.test"))
    assert "elsewhere.test" in reason
    assert "no certificate" in refusal(secured(tls_server, tls_server_name="a..b"))


def test_the_system_does_not_trust_a_test(tls_server: TestServer) -> None:
    assert "is refused" in refusal(PureRedisClient.from_url(tls_server.tls_url))


def test_a_plain_server_is_told_apart(valkey: TestServer) -> None:
    url = f"rediss://{address_of(valkey.host, valkey.port)}"
    with (
        PureRedisClient.from_url(url, connect_timeout_s=0.5) as client,
        within(5),
        pytest.raises(errors.UnavailableError, match="TLS"),
    ):
        client.ping()


def test_a_tls_server_is_told_apart(tls_server: TestServer) -> None:
    with (
        PureRedisClient(tls_server.host, tls_server.tls_port) as client,
        within(5),
        pytest.raises(errors.UnavailableError),
    ):
        client.ping()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tls_ca_file": "/nowhere/ca.pem"}, "CA file /nowhere/ca.pem: no such file"),
        ({"tls_ca_file": __file__}, "CA file"),
        ({"tls_cert_file": "/nowhere/a", "tls_key_file": "/nowhere/b"}, "key file /nowhere/b"),
    ],
)
def test_files_of_no_use_are_named(
    tls_server: TestServer, settings: dict[str, str], words: str
) -> None:
    assert words in refusal(secured(tls_server, **settings))


def test_renewed_files_are_used_without_a_restart(
    tls_server: TestServer, certs: Certificates, tmp_path: Path
) -> None:
    trusted = tmp_path / "ca.pem"
    shutil.copyfile(certs.stranger.ca_file, trusted)
    with secured(tls_server, tls_ca_file=str(trusted), reconnect_max_s=0.1) as client:
        with pytest.raises(errors.TlsError):
            client.ping()
        shutil.copyfile(certs.ca_file, trusted)
        time.sleep(0.2)  # the wait before dialling again
        client.ping()


# Who refuses it.


def test_client_certificates(start: Start, certs: Certificates) -> None:
    server = start("redis7", tls=ServerTls(mutual=True))
    with secured(server) as client:
        client.set("k", payload(MIB))
    locked = {"tls_cert_file": certs.locked.cert_file, "tls_key_file": certs.locked.key_file}
    assert certs.locked.key_file in refusal(secured(server, **locked))
    # In TLS 1.3 the alert races with what we send; the reason is told either way.
    without = {"tls": True, "tls_ca_file": certs.ca_file}
    for _ in range(20):
        with (
            PureRedisClient.from_url(server.tls_url, **without) as client,
            pytest.raises(errors.UnavailableError, match="client certificate"),
        ):
            client.ping()
    unknown = {"tls_cert_file": certs.unknown.cert_file, "tls_key_file": certs.unknown.key_file}
    with secured(server, **unknown) as client, pytest.raises(errors.UnavailableError):
        client.ping()


# When the way breaks.


def test_a_stall_costs_the_connection(start: Start) -> None:
    server = start("redis7", tls=True)
    with secured(server, stall_timeout_s=1.0) as client:
        client.set("k", payload(MIB))
        server.pause()
        with within(5):
            assert client.batch_get(["k"], [bytearray(MIB)])[0] is Status.TIMEOUT
            assert client.batch_set(["k"], [payload(8 * MIB)])[0] in (
                Status.TIMEOUT,
                Status.UNAVAILABLE,
            )
        server.resume()
        target = bytearray(MIB)
        until(lambda: client.batch_get(["k"], [target]).ok, 5)
        assert target == payload(MIB)


def test_a_dead_connection_is_replaced(tls_server: TestServer) -> None:
    with secured(tls_server) as client:
        client.set("k", payload(MIB))
        tls_server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        target = bytearray(MIB)
        assert client.get("k", target)
        assert target == payload(MIB)
        assert client.stats()["connects"] == 2


@pytest.mark.parametrize("byte", [0, 3, 100, 1500, 5000, 500_000])
@pytest.mark.parametrize("fault", ["cut", "flip"])
def test_what_breaks_on_the_way_is_never_read_as_a_value(
    tls_server: TestServer, fault: str, byte: int
) -> None:
    assert tls_server.tls is not None
    settings = tls_server.tls.client_settings | {"stall_timeout_s": 0.5}
    broken = (Status.OK, Status.UNAVAILABLE, Status.TIMEOUT)  # a length may have grown
    value = payload(MIB)
    with (
        FaultProxy(tls_server.host, tls_server.tls_port, opaque=True) as proxy,
        PureRedisClient(proxy.host, proxy.port, **tuned(ClientConfig, **settings)) as client,
        within(30),
    ):
        until(lambda: client.batch_set(["k"], [value]).ok, 5)
        for direction in DIRECTIONS:
            if fault == "cut":
                proxy.cut_after(byte, direction=direction)
            else:
                proxy.flip(byte, direction=direction)
            for _ in range(3):
                target = bytearray(MIB)
                status = client.batch_get(["k"], [target])[0]
                assert status in broken
                assert status is not Status.OK or target == value
                assert client.batch_set(["k"], [value])[0] in broken
            proxy.heal()
        target = bytearray(MIB)
        until(lambda: client.batch_get(["k"], [target]).ok, 10)
        assert target == value


def test_a_forked_child_leaves_the_connection_alone(tls_server: TestServer) -> None:
    with secured(tls_server) as client:
        client.set("k", payload(MIB))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # there are other threads
            child = os.fork()
        if child == 0:
            target = bytearray(MIB)
            good = client.get("k", target) and target == payload(MIB)
            client.close()
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert client.exists("k")
        assert client.stats()["connects"] == 1


def test_close_ends_a_batch_of_another_thread(start: Start) -> None:
    server = start("redis7", tls=True)
    client = secured(server, stall_timeout_s=30)
    client.set("k", payload(MIB))
    server.pause()
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(client.batch_get(["k"], [bytearray(MIB)], timeout_s=30))
    )
    thread.start()
    until(client._lock.locked, 5)  # it has begun
    time.sleep(0.2)
    with within(5):
        client.close()
        thread.join(20)
    assert results[0][0] is Status.CANCELLED
    server.resume()


def test_an_interrupt_of_a_late_handshake_stays_one() -> None:
    class Interrupted:
        def wrap_socket(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    ours, theirs = socket.socketpair()
    context = cast(ssl.SSLContext, Interrupted())
    with ours, theirs, pytest.raises(KeyboardInterrupt):
        shake_hands(ours, context, "localhost", time.monotonic() - 1)
