"""Every client over TLS: what it stores and reads, by which version, under which name."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from support.certificates import Certificates
from support.clients import KINDS, NATIVE, opened, tls_port_of
from support.servers import TestServer
from support.stamps import MIB, check, fetch, poisoned, stamped, store, until, within
from support.tls import ServerTls

Start = Callable[..., TestServer]

IDENTITY = b"12345678"
# One byte; around a record, a receive, a stripe; beyond drain_bytes_max.
SIZES = [1, 36, 4095, 16_383, 16_384, 16_385, MIB + 1, 4 * MIB, 9 * MIB]
STAMPED = {f"v{size}": size for size in SIZES if size >= 36}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_size_come_back(tls_server: TestServer, kind: str, protocol: int) -> None:
    with opened(kind, tls_port_of(tls_server, protocol=protocol)) as client, within(30):
        assert list(fetch(client, STAMPED).result) == [Status.MISS] * len(STAMPED)
        for version in (1, 2):
            assert store(client, STAMPED, version).ok
            assert fetch(client, STAMPED, {version}).result.ok
        client.set("small", b"x")
        target = bytearray(1)
        assert client.get("small", target)
        assert target == b"x"
        client.set("empty", b"")
        assert client.get("empty", bytearray())
        for key in STAMPED:
            assert tls_server.cli("STRLEN", key) == STAMPED[key]
        assert client.batch_delete([*STAMPED, "none"]).count(Status.OK) == len(STAMPED)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_with_holes_and_misfits(tls_server: TestServer, kind: str) -> None:
    sizes = {f"k{index}": MIB // 4 + index for index in range(64)}
    with opened(kind, tls_port_of(tls_server)) as client, within(30):
        assert store(client, {key: sizes[key] for key in list(sizes)[::2]}).ok
        assert list(fetch(client, sizes).result) == [Status.OK, Status.MISS] * 32
        wrong = [poisoned(9 if index % 4 == 0 else sizes[f"k{index}"]) for index in range(64)]
        result = client.batch_get(list(sizes), wrong)
        expected = [Status.SIZE_MISMATCH, Status.MISS, Status.OK, Status.MISS] * 16
        assert list(result) == expected
        for index in range(2, 64, 4):
            check(f"k{index}", wrong[index], {1})
        read = client.batch_get(["k0", "none", "k2"], [poisoned(MIB // 4 + n) for n in range(3)],
                                prefix=True)  # fmt: skip
        assert read.prefix_len == 1


@pytest.mark.parametrize("kind", KINDS)
def test_small_commands_go_thousands_deep(tls_server: TestServer, kind: str) -> None:
    keys = [f"{'k' * (index % 300)}{index}" for index in range(5_000)]
    with opened(kind, tls_port_of(tls_server)) as client, within(30):
        assert client.batch_set(keys[::2], [b"x"] * 2_500).ok
        for touch in (False, True):
            asked = client.batch_exists(keys, touch=touch)
            assert list(asked) == [Status.OK, Status.MISS] * 2_500


@pytest.mark.parametrize("kind", NATIVE)
@pytest.mark.parametrize("size", [100, MIB, 9 * MIB])
def test_framed_values(tls_server: TestServer, kind: str, size: int) -> None:
    sizes = {f"k{index}": size for index in range(6)}
    with opened(kind, tls_port_of(tls_server)) as client, within(30):
        space = client.namespace("ns:", IDENTITY, size)
        assert store(space, sizes).ok
        assert fetch(space, {**sizes, "none": size}).result.prefix_len == 6
        assert client.stats()["values_corrupt"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_versions(start: Start, kind: str) -> None:
    old = start("redis7", tls=ServerTls(versions="TLSv1.2"))
    new = start("redis7", tls=ServerTls(versions="TLSv1.3"))
    good: list[tuple[TestServer, dict[str, Any]]] = [
        (old, {}),
        (new, {}),
        (new, {"ktls": False}),
    ]
    for server, settings in good:
        with opened(kind, tls_port_of(server, **settings)) as client, within(10):
            assert store(client, {"k": MIB}).ok, settings
            assert fetch(client, {"k": MIB}).result.ok, settings


@pytest.mark.parametrize("kind", KINDS)
def test_connections_that_are_killed_come_back(tls_server: TestServer, kind: str) -> None:
    sizes = {f"k{index}": MIB for index in range(8)}
    with opened(kind, tls_port_of(tls_server, reconnect_max_s=0.1)) as client, within(30):
        assert store(client, sizes).ok
        for _ in range(5):
            tls_server.cli("CLIENT", "KILL", "TYPE", "normal")
            assert set(fetch(client, sizes).result) <= {Status.OK, Status.UNAVAILABLE}
        until(lambda: fetch(client, sizes).result.ok, 5)


class Listener:
    """A TLS server that notes which name each handshake asks for, and then hangs up."""

    def __init__(self, certificates: Certificates) -> None:
        self.names: list[str | None] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made = certificates.server
        self._context.load_cert_chain(made.cert_file, made.key_file)
        self._context.sni_callback = lambda sock, name, context: self.names.append(name)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(2)
            with sock, suppress(OSError), self._context.wrap_socket(sock, server_side=True):
                pass


@pytest.fixture
def listener(certs: Certificates) -> Iterator[Listener]:
    listener = Listener(certs)
    yield listener
    listener.close()


@pytest.mark.parametrize(
    ("host", "settings", "name"),
    [
        ("localhost", {}, "localhost"),
        ("127.0.0.1", {}, None),  # RFC 6066: no addresses
        ("127.0.0.1", {"tls_server_name": "cache.test"}, "cache.test"),
        ("localhost", {"tls_server_name": "cache.test", "tls_verify": "none"}, "cache.test"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_name_that_is_asked_for(
    listener: Listener,
    certs: Certificates,
    kind: str,
    host: str,
    settings: dict[str, str],
    name: str | None,
) -> None:
    settings = {"tls_ca_file": certs.ca_file} | settings
    listener.host = host
    with opened(kind, listener, tls=True, **settings) as client, within(10):
        client.batch_exists(["k"])
        until(lambda: listener.names, 5)
    assert set(listener.names) == {name}


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_that_is_verified(start: Start, certs: Certificates, kind: str) -> None:
    """Every name and address of the certificate will do, and no other."""
    server = start("redis7", tls=True)
    for host in ("localhost", "127.0.0.1", "::1"):
        target = tls_port_of(server)
        target.host = host
        with opened(kind, target) as client, within(10):
            client.set("k", b"v")
    for name in ("elsewhere.test", "127.0.0.2"):
        with (
            opened(kind, tls_port_of(server, tls_server_name=name)) as client,
            within(10),
            pytest.raises(errors.TlsError, match=name),
        ):
            client.set("k", b"v")
    other = start("redis7", tls=ServerTls(certs.other_host))
    for settings in ({"tls_server_name": "other.test"}, {"tls_verify": "ca"}):
        with opened(kind, tls_port_of(other, **settings)) as client, within(10):
            client.set("k", stamped("k", 1, MIB))
