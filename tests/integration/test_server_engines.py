"""Engine processes that share a cache server: the same tokens as without it, and nothing twice."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvferry.base.errors import ConfigError
from kvferry.server import Client
from kvferry.server.client.session_connection import greet
from kvferry.server.server import Server
from support.cache_server import CacheServerProcess, running
from support.engines import CHUNK, IDENTITY, LAYOUT, blanks, expected, prompt
from support.model_worker import MODEL
from support.secrets import secret
from support.stamps import until

TESTS = Path(__file__).parents[1]
PROCESSES = 4
LIMIT_S = 30.0
PATIENT_S = 5.0  # of a question, where nothing else is meant


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that listens and answers by lines."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=TESTS,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def hear(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, mib=4, dead_after_s=3.0, heartbeat_s=0.2) as server:
        yield server


def test_four_processes_answer_as_without_a_cache(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(CacheServerProcess(tmp_path, mib=8))
        workers = [
            stack.enter_context(
                process("-m", "support.model_worker", server.endpoint, str(n), str(PROCESSES))
            )
            for n in range(PROCESSES)
        ]
        first = [hear(worker)[0] for worker in workers]
        for worker in workers:
            tell(worker)
        told = [hear(worker) for worker in workers]
        assert [worker.wait(LIMIT_S) for worker in workers] == [0] * PROCESSES
        until(lambda: not server.status()["sessions"], LIMIT_S)
    assert [(a["cached"], a["stored"]) for a in first] == [(0, a["full"]) for a in first]
    tokens = {a["prompt"]: a["plain_tokens"] for a in first}
    second = [answer for answers, _ in told for answer in answers]
    assert len(second) == PROCESSES * (PROCESSES - 1)
    for answer in [*first, *second]:
        assert answer["tokens"] == answer["plain_tokens"] == tokens[answer["prompt"]]
        assert answer["equal_logits"]
        assert answer["release"]
    for answer in second:  # what another process has stored
        assert answer["cached"] == answer["full"]
        assert answer["stored"] == 0
    for _, stats in told:
        sockets = stats["socket_bytes_sent"] + stats["socket_bytes_received"]
        assert sockets < (stats["bytes_stored"] + stats["bytes_retrieved"]) / 10
        assert stats["bytes_retrieved"] == sum(a["cached"] for a in second[:3]) * MODEL.page_bytes
        assert stats["timeouts"] == stats["unavailable"] == stats["lost_leases"] == 0


def test_models_and_tenants_do_not_see_each_other(server: Server) -> None:
    url = server.config.endpoints[0]
    tokens = prompt(4 * CHUNK)
    larger = replace(IDENTITY, layout=replace(LAYOUT, head_dim=16))
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(identity, url, salt=salt, timeout_s=PATIENT_S))
            for identity in (IDENTITY, replace(IDENTITY, model="other"), larger)
            for salt in (b"", b"a tenant")
        ]
        for client in clients:
            assert client.wait(LIMIT_S), client.refused
            chunks = expected(tokens, client.identity, client._salt)
            assert client.contains(tokens) == 0
            assert client.store(tokens, chunks).chunks == 4
        for client in clients:
            into = blanks(4, client.layout)
            assert client.retrieve(tokens, into).tokens == 4 * CHUNK
            right = expected(tokens, client.identity, client._salt)
            assert all(map(np.array_equal, into, right))
        clients[0].clear()
        assert [client.contains(tokens) for client in clients] == [0] + [4 * CHUNK] * 5


def test_a_pool_too_small_for_two_prompts(tmp_path: Path) -> None:
    """Nothing waits, nothing is wrong; what does not fit is a miss."""
    with (
        running(tmp_path, mib=10 * LAYOUT.chunk_bytes / (1 << 20)) as server,
        Client(IDENTITY, server.config.endpoints[0], timeout_s=PATIENT_S) as client,
    ):
        assert client.wait(LIMIT_S)
        for seed in range(6):
            tokens = prompt(7 * CHUNK, seed)
            right = expected(tokens)
            stored = client.store(tokens, right)
            assert stored.chunks + stored.known + stored.shed == 7
            assert stored.chunks >= 1
            into = blanks(7)
            hit = client.retrieve(tokens, into)
            assert hit.tokens >= CHUNK
            assert all(map(np.array_equal, into[: hit.tokens // CHUNK], right))


def test_explain_and_stats(server: Server) -> None:
    tokens = prompt(3 * CHUNK)
    with Client(IDENTITY, server.config.endpoints[0], timeout_s=PATIENT_S) as client:
        assert client.wait(LIMIT_S)
        client.store(tokens[: 2 * CHUNK], expected(tokens)[:2])
        told = client.explain(tokens)
        assert told.usable_tokens == 2 * CHUNK
        assert [place.where for place in told.places] == [("l1",), ("l1",), ()]
        assert "3 chunks of 16: 2 in l1, 1 nowhere" in str(told)
        client.observe_prefill(1000, 0, 0.5)
        stats = client.stats()
        assert stats["incarnation"] == server.incarnation
        assert stats["server"]["identity"] == IDENTITY.digest.hex()


def test_an_engine_that_was_stopped_registers_anew(server: Server) -> None:
    """SIGSTOP for longer than the server waits: its pages are lost, and it is told so."""
    code = (
        "import json, sys\n"
        "from kvferry.server import Client\n"
        "from support.engines import CHUNK, IDENTITY, expected, prompt\n"
        "from support.stamps import until\n"
        "tokens = prompt(4 * CHUNK)\n"
        "with Client(IDENTITY, sys.argv[1], timeout_s=5.0) as client:\n"
        "    assert client.wait(20)\n"
        "    client.store(tokens, expected(tokens))\n"
        "    hit = client.retrieve(tokens)\n"
        "    print(json.dumps(hit.tokens), flush=True)\n"
        "    sys.stdin.readline()\n"
        "    released = hit.release()\n"
        "    until(lambda: client.contains(tokens), 20)\n"
        "    print(json.dumps([released, client.stats()['reconnects']]), flush=True)\n"
    )
    with process("-c", code, server.config.endpoints[0]) as engine:
        assert hear(engine) == 4 * CHUNK
        engine.send_signal(signal.SIGSTOP)
        until(lambda: not server.status()["sessions"], LIMIT_S)
        engine.send_signal(signal.SIGCONT)
        tell(engine)
        assert hear(engine) == [False, 1]
        assert engine.wait(LIMIT_S) == 0


def test_with_a_token_only_who_has_it_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody else is told that he is not, and finds nothing; the token stands in no text."""
    caplog.set_level(logging.DEBUG)
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for file in (right, wrong):
        file.write_text(f"{secret(file.name)}\n")
        file.chmod(0o600)
    tokens = prompt(2 * CHUNK)
    with running(tmp_path, mib=1, token=secret("right")) as server:
        url = server.config.endpoints[0]
        with Client(IDENTITY, url, timeout_s=PATIENT_S, token_file=right) as client:
            assert client.wait(LIMIT_S), client.refused
            assert client.store(tokens, expected(tokens)).chunks == 2
        for shown in (None, wrong):
            with Client(IDENTITY, url, token_file=shown) as stranger:
                until(lambda stranger=stranger: stranger.refused, LIMIT_S)
                assert "token_file" in stranger.refused
                assert stranger.lookup(tokens).tokens == 0
                assert stranger.store(tokens, expected(tokens)).chunks == 0
            assert greet(url, token_file=shown, timeout_s=PATIENT_S) is None
        assert greet(url, token_file=right, timeout_s=PATIENT_S) is not None
        assert server.status()["refusals"]["by_code"] == {"token": 2}
        monkeypatch.setenv("KVFERRY_SERVER_TOKEN_FILE", str(right))
        with Client(IDENTITY, url, timeout_s=PATIENT_S) as client:
            assert client.wait(LIMIT_S), client.refused
            assert client.retrieve(tokens, blanks(2)).tokens == 2 * CHUNK
        texts = caplog.text + repr(server.config) + json.dumps(server.status())
    monkeypatch.delenv("KVFERRY_SERVER_TOKEN_FILE")
    assert secret("right") not in texts
    assert secret("wrong") not in texts
    with pytest.raises(ConfigError, match="nowhere"):
        Client(IDENTITY, url, token_file=tmp_path / "nowhere")


def test_a_token_may_be_renewed_while_engines_run(tmp_path: Path) -> None:
    """The file is read for each session, so a client that was refused comes in by itself."""
    file = tmp_path / "token"
    file.write_text("before")
    file.chmod(0o600)
    with Client(IDENTITY, f"ipc://{tmp_path}/server", token_file=file) as client:
        with running(tmp_path, mib=1, token="before"):
            assert client.wait(LIMIT_S), client.refused
        until(lambda: not client.available, LIMIT_S)
        file.write_text("after")
        with running(tmp_path, mib=1, token="after"):
            assert client.wait(LIMIT_S), client.refused
