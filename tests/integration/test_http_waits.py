"""Callers of HTTP who wait for an answer of somebody else keep nobody waiting who wants one now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvferry import TieredCache
from kvferry.config.server import ServerConfig
from kvferry.http import waits
from kvferry.http.listener import HttpListener
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.http.app import make_app
from kvferry.sharing.membership import Command, Result
from support.engines import CHUNK, memory_store, open_engine, prompt
from support.holdings import FakeCache, controller, hashes, reporting, tokens
from support.stamps import until
from support.views import FakeView, ask, http_of

LIMIT_S = 30.0
WAITING = 45  # more than there are threads for calls


class SlowCache(FakeCache):
    """It obeys when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.add(hashes(4))

    def obey(self, command: Command) -> Result:
        """See `Holdings`."""
        self.go.wait(LIMIT_S)
        return super().obey(command)


@contextmanager
def slow_instance() -> Iterator[tuple[Controller, SlowCache, str]]:
    cache = SlowCache()
    with controller() as ctl, reporting(cache, ctl):
        listener = HttpListener(make_app(ctl), "127.0.0.1", 0, "choose another --port")
        listener.start()
        try:
            until(lambda: all(one.synced for one in ctl.members.living()), LIMIT_S)
            until(lambda: len(ctl.members.living()) == 1, LIMIT_S)
            yield ctl, cache, listener.url
        finally:
            cache.go.set()
            listener.stop()


@contextmanager
def callers(call: Callable[[], Any], count: int, go: threading.Event) -> Iterator[list[Any]]:
    """So many callers; what they were answered. They are let go at the end."""
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(call()), daemon=True) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        go.set()
        for thread in threads:
            thread.join(2 * LIMIT_S)


ONE_PROMPT: dict[str, Any] = {"instance": "one", "tokens": tokens(4)}
WAITS = {"wait": True, "timeout_s": 60}
POSTS: dict[str, dict[str, Any]] = {
    "/v1/pins": {**ONE_PROMPT, **WAITS},
    "/v1/jobs": {**ONE_PROMPT, **WAITS, "action": "delete"},
    "/pin": {"instance_id": "one", "tokens": tokens(4)},
    "/clear": {"instance_id": "one"},
}


@pytest.mark.parametrize("path", POSTS)
def test_who_waits_for_an_instance_keeps_nobody_else_of_a_controller_waiting(path: str) -> None:
    with (
        slow_instance() as (_, cache, url),
        callers(lambda: ask(url + path, "POST", POSTS[path], limit_s=90), WAITING, cache.go) as got,
    ):
        until(lambda: len(ask(f"{url}/v1/jobs")[1]["jobs"]) == WAITING, LIMIT_S)
        assert ask(f"{url}/v1/nodes")[0] == 200
        assert ask(f"{url}/metrics")[0] == 200
        assert ask(f"{url}/v1/lookup", "POST", {"tokens": tokens(4)})[0] == 200
        assert got == []
    assert [status for status, _ in got] == [200] * WAITING


def test_a_caller_who_waits_hears_of_the_end_and_of_the_time() -> None:
    with slow_instance() as (_, cache, url):
        body = {**POSTS["/v1/jobs"], "timeout_s": 0.1}
        assert ask(f"{url}/v1/jobs", "POST", body)[1]["state"] == "running"
        cache.go.set()
        assert ask(f"{url}/v1/jobs", "POST", POSTS["/v1/jobs"])[1]["state"] == "done"


def test_more_callers_who_wait_than_there_may_be_are_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "_WAITING_MAX", 3)
    with slow_instance() as (ctl, cache, url):

        def call() -> tuple[int, Any]:
            return ask(f"{url}/v1/pins", "POST", POSTS["/v1/pins"], limit_s=90)

        with callers(call, 3, cache.go) as got:
            until(lambda: len(ctl.jobs.all()) == 3, LIMIT_S)
            status, body = call()
            assert (status, body["error"]["code"]) == (429, "busy")
            assert "3 calls that wait" in body["error"]["text"]
            assert len(ctl.jobs.all()) == 3  # nothing was begun
        assert [status for status, _ in got] == [200] * 3
        assert call()[0] == 200


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[TieredCache]:
    with open_engine(memory_store(request.node.name)) as engine:
        yield engine


@contextmanager
def served(engine: TieredCache) -> Iterator[str]:
    side = http_of(FakeView(ServerConfig(http=("127.0.0.1", 0)), engine))
    side.start()
    try:
        yield side.url
    finally:
        side.stop()


SERVER_CALLS = {
    "lookup": ("POST", "/v1/lookup"),
    "explain": ("POST", "/v1/explain"),
    "pin": ("POST", "/v1/pins"),
    "unpin": ("DELETE", "/v1/pins"),
}


@pytest.mark.parametrize("name", SERVER_CALLS)
def test_who_waits_for_a_store_keeps_nobody_else_of_a_server_waiting(
    engine: TieredCache, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    go, real = threading.Event(), getattr(engine, name)
    asked = threading.Semaphore(0)

    def slow(*arguments: Any) -> Any:
        asked.release()
        go.wait(LIMIT_S)
        return real(*arguments)

    monkeypatch.setattr(engine, name, slow)
    method, path = SERVER_CALLS[name]
    body = {"tokens": prompt(2 * CHUNK, seed=1)}
    with (
        served(engine) as url,
        callers(lambda: ask(url + path, method, body, limit_s=90), WAITING, go) as got,
    ):
        for _ in range(waits._IN_THREADS_MAX):
            assert asked.acquire(timeout=LIMIT_S)
        assert ask(f"{url}/v1/status")[0] == 200
        assert ask(f"{url}/metrics")[0] == 200
        assert got == []
    assert [status for status, _ in got] == [200] * WAITING


def test_who_waits_for_a_prefetch_keeps_nobody_else_of_a_server_waiting(
    engine: TieredCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    go, real = threading.Event(), engine.prefetch
    monkeypatch.setattr(engine, "prefetch", lambda prompt: go.wait(LIMIT_S) and real(prompt))
    file = tmp_path / "tokens.json"
    file.write_text(str(prompt(CHUNK, seed=1)))
    monkeypatch.setattr("kvferry.server.http.prefetch._WAITING_MAX", 64)
    body = {"files": [str(file)], "wait": True, "timeout_s": 60}
    with (
        served(engine) as url,
        callers(lambda: ask(f"{url}/v1/prefetch", "POST", body, limit_s=90), WAITING, go) as got,
    ):
        until(lambda: len(ask(f"{url}/v1/prefetch")[1]["jobs"]) == WAITING, LIMIT_S)
        assert ask(f"{url}/v1/status")[0] == 200
        assert got == []
    assert [status for status, _ in got] == [200] * WAITING
