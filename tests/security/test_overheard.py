"""The search for secrets finds each kind of leak, says where it was, and does not repeat it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from support import secrets
from support.programs import pytest_of

LEAKS = """
import logging, subprocess, sys, warnings
import pytest
from kvferry import BatchResult, ClientConfig, Credentials, RedisClient, errors
from kvferry.client.pure.client import PureRedisClient
from support.secrets import register, secret

S = secret("planted")

def test_print(): print("password:", S)
def test_stderr(): print(S, file=sys.stderr)
def test_cut(): print(S[:12])
def test_hex(): print(S.encode().hex())
def test_part_of_a_url(): print(f"redis://:{S}@host")
def test_log(): logging.getLogger("kvferry.x").debug("connecting as %s", S)
def test_log_of_an_exception():
    try:
        raise errors.AuthError(S)
    except errors.AuthError:
        logging.getLogger("other").exception("it failed")
def test_captured(capfd):
    print(S)
    assert S in capfd.readouterr().out
def test_warning(): warnings.warn(S, UserWarning)
def test_error_that_is_caught():
    with pytest.raises(errors.KVFerryError):
        raise errors.AuthError(f"user and {S}")
def test_cause_of_an_error():
    with pytest.raises(errors.UnavailableError):
        try:
            raise errors.AuthError(S)
        except errors.AuthError as error:
            raise errors.UnavailableError("no") from error
def test_child(): subprocess.run([sys.executable, "-c", f"print('{S}')"], capture_output=True)
def test_result(): BatchResult(b"", (), 0.0, f"WRONGPASS {S}")
def test_variable_of_ours(monkeypatch):
    from kvferry.client.pure import dial as pure_dial
    def reveal(config):
        words = [config.password]
        raise errors.AuthError("no")
    reveal.__code__ = reveal.__code__.replace(co_filename=pure_dial.__file__)
    with pytest.raises(errors.AuthError):
        reveal(ClientConfig(password=S))
def test_variable_when_nobody_expects(monkeypatch):
    from kvferry.client.pure import dial as pure_dial
    def reveal(config):
        words = (b"AUTH", config.password.encode())
        try:
            raise errors.AuthError("no")
        except errors.AuthError:
            return
    reveal.__code__ = reveal.__code__.replace(co_filename=pure_dial.__file__)
    reveal(ClientConfig(password=S))
def test_repr(monkeypatch):
    monkeypatch.setattr(ClientConfig, "__repr__", lambda self: f"{self.password}")
    ClientConfig(password=S)
def test_counters(monkeypatch):
    monkeypatch.setattr(RedisClient, "stats", lambda self: {"user": S})
    RedisClient(port=1).close()
def test_client(monkeypatch):
    monkeypatch.setattr(PureRedisClient, "__repr__", lambda self: S)
    PureRedisClient(port=1).close()
def test_secret_of_settings():
    ClientConfig(password="hunter2-of-mine")
    print("hunter2-of-mine")
def test_secret_of_credentials():
    Credentials("me", "token-0815-4711")
    print("token-0815-4711")
"""

INNOCENT = """
import logging
import pytest
from kvferry import ClientConfig, RedisClient, errors
from support.secrets import secret

def test_innocent(capfd):
    config = ClientConfig(password=secret("kept"), port=1)
    print(config)
    logging.getLogger("kvferry.x").warning("%s", config)
    with RedisClient.from_config(config) as client, pytest.raises(errors.KVFerryError):
        client.get("k", bytearray(1))
    assert "***" in capfd.readouterr().out
def test_a_password_that_is_a_word(): print(ClientConfig(password="secret").password)
"""


def run_suite(directory: Path, source: str) -> tuple[int, str]:
    """Exit code and output of a run of pytest with these plugins alone."""
    return pytest_of(directory, source, "-p", "support.summary", "-p", "support.overheard")


def test_each_leak_is_found(tmp_path: Path) -> None:
    code, output = run_suite(tmp_path, LEAKS)
    print(output)
    assert code == 1
    planted = re.findall(r"def (test_\w+)", LEAKS)
    blamed = re.findall(r"::(test_\w+) lets a secret be said", output)
    assert set(planted) - set(blamed) == set()
    assert "hunter2-of-mine" not in output  # pytest shows what a failed test printed
    assert "token-0815-4711" not in output
    assert "captured stdout" in output.lower()
    assert "log of kvferry.x" in output
    assert "variable words of " in output
    assert "counters of a client" in output


def test_who_keeps_a_secret_passes(tmp_path: Path) -> None:
    code, output = run_suite(tmp_path, INNOCENT)
    assert code == 0, output


@pytest.mark.parametrize(
    "spelling", ["p4ss/wörd+{}", "p4ss%2Fw%C3%B6rd%2B{}", "p4ss/w\\xc3\\xb6rd+{}"]
)
def test_spellings(spelling: str) -> None:
    number = os.urandom(4).hex()
    said = f"redis://:{spelling.format(number)}@h"
    assert secrets.find(said) is None
    secrets.register(f"p4ss/wörd+{number}", "of a test")
    found = secrets.find(said)
    assert found is not None
    assert "of a test" in found
    assert number not in found


@pytest.mark.parametrize("word", [None, "", "secret", "of the data", "p4ss"])
def test_words_are_no_secrets(word: str | None) -> None:
    secrets.register(word)
    assert secrets.find(f"a text with {word} in it") is None
