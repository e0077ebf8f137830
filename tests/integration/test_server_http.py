"""The HTTP side of a server, over real sockets and real engines: answers, refusals, limits."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvferry import Identity, TieredCache
from kvferry.base.errors import UnavailableError
from kvferry.config.server import ServerConfig
from kvferry.http import listener
from kvferry.http.bodies import BODY_BYTES_MAX
from support import clock
from support.engines import CHUNK, IDENTITY, LAYOUT, expected, memory_store, open_engine, prompt
from support.stamps import until
from support.views import FakeView, ask, assert_whole, http_of

TOKEN = "t0ken-t0ken-t0ken"
OTHER = Identity(model="other", layout=LAYOUT)
TOKENS = prompt(5 * CHUNK + 3, seed=1)


def config(**settings: Any) -> ServerConfig:
    return ServerConfig(http=("127.0.0.1", 0), **settings)


@contextmanager
def served(view: FakeView) -> Iterator[str]:
    side = http_of(view)
    side.start()
    try:
        yield side.url
    finally:
        side.stop()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[TieredCache]:
    with open_engine(memory_store(request.node.name)) as engine:
        yield engine


@pytest.fixture
def url(engine: TieredCache) -> Iterator[str]:
    with served(FakeView(config(), engine)) as url:
        yield url


def error(answer: tuple[int, Any]) -> tuple[int, str]:
    status, body = answer
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "text"}
    assert body["error"]["text"]
    return status, body["error"]["code"]


# --- Health ---


def test_health_says_what_the_server_says(engine: TieredCache) -> None:
    view = FakeView(config(), engine)
    with served(view) as url:
        assert ask(f"{url}/healthz") == (200, {"alive": True})
        assert ask(f"{url}/readyz") == (200, {"ready": True})
        view.alive = False
        assert ask(f"{url}/healthz") == (503, {"alive": False})
        assert ask(f"{url}/readyz")[0] == 503
        for state in ("starting", "draining"):  # without a loop, and all is well
            view.state = state
            assert ask(f"{url}/healthz") == (200, {"alive": True})
            answer = ask(f"{url}/readyz")
            assert answer == (503, {"ready": False, "reason": f"it is {state}"})
        view.state = "ended"
        assert ask(f"{url}/healthz")[0] == 503


def test_the_body_of_an_answer_does_not_wait_for_an_acknowledgement_of_its_head(
    engine: TieredCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = []
    accepted = listener._Heads.accepted

    def tell(self: Any, peer: socket.socket, address: Any) -> None:
        accepted(self, peer, address)
        delays.append(not peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(listener._Heads, "accepted", tell)
    with served(FakeView(config(), engine)) as url:
        assert ask(f"{url}/healthz")[0] == 200
    assert delays == [False]


def test_calls_that_hang_do_not_keep_health_waiting(
    engine: TieredCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    view = FakeView(config(), engine)
    monkeypatch.setattr(view, "status", lambda: {"went": go.wait(20)})
    with served(view) as url:
        answers: list[object] = []
        threads = [
            threading.Thread(target=lambda: answers.append(ask(f"{url}/v1/status")), daemon=True)
            for _ in range(60)  # more than there are threads for calls
        ]
        for thread in threads:
            thread.start()
        try:
            assert ask(f"{url}/healthz", limit_s=10)[0] == 200
            assert ask(f"{url}/readyz", limit_s=10)[0] == 200
        finally:
            go.set()
        for thread in threads:
            thread.join(20)
        assert answers == [(200, {"went": True})] * 60


# --- What there is ---


def test_status_metrics_and_config(engine: TieredCache) -> None:
    view = FakeView(config(http_token=TOKEN, chunk_size=CHUNK), engine)
    bearer = f"Bearer {TOKEN}"
    with served(view) as url:
        assert ask(f"{url}/v1/status", Authorization=bearer) == (
            200,
            {"state": "ready", "pool": {"bytes": 1}, "odd": None},
        )
        status, text = ask(f"{url}/metrics", Authorization=bearer)
        assert status == 200
        assert 'kvferry_tokens_hit_total{tier="l1"} 0.0' in text
        status, shown = ask(f"{url}/v1/config", Authorization=bearer)
        assert (status, shown["chunk_size"], shown["http_token"]) == (200, CHUNK, "***")
        assert shown["cache"]["eviction_policy"] == "LRU"
        assert TOKEN not in json.dumps(shown)


def test_lookup_counts_tokens_of_each_tier(engine: TieredCache, url: str) -> None:
    engine.store(TOKENS, expected(TOKENS))
    assert engine.flush()
    body = {"tokens": TOKENS}
    status, found = ask(f"{url}/v1/lookup", "POST", body)
    assert status == 200
    assert found["tiers"] == {"l1": 5 * CHUNK, "store0": 0}
    assert (found["tokens"], found["prompt_tokens"]) == (5 * CHUNK, len(TOKENS))
    assert found["identity"] == IDENTITY.digest.hex()
    engine.memory.cache.clear()
    assert ask(f"{url}/v1/lookup", "POST", body)[1]["tiers"] == {"l1": 0, "store0": 5 * CHUNK}
    named = {**body, "identity": IDENTITY.digest.hex()[:6]}
    assert ask(f"{url}/v1/lookup", "POST", named)[1]["tokens"] == 5 * CHUNK
    other = {"tokens": [*TOKENS[:CHUNK], 7, *TOKENS[CHUNK + 1 :]]}
    assert ask(f"{url}/v1/lookup", "POST", other)[1]["tokens"] == CHUNK


def test_a_salt_leads_to_the_chunks_of_its_tenant() -> None:
    salt = b"tenant"
    chunks = expected(TOKENS, salt=salt)
    with open_engine(salt=salt) as tenant:
        tenant.store(TOKENS, chunks)
        hashes = tenant.keys(TOKENS)
    with open_engine() as engine, served(FakeView(config(), engine)) as url:
        from kvferry.cache import Hashes

        engine.store(Hashes([bytes.fromhex(key) for key in hashes]), chunks)
        body = {"tokens": TOKENS, "salt": salt.hex()}
        assert ask(f"{url}/v1/lookup", "POST", body)[1]["tokens"] == 5 * CHUNK
        assert ask(f"{url}/v1/lookup", "POST", {"tokens": TOKENS})[1]["tokens"] == 0


def test_explain_names_the_place_of_each_chunk(engine: TieredCache, url: str) -> None:
    engine.store(TOKENS[: 2 * CHUNK], expected(TOKENS)[:2])
    status, found = ask(f"{url}/v1/explain", "POST", {"tokens": TOKENS})
    assert status == 200
    assert [place["where"] != [] for place in found["places"]] == [True] * 2 + [False] * 3
    assert found["usable_tokens"] == 2 * CHUNK
    assert "5 chunks of 16" in found["text"]


def test_clear_spares_stores_unless_it_is_said(engine: TieredCache, url: str) -> None:
    engine.store(TOKENS, expected(TOKENS))
    assert engine.flush()
    status, found = ask(f"{url}/v1/clear", "POST", {})
    assert (status, found["chunks"], found["stores"]) == (200, 5, False)
    assert engine.lookup(TOKENS).tiers == {"l1": 0, "store0": 5 * CHUNK}
    assert ask(f"{url}/v1/clear", "POST", {"stores": True})[0] == 200
    assert engine.contains(TOKENS) == 0


# --- Pins ---


def test_pins_are_set_listed_and_undone(engine: TieredCache, url: str) -> None:
    engine.store(TOKENS, expected(TOKENS))
    status, pin = ask(f"{url}/v1/pins", "POST", {"tokens": TOKENS})
    assert (status, pin["tokens"]) == (200, 5 * CHUNK)
    assert pinned(engine) == 5
    assert ask(f"{url}/v1/pins")[1] == {"pins": [pin]}
    assert ask(f"{url}/v1/pins", "DELETE", {"id": pin["id"]})[1]["tokens"] == 5 * CHUNK
    assert pinned(engine) == 0
    assert error(ask(f"{url}/v1/pins", "DELETE", {"id": pin["id"]})) == (404, "pin")
    ask(f"{url}/v1/pins", "POST", {"tokens": TOKENS})
    assert ask(f"{url}/v1/pins", "DELETE", {"tokens": TOKENS})[1]["tokens"] == 5 * CHUNK
    assert ask(f"{url}/v1/pins")[1] == {"pins": []}
    again = ask(f"{url}/v1/pins", "POST", {"tokens": TOKENS})[1]["id"]
    assert ask(f"{url}/v1/pins/{again}", "DELETE")[1]["tokens"] == 5 * CHUNK
    assert pinned(engine) == 0


def test_undoing_a_pin_by_its_tokens_spares_pins_of_others(engine: TieredCache, url: str) -> None:
    engine.store(TOKENS[: 2 * CHUNK], expected(TOKENS)[:2])
    assert ask(f"{url}/v1/pins", "POST", {"tokens": TOKENS})[1]["tokens"] == 2 * CHUNK
    engine.store(TOKENS, expected(TOKENS))
    assert engine.pin(TOKENS) == 5 * CHUNK  # an engine's own
    assert ask(f"{url}/v1/pins", "DELETE", {"tokens": TOKENS})[1]["tokens"] == 2 * CHUNK
    assert pinned(engine) == 5
    # Nothing of ours is left: it is the one that the engine set.
    assert ask(f"{url}/v1/pins", "DELETE", {"tokens": TOKENS})[1]["tokens"] == 5 * CHUNK


def test_what_nobody_has_is_not_pinned(url: str) -> None:
    status, pin = ask(f"{url}/v1/pins", "POST", {"tokens": TOKENS})
    assert (status, pin["id"], pin["tokens"]) == (200, None, 0)
    assert ask(f"{url}/v1/pins")[1] == {"pins": []}


def test_pins_are_gone_with_their_chunks(engine: TieredCache, url: str) -> None:
    engine.store(TOKENS, expected(TOKENS))
    ask(f"{url}/v1/pins", "POST", {"tokens": TOKENS})
    ask(f"{url}/v1/clear", "POST", {})
    assert ask(f"{url}/v1/pins")[1] == {"pins": []}


def pinned(engine: TieredCache) -> int:
    return sum(place.memory == "pinned" for place in engine.explain(TOKENS).places)


# --- Prefetches ---


def test_token_files_are_loaded_into_memory(engine: TieredCache, url: str, tmp_path: Path) -> None:
    files = []
    for index, kind in enumerate(("json", "<i4", "<i8", "<u4")):
        tokens = prompt(2 * CHUNK, seed=100 + index)
        engine.store(tokens, expected(tokens))
        files.append(str(tmp_path / f"{index}.npy"))
        if kind == "json":
            Path(files[-1]).write_text(json.dumps(tokens))
        else:
            np.save(files[-1], np.array(tokens, kind))
    assert engine.flush()
    engine.memory.cache.clear()
    body = {"files": files, "wait": True}
    status, job = ask(f"{url}/v1/prefetch", "POST", body)
    assert (status, job["state"], job["tokens"]) == (200, "done", 8 * CHUNK)
    assert [one["tokens"] for one in job["results"]] == [2 * CHUNK] * 4
    assert [one["error"] for one in job["results"]] == [None] * 4
    assert engine.memory.cache.stats()["resident"] == 8
    assert ask(f"{url}/v1/prefetch/{job['id']}")[1] == job
    assert ask(f"{url}/v1/prefetch")[1]["jobs"][0]["id"] == job["id"]
    assert error(ask(f"{url}/v1/prefetch/none")) == (404, "prefetch")


def test_progress_of_a_prefetch_that_nobody_waits_for(
    engine: TieredCache, url: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(TOKENS))
    status, job = ask(f"{url}/v1/prefetch", "POST", {"files": [str(file)]})
    assert status == 200
    until = clock.now_s() + 20
    while job["state"] != "done":
        assert clock.now_s() < until
        job = ask(f"{url}/v1/prefetch/{job['id']}")[1]
    assert job["results"][0]["prompt_tokens"] == len(TOKENS)


def test_files_that_hold_no_tokens_are_told_apart_and_never_quoted(
    url: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text('["hunter2"]')
    ragged = tmp_path / "two.npy"
    np.save(ragged, np.zeros((2, 3), np.int32))
    floats = tmp_path / "floats.npy"
    np.save(floats, np.zeros(3))
    cut = tmp_path / "cut.npy"
    np.save(cut, np.zeros(100, np.int64))
    cut.write_bytes(cut.read_bytes()[:-5])
    negative = tmp_path / "negative.json"
    negative.write_text(json.dumps([-1] * CHUNK))
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{}], object), allow_pickle=True)
    longer = tmp_path / "longer.npy"
    np.save(longer, np.zeros(CHUNK, np.int64))
    longer.write_bytes(longer.read_bytes() + b"\0")
    head = b"{'descr': '<i8', 'fortran_order': False, 'shape': (%d,)}"
    headers = []
    for index, text in enumerate((head % (1 << 50), head % -1, b"((((", b"\xff", head + b"'")):
        headers.append(tmp_path / f"header{index}.npy")
        headers[-1].write_bytes(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text)
    names = [secret, ragged, floats, cut, longer, *headers, negative, objects]
    names += [tmp_path, tmp_path / "none", Path("a.json")]
    body = {"files": ["/dev/zero", *map(str, names)], "wait": True}
    job = ask(f"{url}/v1/prefetch", "POST", body)[1]
    assert job["state"] == "done"
    assert all(one["error"] and one["tokens"] == 0 for one in job["results"])
    assert "hunter2" not in json.dumps(job)


# --- Who may ask ---


def test_with_a_token_only_health_is_open(engine: TieredCache) -> None:
    with served(FakeView(config(http_token=TOKEN), engine)) as url:
        for path in ("/healthz", "/readyz"):
            assert ask(url + path)[0] == 200
        for path in ("/metrics", "/v1/status", "/docs", "/openapi.json", "/nothing"):
            assert error(ask(url + path)) == (401, "token")
            for wrong in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, f"Basic {TOKEN}"):
                assert error(ask(url + path, Authorization=wrong)) == (401, "token")
        assert ask(f"{url}/v1/status", Authorization=f"bearer {TOKEN}")[0] == 200


def test_a_page_in_a_browser_changes_nothing(engine: TieredCache, url: str) -> None:
    engine.store(TOKENS, expected(TOKENS))
    refused = ask(f"{url}/v1/clear", "POST", {}, Origin="https://evil.example")
    assert error(refused) == (403, "origin")
    assert error(ask(f"{url}/v1/clear", "POST", {}, Origin="null")) == (403, "origin")
    assert engine.contains(TOKENS) == 5 * CHUNK
    assert ask(f"{url}/v1/clear", "POST", {}, Origin=url)[0] == 200


# --- What is refused ---


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "json"),
        (b"[1]", "json"),
        (b"\xff", "json"),
        (b"[" * 100_000, "json"),
        (b"{}", "usage"),
        (b'{"tokens": "abc"}', "usage"),
        (b'{"tokens": [1.5]}', "usage"),
        (b'{"tokens": [true]}', "usage"),
        (b'{"tokens": [-1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7]}', "usage"),
        (b'{"tokens": [1,]}', "json"),
        (b'{"tokens": [18446744073709551616]}', "usage"),
        (b'{"tokens": [1], "salt": "xyz"}', "usage"),
        (b'{"tokens": [1], "identity": 5}', "usage"),
        (b'{"tokens": [1], "tokenz": 5}', "usage"),
    ],
)
def test_bodies_that_cannot_be_right(url: str, body: bytes, code: str) -> None:
    assert error(ask(f"{url}/v1/lookup", "POST", raw=body)) == (400, code)


def test_prefetches_that_cannot_be_right(url: str) -> None:
    bodies: list[dict[str, Any]] = [{}, {"files": []}, {"files": [3]}]
    for body in (*bodies, {"files": ["a"], "timeout_s": 0}):
        assert error(ask(f"{url}/v1/prefetch", "POST", body)) == (400, "usage")
    many = {"files": ["/a"] * 10_001}
    assert error(ask(f"{url}/v1/prefetch", "POST", many)) == (400, "usage")


def test_paths_and_methods_that_are_not_there(url: str) -> None:
    assert error(ask(f"{url}/v1/nothing")) == (404, "not_found")
    assert error(ask(f"{url}/v1/lookup")) == (405, "method")
    assert error(ask(f"{url}/v1/status", "POST", {})) == (405, "method")


def test_identities_that_are_not_there(engine: TieredCache) -> None:
    with open_engine(identity=OTHER) as other, served(FakeView(config(), engine, other)) as url:
        body: dict[str, Any] = {"tokens": TOKENS}
        assert error(ask(f"{url}/v1/lookup", "POST", body)) == (400, "identity")
        assert error(ask(f"{url}/v1/lookup", "POST", {**body, "identity": "ff"}))[0] == 404
        status, found = ask(f"{url}/v1/lookup", "POST", {**body, "identity": "other"})
        assert (status, found["model"]) == (200, "other")


def test_a_server_that_is_not_ready_says_so(engine: TieredCache) -> None:
    view = FakeView(config(), engine)
    view.state = "draining"
    with served(view) as url:
        for path in ("lookup", "explain", "pins"):
            refused = ask(f"{url}/v1/{path}", "POST", {"tokens": TOKENS})
            assert error(refused) == (503, "not_ready")
        assert ask(f"{url}/v1/status")[0] == 200


def test_bodies_have_a_limit(url: str) -> None:
    too_long = b'{"tokens": [' + b"1," * (BODY_BYTES_MAX // 2) + b"1]}"
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 20) as raw:
        head = f"POST /v1/lookup HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {len(too_long)}\r\n\r\n"
        raw.sendall(head.encode())  # and no body: the head says enough
        assert b" 413 " in raw.recv(4096).split(b"\r\n", 1)[0]
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 20) as raw:
        raw.sendall(
            b"POST /v1/lookup HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        piece = b"100000\r\n" + b"1" * (1 << 20) + b"\r\n"
        try:
            for _ in range(40):
                raw.sendall(piece)
        except ConnectionError:
            pass
        else:
            assert b" 413 " in raw.recv(4096).split(b"\r\n", 1)[0]
    assert ask(f"{url}/healthz")[0] == 200


@pytest.mark.parametrize("mib", [5, 20])
@pytest.mark.parametrize("chunked", [False, True])
def test_who_sends_all_of_a_body_that_is_too_long_reads_why_it_was_refused(
    url: str, mib: int, chunked: bool
) -> None:
    pieces = [b"1" * (1 << 20)] * mib
    connection = http.client.HTTPConnection("127.0.0.1", int(url.rsplit(":", 1)[1]), timeout=20)
    with contextlib.closing(connection):
        body = iter(pieces) if chunked else b"".join(pieces)
        connection.request("POST", "/v1/lookup", body, encode_chunked=chunked)
        answer = connection.getresponse()
        assert answer.status == 413
        assert "token file" in json.loads(answer.read())["error"]["text"]


def test_only_a_few_long_bodies_are_read_at_a_time(url: str) -> None:
    """Others are refused before a byte of them is read; short ones are taken all the same."""
    where = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
    head = f"POST /v1/lookup HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {BODY_BYTES_MAX}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        open_ones = []
        for _ in range(2):
            one = stack.enter_context(socket.create_connection(where, 20))
            one.sendall(head.encode() + b'{"tokens": [')
            open_ones.append(one)

        def is_refused() -> bool:  # as soon as both have been met
            with socket.create_connection(where, 20) as third:
                third.sendall(head.encode())
                third.settimeout(0.2)
                with contextlib.suppress(TimeoutError):
                    return b" 429 " in third.recv(4096).split(b"\r\n", 1)[0]
                return False

        until(is_refused, 10)
        assert ask(f"{url}/v1/lookup", "POST", {"tokens": TOKENS})[0] == 200
        open_ones[0].close()
        until(lambda: ask(f"{url}/v1/lookup", "POST", raw=long_body())[0] == 200, 10)


def long_body() -> bytes:
    return json.dumps({"tokens": list(range(100_000))}).encode()


def test_who_sends_no_request_is_sent_away(
    engine: TieredCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for his answer is not."""
    monkeypatch.setattr("kvferry.http.listener.HEAD_S", 1.5)
    view, go = FakeView(config(), engine), threading.Event()
    monkeypatch.setattr(view, "status", lambda: {"went": go.wait(20)})
    with served(view) as url:
        where = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
        silent, slow, quick, busy = (socket.create_connection(where, 20) for _ in range(4))
        quick.sendall(b"GET /healthz HTTP/1.1\r\nhost: [::1]\r\n\r\n")
        slow.sendall(b"GET /healthz HTTP/1.1\r\nhost:")
        busy.sendall(b"GET /v1/status HTTP/1.1\r\nhost: [::1]\r\n\r\n")
        assert to_its_end(quick).endswith(b'{"alive":true}')
        for one in (silent, slow):
            assert to_its_end(one) == b""
        go.set()
        assert to_its_end(busy).endswith(b'{"went": true}')


def to_its_end(one: socket.socket) -> bytes:
    with one:
        return b"".join(iter(lambda: one.recv(4096), b""))


def test_a_bug_is_told_without_its_text(
    engine: TieredCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = FakeView(config(), engine)

    def fail() -> dict[str, Any]:
        raise RuntimeError("s3cret")

    monkeypatch.setattr(view, "status", fail)
    with served(view) as url:
        answer = ask(f"{url}/v1/status")
        assert error(answer) == (500, "internal")
        assert "s3cret" not in json.dumps(answer[1])
        assert ask(f"{url}/healthz")[0] == 200


def test_an_engine_that_was_closed_is_no_bug(url: str, engine: TieredCache) -> None:
    engine.close()
    assert error(ask(f"{url}/v1/lookup", "POST", {"tokens": TOKENS})) == (503, "closed")


# --- Life ---


def test_a_port_that_is_taken(engine: TieredCache) -> None:
    with served(FakeView(config(), engine)) as url:
        port = int(url.rsplit(":", 1)[1])
        taken = http_of(FakeView(config().replace(http=("127.0.0.1", port)), engine))
        with pytest.raises(UnavailableError, match=f"port {port}.*--http-port"):
            taken.start()
        taken.stop()


def test_it_ends_while_somebody_waits(engine: TieredCache, tmp_path: Path) -> None:
    view = FakeView(config(), engine)
    side = http_of(view)
    side.start()
    idle = socket.create_connection(("127.0.0.1", int(side.url.rsplit(":", 1)[1])), 20)
    began = clock.now_s()
    side.stop()
    assert clock.now_s() - began < 8
    idle.close()
    assert not any(thread.name == "kvferry-http" for thread in threading.enumerate())


def test_the_description_names_every_route(url: str) -> None:
    status, document = ask(f"{url}/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"]
            if method == "get" and "{" not in path:
                assert ask(url + path)[0] == 200, path
            elif "{" not in path:
                assert ask(url + path, method.upper(), raw=b"{")[0] == 400, path
    assert_whole(document)
    lookup = document["components"]["schemas"]["EnginePromptBody"]
    assert lookup["required"] == ["tokens"]
    assert lookup["properties"]["tokens"]["items"] == {"type": "integer"}
    status, page = ask(f"{url}/docs")
    assert status == 200
    assert all(path.replace("{", "&#123;") in page or path in page for path in document["paths"])
    assert "http://" not in page.replace(url, "")
    assert "https://" not in page
