"""The configuration file: what wins, what is refused with advice, what stays secret and intact."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest

from kvferry.base.credentials import Credentials
from kvferry.base.errors import ConfigError
from kvferry.config import ClientConfig, load_client_config
from kvferry.config.file import find_config_file

SECRET = "s3cr3t-w0rd"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kvferry.yaml"


def put(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def refusal(file: Path, text: str, **overrides: Any) -> str:
    """What is said of a file with this text, after checking that no cause holds the secret."""
    put(file, text)
    with pytest.raises(ConfigError) as caught:
        load_client_config(file, environ={}, **overrides)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__
    assert str(file) in str(caught.value)
    return str(caught.value)


def test_no_file_is_no_error() -> None:
    assert load_client_config(environ={}) == ClientConfig()
    assert load_client_config(environ={}, port=7, db=None) == ClientConfig(port=7)


def test_fields_url_and_lists_are_read(file: Path) -> None:
    put(
        file, "client:\n  url: redis://:pw@h:7/2?connections=4\n  connections: 16\n  timeout_s: 2\n"
    )
    expected = ClientConfig(host="h", port=7, password="pw", db=2, connections=16, timeout_s=2)
    assert load_client_config(file, environ={}) == expected
    assert load_client_config(environ={"KVFERRY_CONFIG_FILE": str(file)}) == expected
    other = file.with_name("other.yaml")
    put(other, "client: {host: other}\nspare: {host: spare}\n")
    environ = {"KVFERRY_CONFIG_FILE": str(file)}
    assert load_client_config(other, environ=environ).host == "other"
    assert load_client_config(other, environ=environ, section="spare").host == "spare"


@pytest.mark.parametrize("text", ["", "client:\n", "client: {}\n", "tuned: {chunk_bytes: 1}\n"])
def test_what_is_not_there_has_its_default(file: Path, text: str) -> None:
    assert load_client_config(put(file, text), environ={}) == ClientConfig()


def test_null_is_the_default_also_against_the_url(file: Path) -> None:
    put(file, "client:\n  url: redis://h?timeout_s=7&db=3\n  timeout_s: null\n  port: ~\n")
    assert load_client_config(file, environ={}) == ClientConfig(host="h", db=3)


@pytest.mark.parametrize("given", list(itertools.product((False, True), repeat=3)))
def test_the_call_wins_over_the_file_over_the_environment(
    file: Path, given: tuple[bool, ...]
) -> None:
    in_environment, in_file, in_call = given
    environ = {"KVFERRY_RESP_PORT": "1001"} if in_environment else {}
    put(file, "client: {port: 1002, db: 5}\n" if in_file else "client: {db: 5}\n")
    config = load_client_config(file, environ=environ, port=1003 if in_call else None)
    ports = [port for port, was in zip((1001, 1002, 1003), given, strict=True) if was]
    assert (config.port, config.db) == (ports[-1] if ports else 6379, 5)


def test_a_default_that_was_given_wins_too(file: Path) -> None:
    put(file, "client: {host: localhost, port: 6379, timeout_s: 2}\n")
    environ = {"LMCACHE_RESP_HOST": "far", "KVFERRY_RESP_PORT": "1001"}
    assert load_client_config(file, environ=environ) == ClientConfig(timeout_s=2)
    put(file, "client: {host: far, port: 1001, timeout_s: 2}\n")
    url = "redis://localhost:6379?timeout_s=5"
    assert load_client_config(file, environ={}, url=url) == ClientConfig()


def test_user_and_password_may_come_from_different_places(file: Path) -> None:
    put(file, f"client: {{username: writer}}\n# {SECRET}\n")
    environ = {"KVFERRY_RESP_PASSWORD": SECRET}
    config = load_client_config(file, environ=environ)
    assert (config.username, config.password) == ("writer", SECRET)
    put(file, f"client: {{password: {SECRET}}}\n")
    config = load_client_config(file, environ={"KVFERRY_RESP_USERNAME": "reader"})
    assert (config.username, config.password) == ("reader", SECRET)


def test_a_url_of_the_call_replaces_the_server_of_the_file(file: Path) -> None:
    put(file, f"client: {{unix_path: /s, db: 3, username: u, password: {SECRET}, timeout_s: 2}}\n")
    assert load_client_config(file, environ={}, url="redis://other") == ClientConfig(
        host="other", timeout_s=2
    )
    environ = {"KVFERRY_RESP_HOST": "env", "KVFERRY_RESP_PASSWORD": "pw"}
    config = load_client_config(file, environ=environ, url="redis://other", port=7)
    assert (config.address, config.username, config.password) == ("other:7", None, "pw")
    environ["KVFERRY_RESP_USERNAME"] = "env"
    config = load_client_config(file, environ=environ, url="redis://:mine@other")
    assert (config.username, config.password) == (None, "mine")


def test_a_url_of_the_environment_counts_where_nothing_else_names_a_server(file: Path) -> None:
    environ = {"KVFERRY_RESP_URL": "redis://env/3"}
    put(file, "client: {timeout_s: 2}\n")
    assert load_client_config(file, environ=environ) == ClientConfig(host="env", db=3, timeout_s=2)
    config = load_client_config(file, environ=environ, host="mine")  # as in from_env
    assert (config.address, config.db) == ("mine:6379", 0)
    put(file, f"client: {{tls: true, host: f, username: u, password: {SECRET}, timeout_s: 2}}\n")
    assert load_client_config(file, environ=environ) == ClientConfig(
        host="f", tls=True, username="u", password=SECRET, timeout_s=2
    )
    config = load_client_config(file, environ=environ, host="mine")
    assert (config.address, config.tls, config.db) == ("mine:6379", True, 0)
    environ["KVFERRY_RESP_PASSWORD"] = "pw"
    config = load_client_config(file, environ=environ, url="redis://call")
    assert (config.address, config.db, config.password) == ("call:6379", 0, "pw")


def test_clusters_tls_and_sentinels(file: Path) -> None:
    put(
        file,
        "client:\n  url: rediss+cluster://a\n  nodes: [b, 'c:7']\n  tls_ca_file: /ca.pem\n"
        "  connections: 3\n",
    )
    config = load_client_config(file, environ={})
    assert config.seeds == (("a", 6379), ("b", 6379), ("c", 7))
    assert (config.topology, config.tls, config.connections) == ("cluster", True, 3)
    assert config.tls_ca_file == "/ca.pem"
    assert load_client_config(file, environ={}, url="redis://h") == ClientConfig(
        host="h", connections=3
    )
    put(file, f"client: {{url: 'redis+sentinel://s1,s2/m', sentinel_password: {SECRET}}}\n")
    config = load_client_config(file, environ={})
    assert (config.sentinel_master, config.sentinel_password) == ("m", SECRET)


def test_a_provider_of_credentials_replaces_the_user_of_file_and_environment(file: Path) -> None:
    put(file, f"client: {{host: h, username: u, password: {SECRET}}}\n")

    def provider() -> Credentials:
        return Credentials(username="u", password="pw")

    environ = {"KVFERRY_RESP_PASSWORD": "env"}
    expected = ClientConfig(host="h", credentials=provider)
    assert load_client_config(file, environ=environ, credentials=provider) == expected
    by_url = load_client_config(file, environ=environ, url="redis://h", credentials=provider)
    assert by_url == expected


def test_a_host_replaces_the_socket_of_the_file(file: Path) -> None:
    put(file, "client: {unix_path: /s}\n")
    assert load_client_config(file, environ={"KVFERRY_RESP_HOST": "h"}).address == "unix:/s"
    assert load_client_config(file, environ={}, host="h").address == "h:6379"
    assert load_client_config(file, environ={}).address == "unix:/s"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (f"client: {{conections: 4, password: {SECRET}}}", "did you mean 'connections'"),
        (f"client: {{password: {SECRET}, port: 0}}", "whole number from 1 to 65535"),
        (f"client: {{password: {SECRET}, port: '6379'}}", "whole number"),
        (f"client: {{password: {SECRET}, port: 2026-01-01}}", "whole number"),
        (
            "client: {password: 12345}",
            "password is not valid; use a text of at most 16384 bytes and put it in quotes",
        ),
        ("client: {availability_zone: yes}", "put it in quotes"),
        (f"client: {{tls_key_password: {SECRET}}}", "tls_key_password is gone"),
        (f"client: {{password: {SECRET}, nodes: h:1}}", "nodes"),
        (f"client: {{url: 'redis://:{SECRET}@h:x'}}", "malformed"),
        (f"client: {{url: 'redis://:{SECRET}@h?conections=4'}}", "'connections'"),
        (f"client: {{url: [{SECRET}]}}", "url is not valid"),
        (f"client: {{credentials: {SECRET}}}", "credentials is a function"),
        (f"client: {{1: {SECRET}}}", "not a word"),
        (f"client: [{SECRET}]", "'name: value'"),
        (f"client:\n  password:{SECRET}\n", "'name: value'"),
        (f"client:\n  password: @{SECRET}\n", "not valid YAML at line 2, column 13"),
        (f"client:\n  password: *{SECRET}\n", "not valid YAML at line 2"),
        (f"client:\n  password: !{SECRET} x\n", "not valid YAML at line 2"),
        (f"client:\n  password: !!python/name:{SECRET} x\n", "not valid YAML at line 2"),
        (f"client:\n  password: {SECRET}\n  password: x\n", "twice at line 3"),
        (f"client: {{db: 1}}\nclient: {{password: {SECRET}}}\n", "twice at line 2"),
        (f"client: {{password: {SECRET}, db: 2026-13-01}}", "not valid YAML"),
        (f"client:\n  password: !!timestamp {SECRET}\n", "not valid YAML at line 2, column 13"),
        (f"client:\n  password: !!bool {SECRET}\n", "not valid YAML at line 2, column 13"),
        (f"client:\n  password: !!int {SECRET}\n", "not valid YAML at line 2, column 13"),
        (f"client: {{password: {SECRET}, db: !!int ''}}", "not valid YAML at line 1"),
        (f"client: {{password: {SECRET}, db: !!float ''}}", "not valid YAML at line 1"),
        (f"client: {{password: {SECRET}, db: !!timestamp 2026-13-01}}", "not valid YAML at line 1"),
        (f"client: {{password: {SECRET}, db: {'9' * 5000}}}", "not valid YAML at line 1"),
        (f"client: {{password: !!set {{{SECRET}}}}}", "password is not valid"),
        (f"client: {{password: !!omap [{SECRET}: 1]}}", "password is not valid"),
        ("client: {password: !!binary c2VjcmV0}", "password is not valid"),
        (f"!!timestamp {SECRET}\n", "not valid YAML at line 1"),
        (f"clients: {{password: {SECRET}}}\n", "'clients'; rename it"),
        (f"- {SECRET}\n", "not made of sections"),
        (f"{SECRET}\n", "not made of sections"),
        (f"password: {SECRET}\n---\nclient: {{}}\n", "not valid YAML"),
        ("[" * 50_000, "not valid YAML"),
        ("#" * ((1 << 20) + 1), "larger than"),
    ],
    ids=lambda text: text[:30].replace("\n", " "),
)
def test_what_is_wrong_is_said_without_the_secret(file: Path, text: str, advice: str) -> None:
    assert advice in refusal(file, text)


def test_a_combination_that_cannot_be_names_the_file_that_took_part(file: Path) -> None:
    said = refusal(file, "client: {unix_path: /s}\n", tls=True)
    assert "Unix socket" in said
    with pytest.raises(ConfigError, match="unknown setting 'conections'"):
        load_client_config(put(file, ""), environ={}, conections=1)


def test_a_file_that_is_named_must_be_there(file: Path) -> None:
    places: list[dict[str, Any]] = [
        {"path": file, "environ": {}},
        {"environ": {"KVFERRY_CONFIG_FILE": str(file)}},
    ]
    for place in places:
        with pytest.raises(ConfigError, match=r"no configuration file|cannot be read"):
            load_client_config(**place)
    with pytest.raises(ConfigError, match="is a directory; name a file in it"):
        load_client_config(file.parent, environ={})
    file.write_bytes(b"client: \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_client_config(file, environ={})
    assert find_config_file(None, {"KVFERRY_CONFIG_FILE": ""}) is None


def test_a_secret_that_others_can_read_is_noticed(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kvferry.config")
    put(file, f"client: {{url: 'redis://:{SECRET}@h'}}\n")
    load_client_config(file, environ={})
    assert caplog.records == []
    file.chmod(0o640)
    load_client_config(file, environ={})
    (record,) = caplog.records
    assert "chmod 600" in record.getMessage()
    assert SECRET not in record.getMessage()
