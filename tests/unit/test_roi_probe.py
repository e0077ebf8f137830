"""Calibration against a server: a real one over HTTP, which streams, refuses, hangs or lies."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvferry.base.errors import ConfigError, KVFerryError, UnavailableError, UsageError
from kvferry_lab.roi.engine_probe import PrefillProbe, PrefillSample, write_calibration
from kvferry_lab.roi.rates import read_calibration

Answer = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


def event(handler: BaseHTTPRequestHandler, body: object) -> None:
    handler.wfile.write(f"data: {json.dumps(body)}\n\n".encode())


def streams(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    """Two milliseconds a word, then a token, then what it counted: two tokens a word."""
    words = len(asked["prompt"].split())
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b": a comment\n\n")
    time.sleep(2e-3 * words)
    event(handler, {"choices": [{"text": " a"}]})
    event(handler, {"choices": [], "usage": {"prompt_tokens": 2 * words}})
    handler.wfile.write(b"data: [DONE]\n\n")


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server, and what it was asked."""
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": "m-1"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append({**asked, "authorization": self.headers["Authorization"]})
            answer(self, asked)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    said: list[str] = []
    with serving(streams) as (url, seen):
        samples = PrefillProbe(base_url=url).run([20, 6, 20], said.append)
    assert [sample.asked for sample in samples] == [6, 20] * 3
    assert [sample.tokens for sample in samples] == [6, 20] * 3, "it is learnt how words are cut"
    assert len(seen[0]["prompt"].split()) == 6, "at first a word is taken for a token"
    assert all(sample.ttft_s >= 1e-3 * sample.tokens for sample in samples)
    assert {asked["model"] for asked in seen} == {"m-1"}
    assert {asked["authorization"] for asked in seen} == {"Bearer sk-secret"}
    prompts = [asked["prompt"].split()[:8] for asked in seen if len(asked["prompt"].split()) == 10]
    assert len({tuple(words) for words in prompts}) == 4, "none of them was sent before"
    assert not [text for text in said if "secret" in text]
    assert len(said) == 8


def test_what_was_measured_is_fitted_and_kept(tmp_path: Path) -> None:
    def took(tokens: int) -> float:
        return 0.02 + 1e-4 * tokens + 1e-9 * tokens * tokens

    lengths = (256, 1024, 4096)
    samples = [
        PrefillSample(asked=n, tokens=n + more, ttft_s=took(n) * times)
        for more, times in ((0, 1), (1, 1), (-1, 7))
        for n in lengths
    ]  # a vocabulary cuts words in its own way; one turn of three was disturbed
    probe = PrefillProbe(base_url="http://user:secret@host:1")
    found = probe.fit(samples, 2)
    assert (found.a_s, found.c_s_per_token) == pytest.approx((0.02, 1e-4))
    assert found.gpus == 2
    assert "secret" not in found.source
    file = tmp_path / "prefill.json"
    write_calibration(file, found, samples)
    assert read_calibration(file) == (found.a_s, found.c_s_per_token, found.d_s_per_token2)
    assert len(json.loads(file.read_text())["samples"]) == 9


def test_a_calibration_is_read_strictly(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    numbers = {"a_s": 0.01, "c_s_per_token": 4e-5, "d_s_per_token2": 1e-10}
    file.write_text(json.dumps({**numbers, "gpu": "h100"}))
    assert read_calibration(file) == (0.01, 4e-5, 1e-10)
    for content in ("", "[]", "{", '{"a_s": 1}', json.dumps({**numbers, "a_s": -1})):
        file.write_text(content)
        with pytest.raises(ConfigError, match=r"calibration\.json"):
            read_calibration(file)
    file.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        read_calibration(file)


def refuses(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
    handler.send_error(503, "loading")


def redirects(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://127.0.0.1:9/v1/completions")
    handler.end_headers()


def babbles(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(b"data: <html>\n\n")


def is_silent(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.end_headers()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refuses, "answers 503"),
        (redirects, "answers 302"),
        (babbles, "no JSON object"),
        (is_silent, "has no tokens"),
    ],
)
def test_servers_that_cannot_be_measured(answer: Answer, said: str) -> None:
    with serving(answer) as (url, _), pytest.raises(UnavailableError, match=said):
        PrefillProbe(base_url=f"{url}/v1/").run([5, 10])


def test_a_server_that_hangs_is_given_up() -> None:
    done = threading.Event()

    def hangs(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.flush()
        done.wait(60)

    with serving(hangs) as (url, _):
        with pytest.raises(UnavailableError, match="timed out"):
            PrefillProbe(base_url=url, model="m", limit_s=0.5).run([5, 10])
        done.set()


def test_a_server_that_only_says_that_it_lives_is_given_up() -> None:
    done = threading.Event()

    def dribbles(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not done.wait(0.01):
            handler.wfile.write(b": still here\n\n")

    with serving(dribbles) as (url, _):
        with pytest.raises(UnavailableError, match=r"longer than 0\.5 s|timed out"):
            PrefillProbe(base_url=url, model="m", limit_s=0.5).run([5, 10])
        done.set()


@pytest.mark.parametrize(
    ("url", "lengths", "said"),
    [
        ("http://127.0.0.1:9", [5], "two lengths"),
        ("http://127.0.0.1:9", [5, 0], "two lengths"),
        ("host:1", [5, 6], "neither http:// nor https://"),
        ("http://127.0.0.1:9", [5, 6], "127.0.0.1:9.*/models"),
        ("http://127.0.0.1:99999", [5, 6], "127.0.0.1:9.*/models"),
    ],
)
def test_what_cannot_be_asked(url: str, lengths: list[int], said: str) -> None:
    with pytest.raises(KVFerryError, match=said) as error:
        PrefillProbe(base_url=url).run(lengths)
    assert isinstance(error.value, (UsageError, UnavailableError))
