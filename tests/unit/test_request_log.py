"""One line for each retrieve and store; above ten a second, one that sums up."""

from __future__ import annotations

import logging

import pytest

from kvferry.cache.results import RequestLog
from support.engines import CHUNK, expected, memory_store, open_engine, prompt

LOG = logging.getLogger("kvferry.tests.told")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def test_a_retrieve_and_a_store_are_a_line_each(lines: pytest.LogCaptureFixture) -> None:
    told = RequestLog(LOG, lambda: 0.0)
    told.retrieved(4200, {"l1": 1024, "redis": 3072}, 540_000_000, 0.15)
    told.stored(4200, 4096, {"redis": 3072}, 540_000_000, 0.012)
    told.retrieved(4200, {"l1": 0}, 0, 0.15, "never_stored")
    told.retrieved(4200, {"l1": 64}, 8_000_000, 0.01, "pool_full")
    assert lines.messages == [
        "Retrieved 4096 out of 4200 tokens (memory 1024, redis 3072): 0.54 GB in 150 ms, 3.6 GB/s",
        "Stored 4096 out of 4200 tokens (redis 3072): 0.54 GB in 12 ms, 45.0 GB/s",
        "Retrieved 64 out of 4200 tokens (memory 64): 0.01 GB in 10 ms, 0.8 GB/s; the rest: pool "
        "full",
    ]


def test_many_in_a_second_are_summed_up(lines: pytest.LogCaptureFixture) -> None:
    now = [5.0]
    told = RequestLog(LOG, lambda: now[0])
    for _ in range(30):
        told.retrieved(100, {"l1": 64}, 1_000_000, 0.001)
    assert len(lines.messages) == 10
    now[0] += 1.5
    told.stored(100, 64, {}, 1_000_000, 0.001)
    assert lines.messages[10:] == [
        "Retrieved 1280 out of 2000 tokens in 20 more calls: 0.02 GB in 20 ms, 1.0 GB/s",
        "Stored 64 out of 100 tokens: 0.00 GB in 1 ms, 1.0 GB/s",
    ]


def test_an_engine_says_what_it_did(lines: pytest.LogCaptureFixture) -> None:
    tokens = prompt(4 * CHUNK + 3)
    with memory_store("told") as store, open_engine(store) as engine:
        engine.store(tokens, expected(tokens))
        assert engine.flush(30)
        engine.retrieve(tokens).release()
        engine.clear(stores=False)
        engine.retrieve(tokens).release()
        engine.retrieve(prompt(4 * CHUNK, 7))
    said = [text.split(":")[0] for text in lines.messages if " out of " in text]
    assert said == [
        "Stored 64 out of 67 tokens (store0 64)",
        "Retrieved 64 out of 67 tokens (memory 64)",
        "Retrieved 64 out of 67 tokens (store0 64)",
    ]


def test_a_prompt_that_is_stored_in_steps_is_counted_by_steps(
    lines: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    tokens = prompt(5 * CHUNK, seed=1)
    chunks = expected(tokens)
    with open_engine(memory_store(request.node.name)) as engine:
        engine.store(tokens[: 3 * CHUNK], chunks[:3])
        engine.store(tokens, chunks[3:], first_chunk=3)
    said = [line.split(" (")[0] for line in lines.messages if line.startswith("Stored")]
    assert said == [
        f"Stored {3 * CHUNK} out of {3 * CHUNK} tokens",
        f"Stored {2 * CHUNK} out of {2 * CHUNK} tokens",
    ]
