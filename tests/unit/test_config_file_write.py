"""Writing the configuration file: in one step, for its owner only, and nothing of others lost."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import yaml

from kvferry.base.errors import ConfigError
from kvferry.config import ClientConfig, load_client_config, save_client_settings
from kvferry.config.file import read_document, write_sections

SECRET = "s3cr3t-w0rd"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kvferry.yaml"


def put(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_saving_keeps_what_is_not_ours(file: Path) -> None:
    put(file, f"cache:\n- {{when: 2026-01-02, tau: 6.28}}\nclient: {{password: {SECRET}, db: 2}}\n")
    save_client_settings(
        file, {"connections": 16, "ttl_s": None}, others={"tuned": {"chunk_bytes": 4096}}
    )
    before = yaml.safe_load("cache:\n- {when: 2026-01-02, tau: 6.28}\n")
    assert yaml.safe_load(file.read_text()) == {
        **before,
        "client": {"password": SECRET, "db": 2, "connections": 16, "ttl_s": None},
        "tuned": {"chunk_bytes": 4096},
    }
    assert load_client_config(file, environ={}) == ClientConfig(
        password=SECRET, db=2, connections=16
    )
    assert os.listdir(file.parent) == [file.name]


def test_a_new_file_is_for_its_owner_only(file: Path) -> None:
    before = os.umask(0)
    try:
        save_client_settings(file, {"connections": 16})
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    save_client_settings(file, {"workers": 2})
    assert file.stat().st_mode & 0o777 == 0o600
    assert load_client_config(file, environ={}) == ClientConfig(connections=16, workers=2)


def test_a_link_to_the_file_stays_a_link(file: Path) -> None:
    put(file, "client: {db: 1}\n")
    link = file.with_name("link.yaml")
    link.symlink_to(file.name)
    save_client_settings(link, {"connections": 4})
    assert link.is_symlink()
    assert load_client_config(file, environ={}) == ClientConfig(db=1, connections=4)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("client: {db: 1}\n", {"connections": 0}),
        ("client: {db: 1}\n", {"conections": 1}),
        ("client: {conections: 1}\n", {"connections": 1}),
        ("client: {db: 1\n", {"connections": 1}),
        ("client: [1]\n", {"connections": 1}),
    ],
)
def test_nothing_is_written_over_what_is_wrong(
    file: Path, text: str, settings: dict[str, object]
) -> None:
    put(file, text)
    with pytest.raises(ConfigError):
        save_client_settings(file, settings)
    assert file.read_text() == text


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    put(file, "client: {db: 1}\n")

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no space"):
        save_client_settings(file, {"connections": 4})
    assert file.read_text() == "client: {db: 1}\n"
    assert os.listdir(file.parent) == [file.name]


def test_a_reader_sees_one_write_or_the_other(file: Path) -> None:
    sizes = (10, 20_000)
    write_sections(file, {"a": {"text": "x" * sizes[0]}})
    done = threading.Event()

    def write() -> None:
        for turn in range(60):
            write_sections(file, {"a": {"text": "x" * sizes[turn % 2]}})
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(len(read_document(file)["a"]["text"]))
    writer.join(30)
    assert seen <= set(sizes)
