"""Whom every client refuses over TLS, who refuses it, and that a refusal is told at once."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from support.certificates import Certificate, Certificates
from support.clients import KINDS, NATIVE, opened, tls_port_of
from support.servers import TestServer
from support.stamps import KIB, MIB, fetch, poisoned, store, until, within
from support.tls import ServerTls

Start = Callable[..., TestServer]

DIALS_MAX = 60  # in each second that refusal() asks: eight connections once, then two with pauses


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kvferry")


def refusal(
    kind: str,
    target: SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
    raises: type[errors.UnavailableError] = errors.TlsError,
    **settings: Any,
) -> str:
    """Why nothing comes through: told by result, exception and log; soon, without hot dialling."""
    caplog.clear()
    began = time.monotonic()
    with opened(kind, target, **settings) as client:
        with within(3):
            result = client.batch_get(["k"] * 50, [poisoned(KIB) for _ in range(50)])
        assert set(result) == {Status.UNAVAILABLE}
        reason = str(result.error)
        with within(1):  # not one handshake for each
            for _ in range(30):
                again = client.batch_set(["k"], [b"v"])
                assert again[0] is Status.UNAVAILABLE
        with pytest.raises(raises):
            client.exists("k")
        until_s = time.monotonic() + 0.6
        while time.monotonic() < until_s:
            assert client.batch_exists(["k"])[0] is Status.UNAVAILABLE
            time.sleep(0.02)
        stats = client.stats()
        assert stats["connects" if kind == "pure" else "connections_opened"] == 0
        seconds = max(1, time.monotonic() - began)
        assert stats["connect_failures" if kind == "pure" else "dials_failed"] < DIALS_MAX * seconds
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert any(reason.split(": ")[-1] in record.getMessage() for record in told), caplog.text
    assert len(told) < 20 * seconds
    return reason


# Whom we refuse.


def _self_signed(directory: Path) -> Certificate:
    made = Certificate(str(directory / "self.pem"), str(directory / "self.key"))
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += ["-nodes", "-days", "2", "-subj", "/CN=self", "-addext", "subjectAltName=IP:127.0.0.1"]
    words += ["-keyout", made.key_file, "-out", made.cert_file]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return made


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        ("expired", "certificate has expired"),
        ("not_yet", "certificate is not yet valid"),
        ("other_host", "mismatch"),
        ("unknown", "unable to get local issuer certificate"),
        ("self", "self-signed certificate"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_certificates_that_are_refused(
    start: Start,
    certs: Certificates,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    certificate: str,
    words: str,
) -> None:
    shown = _self_signed(tmp_path) if certificate == "self" else getattr(certs, certificate)
    server = start("redis7", tls=ServerTls(shown))
    reason = refusal(kind, tls_port_of(server), caplog)
    assert "the server's certificate is refused" in reason
    assert words in reason
    assert f"{server.host}:{server.tls_port}" in reason
    with opened(kind, tls_port_of(server, tls_verify="none")) as client, within(5):
        assert store(client, {"k": MIB}).ok
        assert fetch(client, {"k": MIB}).result.ok
    settings = {"tls_verify": "ca"}
    if certificate == "other_host":
        with opened(kind, tls_port_of(server, **settings)) as client, within(5):
            assert fetch(client, {"k": MIB}).result.ok
    elif certificate in ("expired", "self"):
        assert words in refusal(kind, tls_port_of(server, **settings), caplog)
    if certificate == "self":  # trusted by name
        with opened(kind, tls_port_of(server, tls_ca_file=shown.cert_file)) as client, within(5):
            assert fetch(client, {"k": MIB}).result.ok


@pytest.mark.parametrize("kind", KINDS)
def test_the_system_does_not_trust_a_test(
    tls_server: TestServer, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    target = tls_port_of(tls_server)
    del target.settings["tls_ca_file"]
    assert "certificate is refused" in refusal(kind, target, caplog)


# Who refuses us.


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("kind", KINDS)
def test_client_certificates(
    start: Start,
    certs: Certificates,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    versions: str,
) -> None:
    server = start("redis7", tls=ServerTls(mutual=True, versions=versions))
    with opened(kind, tls_port_of(server)) as client, within(5):
        assert store(client, {"k": MIB}).ok
        assert fetch(client, {"k": MIB}).result.ok
    without = tls_port_of(server)
    del without.settings["tls_cert_file"], without.settings["tls_key_file"]
    unknown = {"tls_cert_file": certs.unknown.cert_file, "tls_key_file": certs.unknown.key_file}
    expired = {"tls_cert_file": certs.expired.cert_file, "tls_key_file": certs.expired.key_file}
    for refused in (without, tls_port_of(server, **unknown), tls_port_of(server, **expired)):
        # The server hangs up over bytes of ours that it has not read: its words may be lost.
        reason = refusal(kind, refused, caplog, raises=errors.UnavailableError)
        assert f"{server.host}:{server.tls_port}" in reason
        assert "TLS" in reason or "the server closed the connection" in reason or "reset" in reason
        if refused is without and versions == "TLSv1.3":
            with opened(kind, refused) as client:
                until(lambda: "client certificate" in str(client.batch_exists(["k"]).error), 5)
    assert server.cli("DBSIZE") == 1


# Files of no use.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tls_ca_file": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
        ({"tls_ca_file": __file__}, __file__),
        ({"tls_cert_file": "/nowhere/a", "tls_key_file": "/nowhere/b"}, "/nowhere/"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_files_of_no_use_are_named(
    tls_server: TestServer, kind: str, settings: dict[str, str], words: str
) -> None:
    """When the client is made, or when it is used first."""
    target = tls_port_of(tls_server, **settings)
    with within(5), pytest.raises(errors.KVFerryError) as caught, ExitStack() as stack:
        stack.enter_context(opened(kind, target)).exists("k")
    assert words in str(caught.value)
    assert isinstance(caught.value, errors.TlsError | errors.UsageError)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_does_not_open(start: Start, certs: Certificates, kind: str) -> None:
    server = start("redis7", tls=ServerTls(mutual=True))
    locked = {"tls_cert_file": certs.locked.cert_file, "tls_key_file": certs.locked.key_file}
    target = tls_port_of(server, **locked)
    with within(5), pytest.raises(errors.KVFerryError) as caught, ExitStack() as stack:
        stack.enter_context(opened(kind, target)).exists("k")
    assert certs.locked.key_file in str(caught.value)


# Two that do not speak the same.


@pytest.mark.parametrize("kind", KINDS)
def test_tls_at_a_plain_port(tls_server: TestServer, kind: str) -> None:
    """Such a server takes our greeting for the begin of a command, and waits for the rest."""
    target = tls_port_of(tls_server)
    target.port = tls_server.port
    with opened(kind, target, connect_timeout_s=0.5) as client:
        for _ in range(3):
            with within(3):
                result = client.batch_exists(["k"])
            assert result[0] is Status.UNAVAILABLE
            assert f"{target.host}:{target.port}" in str(result.error)
            assert "TLS" in str(result.error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_client_at_a_tls_port(tls_server: TestServer, kind: str) -> None:
    target = tls_port_of(tls_server)
    target.settings = {}
    with opened(kind, target, connect_timeout_s=1.0) as client:
        for _ in range(3):
            with within(3):
                result = client.batch_exists(["k"])
            assert result[0] is Status.UNAVAILABLE
            assert f"{target.host}:{target.port}" in str(result.error)


# Files that change while the client runs.


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_authority_without_a_restart_of_the_client(
    start: Start, certs: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    shown = Certificate(str(tmp_path / "cert.pem"), str(tmp_path / "cert.key"))
    shown.replace_by(certs.server)
    trusted = tmp_path / "ca.pem"
    shutil.copyfile(certs.ca_file, trusted)
    server = start("redis7", tls=ServerTls(shown))
    target = tls_port_of(server, tls_ca_file=str(trusted), reconnect_max_s=0.1)
    with opened(kind, target) as client:
        assert store(client, {"k": MIB}).ok

        # The server's new certificate is of an authority that we do not know yet.
        shown.replace_by(certs.unknown)
        server.restart()
        until(lambda: "issuer" in str(client.batch_exists(["k"]).error), 5)
        assert client.batch_exists(["k"])[0] is Status.UNAVAILABLE

        # A file of no use changes nothing, and is told once.
        (tmp_path / "useless.pem").write_text("no certificate")
        os.replace(tmp_path / "useless.pem", trusted)  # at once: a file half written is another one
        until(lambda: not client.batch_exists(["k"]).ok and str(trusted) in caplog.text, 5)
        for _ in range(10):
            time.sleep(0.03)
            assert client.batch_exists(["k"])[0] is Status.UNAVAILABLE
        if kind in NATIVE:
            assert caplog.text.count("the earlier ones stay in use") == 1

        shutil.copyfile(certs.stranger.ca_file, tmp_path / "new.pem")
        (tmp_path / "new.pem").rename(trusted)
        until(lambda: store(client, {"k": MIB}, 2).ok, 5)
        assert fetch(client, {"k": MIB}, {2}).result.ok


@pytest.mark.parametrize("kind", NATIVE)  # the pure client has no memory of earlier files
def test_a_broken_file_does_not_end_what_works(
    start: Start, certs: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Connections that are made later use the files that were good."""
    mine = Certificate(str(tmp_path / "mine.pem"), str(tmp_path / "mine.key"))
    mine.replace_by(certs.client)
    server = start("redis7", tls=ServerTls(mutual=True))
    files = {"tls_cert_file": mine.cert_file, "tls_key_file": mine.key_file}
    with opened(kind, tls_port_of(server, **files, reconnect_max_s=0.1)) as client:
        assert store(client, {"k": MIB}).ok
        Path(mine.key_file).write_text("half a key")
        for _ in range(3):
            server.cli("CLIENT", "KILL", "TYPE", "normal")
            until(lambda: fetch(client, {"k": MIB}).result.ok, 5)
        assert caplog.text.count(mine.key_file) == 1
        mine.replace_by(certs.server)
        server.cli("CLIENT", "KILL", "TYPE", "normal")
        until(lambda: fetch(client, {"k": MIB}).result.ok, 5)
