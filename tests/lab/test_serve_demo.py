"""`kvferry serve-demo` as a process over a real store: OpenAI's API, the same tokens, real hits."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kvferry.cli.main import main
from kvferry_lab.serve.run import layout_of, transformer_of
from kvferry_lab.serve.serve_settings import ServeSettings
from lab.conftest import CHUNK, PACE
from support.serve_demo import DemoServer
from support.servers import TestServer
from support.stamps import until


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command sets for its process must not reach tests behind: other numbers of threads
    compute other bits."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")


TEXT = "A document that is asked about again and again. " * 40


def rss_mb(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) >> 10 if found else 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_it_fills_its_memory(tmp_path: Path, number: int) -> None:
    file = tmp_path / "kvferry.yaml"
    file.write_text("max_local_cpu_size: 3\n")
    words = [*("-m", "kvferry.cli.main", "serve-demo", "--port", "0", "--config", str(file))]
    # Whoever looks goes first: a busy machine must not let it fill all of it meanwhile.
    process = subprocess.Popen(["nice", "-n5", sys.executable, *words], stderr=subprocess.PIPE)
    try:
        until(lambda: rss_mb(process.pid) > 500, 30)
        process.send_signal(signal.SIGSTOP)
        assert rss_mb(process.pid) < 2000
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert (process.returncode, used.ru_maxrss < 2500 << 10) == (-number, True)
    finally:
        process.kill()
        process.communicate()


def complete(server: DemoServer, prompt: Any, tokens: int = 12) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were cached."""
    status, said = server.ask("/v1/completions", {"prompt": prompt, "max_tokens": tokens})
    assert status == 200, said
    assert said["usage"]["completion_tokens"] == tokens
    cached: int = said["usage"]["prompt_tokens_details"]["cached_tokens"]
    return said["choices"][0]["text"], cached


def test_tokens_are_the_same_with_and_without_the_cache_and_in_another_process(
    tmp_path: Path, server: DemoServer, store: TestServer
) -> None:
    full = (len(TEXT) + 1 - 1) // CHUNK * CHUNK
    with DemoServer(tmp_path / "plain", *PACE, "--no-cache", config={"chunk_size": CHUNK}) as plain:
        right, cached = complete(plain, TEXT)
        assert cached == 0
    assert complete(server, TEXT) == (right, 0)
    computed = server.counted("computed_tokens_total")
    assert complete(server, TEXT) == (right, full)
    assert server.counted("computed_tokens_total") - computed == len(TEXT) + 1 - full
    until(lambda: "kvferry_write_queue_chunks 0.0\n" in server.get("/metrics"), 30)
    config = {"chunk_size": CHUNK, "recompute": "never", "remote_url": store.url}
    with DemoServer(tmp_path / "other", *PACE, config=config) as other:
        assert complete(other, TEXT) == (right, full)
        assert other.counted("wrong_chunks_total") == 0


def test_prompts_are_read_at_the_pace_and_a_hit_saves_it(server: DemoServer) -> None:
    prompt = "x" * 19_999
    began = time.monotonic()
    assert complete(server, prompt, 1)[1] == 0
    assert time.monotonic() - began >= 20_000 / 40_000
    steps = server.counted("steps_total")
    assert complete(server, prompt, 1)[1] == 19_999 // CHUNK * CHUNK
    assert server.counted("steps_total") - steps == 1


def test_a_stream_has_a_piece_for_each_token_and_ends_with_the_usage(server: DemoServer) -> None:
    asked = {
        "model": "kvferry-demo",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
    }
    status, events = server.ask("/v1/chat/completions", asked)
    assert (status, events[-1]) == (200, "[DONE]")
    *chunks, usage = [json.loads(text) for text in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    said = [chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:]]
    assert [len(text) for text in said] == [1] * 5
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * 5 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    whole = server.ask("/v1/chat/completions", {**asked, "stream": False, "stream_options": None})
    assert whole[1]["choices"][0]["message"]["content"] == "".join(said)


def test_a_prompt_is_text_tokens_or_a_list_of_either(server: DemoServer) -> None:
    tokens = [256, *b"abc"]
    assert complete(server, tokens) == complete(server, "abc")
    asked = {"prompt": [tokens, [256, *b"abd"]], "max_tokens": 3, "stream": True}
    pieces = [json.loads(text) for text in server.ask("/v1/completions", asked)[1][:-1]]
    assert sorted(piece["choices"][0]["index"] for piece in pieces) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        ("completions", {"prompt": "a", "model": "other"}, 404, "model", "model_not_found"),
        ("completions", {}, 400, "prompt", None),
        ("completions", {"prompt": [1, 300]}, 400, "prompt", None),
        ("completions", {"prompt": []}, 400, "prompt", None),
        ("completions", {"prompt": ["a", 1]}, 400, "prompt", None),
        ("completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens", None),
        ("completions", {"prompt": "a", "max_tokens": "many"}, 400, "max_tokens", None),
        ("completions", {"prompt": "a", "n": 2}, 400, "n", None),
        ("completions", {"prompt": "a", "stop": ["."]}, 400, "stop", None),
        ("completions", {"prompt": "a", "stream_options": {"x": 1}}, 400, "stream_options", None),
        (
            "completions",
            {"prompt": "a", "max_tokens": 70_000},
            *(400, "prompt", "context_length_exceeded"),
        ),
        ("chat/completions", {"messages": []}, 400, "messages", None),
        ("chat/completions", {"messages": [{"role": "user", "content": 1}]}, 400, "messages", None),
        ("chat/completions", {"messages": ["hello"]}, 400, "messages", None),
        ("completions", b"no json", 400, None, "json"),
        ("completions", b"[1]", 400, None, "json"),
        ("embeddings", {}, 404, None, None),
    ],
)
def test_what_cannot_be_answered_gets_the_error_of_openai(
    server: DemoServer, path: str, body: Any, status: int, param: str | None, code: str | None
) -> None:
    got, said = server.ask(f"/v1/{path}", body)
    assert got == status
    error = said["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert error["message"]


def test_it_says_which_model_it_has_and_that_it_is_well(server: DemoServer) -> None:
    assert server.get("/health") == "{}"
    assert json.loads(server.get("/v1/models"))["data"][0]["id"] == "kvferry-demo"
    assert "kvferry_tokens_requested_total" in server.get("/metrics")


def begin(server: DemoServer, stream: bool = True) -> http.client.HTTPConnection:
    """A request that takes minutes, unless its connection is closed."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=200)
    body = {"prompt": "a", "max_tokens": 60_000, "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(body))
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_ends_when_its_client_has_gone(server: DemoServer, stream: bool) -> None:
    before = server.counted("cancelled_total")
    connection = begin(server, stream)
    until(lambda: server.counted("running") == 1, 30)
    connection.close()
    until(lambda: server.counted("running") == 0, 30)
    assert server.counted("cancelled_total") == before + 1


def test_requests_are_computed_side_by_side(server: DemoServer) -> None:
    def each_step_brings_two() -> bool:
        said, steps = server.counted("output_tokens_total"), server.counted("steps_total")
        until(lambda: server.counted("steps_total") >= steps + 50, 30)
        more_steps = server.counted("steps_total") - steps
        return server.counted("output_tokens_total") - said >= 2 * more_steps

    connections = [begin(server) for _ in range(2)]
    until(each_step_brings_two, 60)
    for connection in connections:
        connection.close()
    until(lambda: server.counted("running") == 0, 30)


def test_ctrl_c_tells_who_waits_and_ends_with_0(tmp_path: Path) -> None:
    with DemoServer(tmp_path, *PACE, config={"chunk_size": CHUNK}) as server:
        said: list[Any] = []
        asked = {"prompt": "a", "max_tokens": 60_000, "stream": True}
        thread = threading.Thread(
            target=lambda: said.extend(server.ask("/v1/completions", asked)[1])
        )
        thread.start()
        until(lambda: server.counted("running") == 1, 30)
        assert server.end() == 0
        thread.join(60)
        assert json.loads(said[-1])["error"]["message"] == "the server is ending"
        assert "Traceback" not in server.log


def test_a_port_that_is_taken_is_said(server: DemoServer, tmp_path: Path) -> None:
    port = str(urlsplit(server.url).port)
    words = ("serve-demo", "--port", port, "--no-cache", "--bytes-per-token", "1024")
    done = subprocess.run(
        [sys.executable, "-m", "kvferry.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert f"port {port}: Address already in use; choose another --port" in done.stderr


def test_settings_are_those_of_every_other_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lmcache.yaml"
    file.write_text("chunk_size: -1\n")
    monkeypatch.delenv("KVFERRY_CONFIG_FILE", raising=False)
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", str(file))
    assert main(["serve-demo", "--port", "0"]) == 2
    assert "chunk_size=-1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--bytes-per-token", "1"),
        ("--model", "nowhere"),
        ("--model", "nowhere", "--bytes-per-token", "1024"),
        ("--prefill-tokens-per-s", "1", "--prefill-calibration", "nowhere"),
        ("--prefill-calibration", "nowhere"),
    ],
)
def test_what_cannot_be_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert main(["serve-demo", "--port", "0", "--no-cache", *words]) == 2


def test_kv_has_the_size_of_a_model_that_has_a_name() -> None:
    settings = ServeSettings(model="llama-3.1-8b")
    layout = layout_of(settings, transformer_of(settings, 256))
    assert layout.chunk_bytes == 256 * 131_072
