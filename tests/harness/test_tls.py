"""Certificates made at run time, and servers that show them: judged by the standard library."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from support.certificates import Certificate, Certificates
from support.resp import encode, read_reply
from support.servers import TestServer, wait_for
from support.tls import ServerTls, has_tls

Start = Callable[..., TestServer]


def ask(server: TestServer, context: ssl.SSLContext, *words: str, name: str = "localhost") -> bytes:
    """One command over TLS; its simple reply."""
    with (
        socket.create_connection((server.host, server.tls_port), 10) as plain,
        context.wrap_socket(plain, server_hostname=name) as talk,
        talk.makefile("rb") as stream,
    ):
        talk.sendall(encode(*words))
        reply = read_reply(stream)
        assert isinstance(reply, bytes), reply
        return reply


def trusting(file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file)


def test_answers_over_tls_and_over_its_plain_port(tls_server: TestServer) -> None:
    assert tls_server.tls is not None
    context = tls_server.tls.client_context()
    for name in ("localhost", "127.0.0.1", "::1"):
        assert ask(tls_server, context, "PING", name=name) == b"PONG"
    assert tls_server.cli("PING") == b"PONG"
    assert tls_server.tls_url == f"rediss://127.0.0.1:{tls_server.tls_port}/0"
    assert tls_server.tls.client_settings["tls_ca_file"].endswith("ca.pem")


@pytest.mark.parametrize(
    ("leaf", "why"),
    [
        ("expired", "expired"),
        ("not_yet", "not yet valid"),
        ("other_host", "Hostname mismatch"),
        ("unknown", "unable to get local issuer"),
    ],
)
def test_each_bad_certificate_is_refused_for_its_reason(
    start: Start, certs: Certificates, leaf: str, why: str
) -> None:
    certificate: Certificate = getattr(certs, leaf)
    server = start("redis7", tls=ServerTls(certificate), unix=False)
    with pytest.raises(ssl.SSLCertVerificationError, match=why):
        ask(server, trusting(certs.ca_file), "PING")


def test_the_stranger_and_the_other_host_are_good_to_who_knows_them(
    start: Start, certs: Certificates
) -> None:
    server = start("redis7", tls=ServerTls(certs.unknown), unix=False)
    assert ask(server, trusting(certs.stranger.ca_file), "PING") == b"PONG"
    server = start("redis7", tls=ServerTls(certs.other_host), unix=False)
    assert ask(server, trusting(certs.ca_file), "PING", name="other.test") == b"PONG"


def test_mutual_tls_wants_a_certificate_of_ours(start: Start, certs: Certificates) -> None:
    tls = ServerTls(mutual=True)
    server = start("redis7", tls=tls, unix=False)
    assert ask(server, tls.client_context(), "PING") == b"PONG"
    stranger = trusting(certs.ca_file)
    stranger.load_cert_chain(certs.unknown.cert_file, certs.unknown.key_file)
    for context in (trusting(certs.ca_file), stranger):
        with pytest.raises((OSError, EOFError)):
            ask(server, context, "PING")


def test_a_server_of_tls_1_2_alone(start: Start, certs: Certificates) -> None:
    server = start("redis7", tls=ServerTls(versions="TLSv1.2"), unix=False)
    context = trusting(certs.ca_file)
    assert ask(server, context, "PING") == b"PONG"
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with pytest.raises(ssl.SSLError):
        ask(server, context, "PING")


def test_a_locked_key_opens_with_its_password(start: Start, certs: Certificates) -> None:
    server = start("redis7", tls=ServerTls(certs.locked), unix=False)
    assert ask(server, trusting(certs.ca_file), "PING") == b"PONG"
    with open(certs.locked.key_file) as key:
        assert "ENCRYPTED" in key.read()


def test_a_renewed_certificate_takes_the_place_of_the_old(
    start: Start, certs: Certificates
) -> None:
    mine = certs.authority.issue("mine", ["old.test"])
    server = start("redis7", tls=ServerTls(mine), unix=False)
    context = trusting(certs.ca_file)
    assert ask(server, context, "PING", name="old.test") == b"PONG"
    mine.replace_by(certs.authority.issue("renewed", ["new.test"]))
    server.cli("CONFIG", "SET", "tls-cert-file", mine.cert_file, "tls-key-file", mine.key_file)
    assert ask(server, context, "PING", name="new.test") == b"PONG"


def test_a_replica_follows_over_tls(start: Start) -> None:
    tls = ServerTls(between_servers=True)
    primary = start("redis7", tls=tls, password="secret", unix=False)
    replica = start("redis7", tls=tls, password="secret", unix=False, primary=primary)
    wait_for("the replica's link", lambda: replica.info()["master_link_status"] == "up")
    primary.cli("SET", "key", "value")
    wait_for("the value", lambda: replica.cli("GET", "key") == b"value")


def test_a_program_without_tls_is_known_by_what_it_says(tmp_path: Path) -> None:
    said = {"with": "Failed to configure TLS.", "without": "Missing implement of type tls"}
    for name, words in said.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho '{words}'\nexit 1\n")
        program.chmod(0o755)
        assert has_tls(str(program)) == (name == "with")
