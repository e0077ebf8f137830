"""HTTP beside a real server: what engines stored is found, kept, warmed and forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvferry import Identity, StoreConfig
from kvferry.server import Client
from kvferry.server.http.side import HttpSide
from kvferry.server.server import Server
from support.cache_server import running
from support.engines import CHUNK, IDENTITY, LAYOUT, expected, prompt
from support.views import ask

TOKENS = prompt(5 * CHUNK + 3, seed=1)
OTHER = Identity(model="other", layout=LAYOUT)
SALT = b"tenant"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    store = StoreConfig.of(type="file", path=str(tmp_path / "kv"), max_capacity_gb=0.1)
    with running(
        tmp_path, mib=4, http=("127.0.0.1", 0), cache={"stores": (store,)}, shm_name="kvferry-http"
    ) as server:
        yield server


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    side = HttpSide(server)
    side.start()
    yield side.url
    side.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(IDENTITY, server.endpoints[0], timeout_s=10) as client:
        assert client.wait(10)
        yield client


def test_what_an_engine_stored_is_found(server: Server, url: str, client: Client) -> None:
    assert client.store(TOKENS, expected(TOKENS)).chunks == 5
    status, found = ask(f"{url}/v1/lookup", "POST", {"tokens": TOKENS})
    assert (status, found["tiers"]["l1"]) == (200, 5 * CHUNK)
    status, found = ask(f"{url}/v1/explain", "POST", {"tokens": TOKENS, "identity": "test"})
    assert (status, found["usable_tokens"]) == (200, 5 * CHUNK)
    status, told = ask(f"{url}/v1/status")
    assert (status, told["state"], len(told["sessions"])) == (200, "ready", 1)
    metrics = ask(f"{url}/metrics")[1]
    assert "kvferry_server_sessions 1.0" in metrics
    assert 'model="test"' in metrics
    assert ask(f"{url}/v1/config")[1]["endpoints"] == server.endpoints


def test_a_tenant_s_chunks_need_its_salt(server: Server, url: str) -> None:
    with Client(IDENTITY, server.endpoints[0], salt=SALT, timeout_s=10) as tenant:
        assert tenant.wait(10)
        tenant.store(TOKENS, expected(TOKENS, salt=SALT))
        body = {"tokens": TOKENS}
        assert ask(f"{url}/v1/lookup", "POST", body)[1]["tokens"] == 0
        salted = {**body, "salt": SALT.hex()}
        assert ask(f"{url}/v1/lookup", "POST", salted)[1]["tokens"] == 5 * CHUNK


def test_two_models_are_told_apart(server: Server, url: str, client: Client) -> None:
    client.store(TOKENS, expected(TOKENS))
    with Client(OTHER, server.endpoints[0], timeout_s=10) as other:
        assert other.wait(10)
        assert ask(f"{url}/v1/lookup", "POST", {"tokens": TOKENS})[0] == 400
        for identity, tokens in (("other", 0), (IDENTITY.digest.hex()[:9], 5 * CHUNK)):
            body = {"tokens": TOKENS, "identity": identity}
            assert ask(f"{url}/v1/lookup", "POST", body)[1]["tokens"] == tokens


def test_nobody_has_come_yet(url: str) -> None:
    status, body = ask(f"{url}/v1/lookup", "POST", {"tokens": TOKENS})
    assert (status, body["error"]["code"]) == (400, "identity")
    assert "no engine has come" in body["error"]["text"]


def test_pinned_chunks_stay_and_warmed_ones_are_there(
    server: Server, url: str, client: Client, tmp_path: Path
) -> None:
    client.store(TOKENS, expected(TOKENS))
    assert server.cache().flush()
    assert ask(f"{url}/v1/clear", "POST", {})[1]["chunks"] == 5
    assert server.cache().memory.cache.stats()["resident"] == 0
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps(TOKENS))
    status, job = ask(f"{url}/v1/prefetch", "POST", {"files": [str(file)], "wait": True})
    assert (status, job["state"], job["tokens"]) == (200, "done", 5 * CHUNK)
    with client.retrieve(TOKENS) as hit:
        assert hit.tiers.get("l1") == 5 * CHUNK
        assert bytes(hit.pages[3]) == expected(TOKENS)[3].tobytes()
    assert ask(f"{url}/v1/pins", "POST", {"tokens": TOKENS})[1]["tokens"] == 5 * CHUNK
    for seed in range(2, 200):  # more than the pool holds
        other = prompt(5 * CHUNK, seed=seed)
        client.store(other, expected(other))
    assert ask(f"{url}/v1/lookup", "POST", {"tokens": TOKENS})[1]["tiers"]["l1"] == 5 * CHUNK
    assert ask(f"{url}/v1/clear", "POST", {"stores": True})[0] == 200
    assert client.lookup(TOKENS).tokens == 0


def test_while_it_drains_and_afterwards(server: Server, url: str, client: Client) -> None:
    server.stop()
    assert ask(f"{url}/readyz")[0] == 503
    assert ask(f"{url}/v1/lookup", "POST", {"tokens": TOKENS})[1]["error"]["code"] == "not_ready"
    assert ask(f"{url}/v1/status")[0] == 200
