"""What the log, the metrics and `kvferry top` say of a store: what it has, and refused, and why."""

from __future__ import annotations

import io
import json
import logging
import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvferry import TieredCache
from kvferry.cli.top_page import page
from kvferry.cli.top_watch import Watch
from kvferry.server import Client
from support.cache_server import CacheServerProcess
from support.dict_store import DictStore
from support.engines import CHUNK, IDENTITY, MIB, expected, open_engine, pages_gb, prompt
from support.servers import TestServer
from support.stamps import until

LIMIT_S = 30.0
TOKENS = 4 * CHUNK + 3
WHOLE = 4 * CHUNK


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO)
    return lambda: [text for text in caplog.messages if text.startswith("Stored")]


def put(engine: TieredCache, seed: int = 0, lines: Callable[[], list[str]] | None = None) -> str:
    """Store a prompt; the last line then."""
    tokens = prompt(TOKENS, seed)
    engine.store(tokens, expected(tokens, engine.identity))
    assert engine.flush(LIMIT_S)
    return lines()[-1] if lines is not None else ""


def state(engine: TieredCache, name: str = "redis") -> tuple[str, float, str]:
    """What `stats()`, the metrics, and `kvferry top` say of a store."""
    stats = engine.stats()
    refuses = stats["metrics"]["kvferry_store_refuses"][name]
    watch = Watch("http://localhost")
    watch.status = {"identities": [{"identity": "i", "chunk_size": CHUNK, **stats}]}
    out = io.StringIO()
    Console(file=out, width=300).print(page(watch))
    (row,) = (row for row in out.getvalue().splitlines() if row.lstrip().startswith(f"{name} "))
    return str(stats["stores"][name]["problem"]), refuses, row


def redis_store(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "redis", "url": url, "max_capacity_gb": 1, **more}


def test_what_a_store_has_acknowledged_is_said_when_it_has(
    valkey: TestServer, lines: Callable[[], list[str]]
) -> None:
    with open_engine(stores=[redis_store(valkey.url)]) as engine:
        put(engine)
        (line,) = lines()
        assert line.startswith(f"Stored {WHOLE} out of {TOKENS} tokens (redis {WHOLE}): ")
        assert not re.search("wait|took", line)
        problem, refuses, row = state(engine)
        assert (problem, refuses) == ("", 0)
        assert " ok " in row


def test_a_store_that_was_killed_has_nothing(
    start: Callable[..., TestServer], lines: Callable[[], list[str]]
) -> None:
    server = start("redis7")
    with open_engine(stores=[redis_store(server.url)]) as engine:
        put(engine)
        server.kill()
        until(lambda: "none of" in put(engine, len(lines()), lines), LIMIT_S)
        line = lines()[-1]
        assert line.startswith(f"Stored {WHOLE} out of {TOKENS} tokens (memory {WHOLE}): ")
        assert f"redis took none of {WHOLE}: " in line
        assert "redis 64)" not in line
        until(
            lambda: put(engine, 100 + len(lines()), lines) and "AWAY" in state(engine)[2], LIMIT_S
        )
        problem, refuses, _ = state(engine)
        assert "refused" in problem, problem
        assert refuses == 1


def test_a_wrong_password_is_said_as_such(
    start: Callable[..., TestServer], lines: Callable[[], list[str]]
) -> None:
    server = start("redis7", password="right")
    url = re.sub(r"//[^@]*@", "//:wrong@", server.url)
    with open_engine(stores=[redis_store(url)]) as engine:
        put(engine)
        (line,) = lines()
        assert f"tokens (memory {WHOLE}): " in line
        assert f"redis took none of {WHOLE}: " in line
        assert "WRONGPASS" in line
        assert engine.tiers[0].contact(LIMIT_S).startswith("refuses us: ")
        problem, refuses, row = state(engine)
        assert "WRONGPASS" in problem
        assert "WRONGPASS" in row
        assert refuses == 1
        assert "wrong@" not in line + problem


def test_a_full_store_is_said_to_be_full(
    start: Callable[..., TestServer], lines: Callable[[], list[str]]
) -> None:
    server = start("redis7", "--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    store = redis_store(server.url, eviction={"eviction_policy": "none"})
    with open_engine(stores=[store], max_local_cpu_size=pages_gb(64)) as engine:
        seeds = iter(range(1000))
        until(lambda: put(engine, next(seeds), lines) and state(engine)[0], LIMIT_S)
        put(engine, 5000)
        time.sleep(1.1)  # no more than ten lines a second
        put(engine, 5001)
        line = lines()[-1]
        assert f"tokens (memory {WHOLE}): " in line
        assert f"redis took none of {WHOLE}: OOM" in line
        problem, refuses, row = state(engine)
        assert problem.startswith("OOM")
        assert refuses == 1
        assert " FULL " in row


def test_lines_that_are_summed_up_say_what_stores_have_not(
    start: Callable[..., TestServer], lines: Callable[[], list[str]]
) -> None:
    server = start("redis7", "--maxmemory", "2mb", "--maxmemory-policy", "noeviction")
    store = redis_store(server.url, eviction={"eviction_policy": "none"})
    with open_engine(stores=[store], max_local_cpu_size=pages_gb(64)) as engine:
        for seed in range(100):
            put(engine, seed)
        time.sleep(1.1)
        put(engine, 5000)
        assert any(re.search(r"more calls: .*; \d+ not in redis", line) for line in lines())


def test_what_waits_is_said_to_wait(lines: Callable[[], list[str]]) -> None:
    store = DictStore()
    store.gate.clear()
    with open_engine(store) as engine:
        first, second = prompt(TOKENS, 1), prompt(TOKENS, 2)
        engine.store(first, expected(first))
        assert lines() == []
        time.sleep(2.1)
        engine.store(second, expected(second))
        (line,) = lines()
        assert line.startswith(f"Stored {WHOLE} out of {TOKENS} tokens (memory {WHOLE}): ")
        assert line.endswith(f"; {WHOLE} wait for store0")
        store.gate.set()
        assert engine.flush(LIMIT_S)
        said = [each.split(":")[0] for each in lines()[1:]]
        assert said == [f"Stored {WHOLE} out of {TOKENS} tokens (store0 {WHOLE})"] * 2


def test_without_memory_of_its_own_nothing_is_kept_that_no_store_has(
    start: Callable[..., TestServer], lines: Callable[[], list[str]]
) -> None:
    server = start("redis7", password="right")
    url = re.sub(r"//[^@]*@", "//:wrong@", server.url)
    with open_engine(stores=[redis_store(url)], local_cpu=False) as engine:
        put(engine)
        (line,) = lines()
        assert line.startswith(f"Stored 0 out of {TOKENS} tokens: ")
        assert f"redis took none of {WHOLE}: " in line


def test_a_directory_that_is_gone_is_named(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    store = {"type": "file", "path": str(tmp_path / "kv"), "max_capacity_gb": 64 * MIB / (1 << 30)}
    with open_engine(stores=[store]) as engine:
        put(engine)
        (tmp_path / "kv").rename(tmp_path / "aside")
        connector = engine.tiers[0].tier.connector
        until(lambda: not connector.available, LIMIT_S)
        put(engine, 1)
        assert f"file took none of {WHOLE}: the directory {tmp_path}/kv was moved" in lines()[-1]
        (tmp_path / "aside").rename(tmp_path / "kv")
        until(lambda: connector.available, LIMIT_S)
        assert state(engine, "file")[:2] == ("", 0)
        put(engine, 2)
        assert f"(file {WHOLE})" in lines()[-1]


def test_beside_a_server_the_engine_says_what_waits_and_the_server_what_stores_have(
    start: Callable[..., TestServer], tmp_path: Path, lines: Callable[[], list[str]]
) -> None:
    store = start("redis7", password="right")
    wrong = re.sub(r"//[^@]*@", "//:wrong@", store.url)
    adapters = [
        part
        for name, url in (("sound", store.url), ("locked", wrong))
        for part in ("--l2-adapter", json.dumps({"type": "redis", "name": name, "url": url}))
    ]
    tokens, more = prompt(TOKENS, 1), prompt(TOKENS, 2)
    with (
        CacheServerProcess(tmp_path, *adapters, mib=4) as server,
        Client(IDENTITY, server.endpoint, timeout_s=LIMIT_S) as client,
    ):
        assert client.wait(LIMIT_S)
        client.store(tokens, expected(tokens))
        (line,) = lines()
        assert line.startswith(f"Stored {WHOLE} out of {TOKENS} tokens (memory {WHOLE}): ")
        assert f"{WHOLE} wait for sound" in line
        until(lambda: f"locked took none of {WHOLE}: " in server.log, LIMIT_S)
        told = rf"tokens \(memory {WHOLE}, sound {WHOLE}\): .*; locked took none .*WRONGPASS"
        assert re.search(told, server.log)
        client.store(more, expected(more))
        assert re.search(rf"; {WHOLE} wait for sound; {WHOLE} wait for locked$", lines()[-1])

        def said() -> bool:
            stores = server.http("/v1/status")["stores"]
            return bool(stores["locked"]["refuses"]) and "WRONGPASS" in stores["locked"]["reason"]

        until(said, LIMIT_S)
        assert not server.http("/v1/status")["stores"]["sound"]["refuses"]
        with urllib.request.urlopen(server.url("/metrics")) as answer:
            text = answer.read().decode()
        assert 'kvferry_server_store_refuses{store="locked"} 1.0' in text
        assert re.search(r'kvferry_store_refuses\{[^}]*store="locked"[^}]*\} 1\.0', text)
