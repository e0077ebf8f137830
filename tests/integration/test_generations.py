"""After a clear nothing of before is found, whatever stores, queues and other engines do."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvferry import StoreConfig, TieredCache
from kvferry.base.errors import KVFerryError, UsageError
from kvferry.chunks.generation import Mark, drawn
from kvferry.chunks.prompt import read_prompt
from kvferry.server import Client
from support.cache_server import running
from support.engines import CHUNK, IDENTITY, Chunk, expected, open_engine, prompt
from support.servers import TestServer, wait_for

TOKENS = prompt(8 * CHUNK, 1)
MARK = f"kvf:{IDENTITY.digest.hex()}:generation"
PATIENT_S = 30.0


def on(server: TestServer, **settings: Any) -> TieredCache:
    return open_engine(stores=[{"type": "redis", "url": server.url}], **settings)


def kv(version: str, tokens: Sequence[int] = TOKENS) -> list[Chunk]:
    """The chunks of a prompt, as weights of that version compute them."""
    return expected(tokens, salt=version.encode())


def put(engine: TieredCache, version: str = "old") -> None:
    engine.store(TOKENS, kv(version))
    assert engine.flush(PATIENT_S)


def found(engine: TieredCache, *, memory: bool = True) -> str:
    """Of which version all chunks of the prompt are; "" if none is found."""
    if not memory:
        engine.clear(stores=False)
    with engine.retrieve(TOKENS, timeout_s=PATIENT_S) as hit:
        pages = [bytes(page) for page in hit.pages]
    if not pages:
        return ""
    for version in ("old", "new"):
        if pages == [chunk.tobytes() for chunk in kv(version)]:
            return version
    return f"{len(pages)} of 8, mixed"


def names(server: TestServer) -> list[bytes]:
    """The chunks that a server has."""
    begin = f"kvf:{IDENTITY.digest.hex()}:".encode()
    keys = server.cli("KEYS", begin + b"*")
    assert isinstance(keys, list)
    return [key for key in keys if isinstance(key, bytes) and key != MARK.encode()]


@pytest.mark.ways("tcp")
def test_writes_that_waited_while_it_was_cleared_do_not_come_back(valkey: TestServer) -> None:
    with on(valkey) as engine, on(valkey) as other:
        put(other)
        valkey.cli("FLUSHALL")
        valkey.cli("CLIENT", "PAUSE", 2000, "WRITE")
        engine.store(TOKENS, kv("old"))
        engine.clear()
        assert engine.flush(PATIENT_S)
        assert found(engine) == ""
        engine.store(TOKENS, kv("new"))
        assert engine.flush(PATIENT_S)
        assert found(engine, memory=False) == "new"


@pytest.mark.ways("tcp")
def test_a_clear_while_the_store_stands_still_is_done_at_once(valkey: TestServer) -> None:
    with on(valkey, retrieve_timeout_s=1.0, lookup_timeout_s=0.5) as engine:
        put(engine)
        valkey.pause()
        try:
            assert engine.clear() == 8
            assert found(engine) == ""
        finally:
            valkey.resume()
        wait_for("the store to answer", lambda: engine.tiers[0].tier.connector.available)
        assert found(engine) == ""
        put(engine, "new")
        assert found(engine, memory=False) == "new"
        assert len(names(valkey)) == 16, "others go on with the old ones"


@pytest.mark.ways("tcp")
def test_a_clear_is_of_one_engine_and_others_go_on(valkey: TestServer) -> None:
    with on(valkey) as cleared, on(valkey) as other:
        put(cleared)
        assert found(other) == "old", "engines share from the start"
        cleared.clear()
        put(cleared, "new")
        assert found(cleared, memory=False) == "new"
        assert found(other) == "old", "it has them in memory"
        put(other)  # what is in its memory it may write again
        assert found(cleared, memory=False) == "new"
        with on(valkey) as anew:
            assert found(anew) in ("old", "")


@pytest.mark.ways("tcp")
@pytest.mark.parametrize("how", ["clear", "named", "renewed", "through a server"])
def test_what_others_use_stays_when_one_engine_clears(
    valkey: TestServer, tmp_path: Path, how: str
) -> None:
    """All of a fleet's keys went when one of its engines slept."""
    cache = {"stores": (StoreConfig.of(type="redis", url=valkey.url),)}
    with ExitStack() as stack:
        other = stack.enter_context(on(valkey))
        for seed in range(25):
            tokens = prompt(8 * CHUNK, 100 + seed)
            other.store(tokens, expected(tokens))
        assert other.flush(PATIENT_S)
        assert len(names(valkey)) == 200
        one: TieredCache | Client
        if how == "through a server":
            server = stack.enter_context(running(tmp_path, cache=cache))
            url = server.config.endpoints[0]
            one = stack.enter_context(Client(IDENTITY, url, timeout_s=PATIENT_S))
            assert one.wait(PATIENT_S)
            wait_for("the server reads it", lambda: one.contains(tokens) == len(tokens))
        else:
            one = stack.enter_context(on(valkey))
        if how == "renewed":  # as a half of an adapter is told
            one.renewed(bytes(8), drawn())
        else:
            one.clear(weights_version="step-1" if how == "named" else None)
        assert one.lookup(tokens).tokens == 0
        # Behind a clear everything that this engine alone knew is deleted, and only then.
        one.store(tokens, expected(tokens))
        wait_for("it is stored", lambda: len(names(valkey)) == 208)
        one.clear()
        if how in ("clear", "renewed", "through a server"):
            wait_for("its own is deleted", lambda: len(names(valkey)) == 200)
        time.sleep(0.2)
        assert len(names(valkey)) == (208 if how == "named" else 200)
        other.clear(stores=False)
        assert other.lookup(tokens).tokens == len(tokens)


@pytest.mark.ways("tcp")
def test_engines_share_again_by_the_name_of_their_weights(valkey: TestServer) -> None:
    with on(valkey) as first, on(valkey) as second, on(valkey) as behind:
        put(behind)
        for engine in (first, second):
            engine.clear(weights_version="step-2")
        put(first, "new")
        assert found(second) == "new"
        put(behind)  # it was not updated yet
        assert found(second, memory=False) == "new"
        with on(valkey, weights_version="step-2") as anew:
            assert found(anew) == "new"
        assert second.clear(weights_version="step-2") == 8, "memory alone: the name is the same"
        assert found(second) == "new"


@pytest.mark.ways("tcp")
def test_an_empty_name_of_weights_is_no_name(valkey: TestServer) -> None:
    """As of a variable that is not set: the first generation came back, and old KV with it."""
    with on(valkey) as engine, on(valkey) as other:
        put(other)
        engine.clear(weights_version="")
        assert found(engine) == ""
        put(engine, "new")
        assert found(other) == "old"
        engine.clear(weights_version="")
        assert found(engine) == "", "nor does another one of its own"


@pytest.mark.ways("tcp")
def test_a_clear_for_everybody_reaches_the_memory_of_others(valkey: TestServer) -> None:
    with on(valkey) as one, on(valkey) as other:
        put(one)
        assert found(other) == "old"
        one.clear(everybody=True)
        assert found(one) == ""
        wait_for("the other engine to hear of it", lambda: found(other) == "")
        put(other, "new")
        assert found(one) == "new", "they share what comes later"
        with on(valkey) as anew:
            assert found(anew) == "new", "also with the first question of an engine"
        wait_for("the old chunks to be deleted", lambda: len(names(valkey)) == 8)


@pytest.mark.ways("tcp")
@pytest.mark.parametrize(
    "words",
    [
        {"everybody": True, "weights_version": "step-2"},
        {"stores": False, "weights_version": "step-2"},
        {"stores": False, "everybody": True},
    ],
)
def test_a_clear_that_says_two_things_is_refused_and_clears_nothing(
    words: dict[str, Any],
) -> None:
    with open_engine() as engine:
        tokens, before = prompt(CHUNK), engine.generation
        engine.store(tokens, expected(tokens))
        with pytest.raises(UsageError, match=" and ".join(reversed(words))):
            engine.clear(**words)
        assert engine.generation == before
        assert engine.lookup(tokens).tokens == CHUNK


def test_flushall_alone_is_no_clear(valkey: TestServer) -> None:
    with on(valkey) as engine:
        put(engine)
        valkey.cli("FLUSHALL")
        asked = engine.tiers[0].generations
        before = asked._asked_at
        wait_for("the store to be asked", lambda: asked._asked_at > before)
        assert found(engine) == "old", "what memory has is what it was"


@pytest.mark.ways("tcp")
@pytest.mark.parametrize("lost", ["flushed", "older", "other", "damaged", "a list"])
def test_a_store_that_loses_its_generation_gets_a_new_one(valkey: TestServer, lost: str) -> None:
    with on(valkey) as one, on(valkey) as other:
        put(one)
        one.clear(everybody=True)
        one.clear(everybody=True)
        known = Mark.decode(valkey.cli("GET", MARK))
        wait_for("the other to know", lambda: other.generation == one.generation)
        put(one, "old")
        if lost == "flushed":
            valkey.cli("DEL", MARK)
        elif lost == "damaged":
            valkey.cli("SET", MARK, "nonsense")
        elif lost == "a list":
            script = "redis.call('DEL', KEYS[1]); redis.call('RPUSH', KEYS[1], 'nonsense')"
            valkey.cli("EVAL", script, 1, MARK)
        else:
            counter = known.counter - (lost == "older")
            valkey.cli("SET", MARK, Mark(counter, b"restored").encode())

        def drawn() -> bool:
            now = Mark.decode(valkey.cli("GET", MARK))
            return now.counter > known.counter and one.generation == other.generation

        wait_for("a new one to be drawn", drawn)
        wait_for("both to have it", lambda: found(one) == found(other) == "")


@pytest.mark.ways("tcp")
def test_a_prompt_that_was_read_before_a_clear_stores_nothing_behind_it(
    valkey: TestServer,
) -> None:
    with on(valkey) as engine:
        for everybody in (False, True):
            before = read_prompt(TOKENS, CHUNK, b"", generation=engine.generation)
            engine.clear(everybody=everybody)
            stored = engine.store(before, kv("old"))
            assert (stored.chunks, stored.shed) == (0, 8)
            assert engine.lookup(before).tokens == 0
            assert found(engine) == ""
        assert engine.flush(PATIENT_S)
        wait_for("nothing to be there", lambda: not names(valkey))


@pytest.mark.ways("tcp")
def test_a_clear_for_everybody_without_the_store_is_an_error_and_clears_here(
    valkey: TestServer,
) -> None:
    with on(valkey) as engine:
        put(engine)
        valkey.kill()
        with pytest.raises(KVFerryError):
            engine.clear(everybody=True)
        assert found(engine) == ""
        valkey.restart()


@pytest.mark.ways("tcp")
def test_chunks_of_any_generation_make_room_in_a_store(valkey: TestServer) -> None:
    """The limit of a store holds for what was stored behind clears, too."""
    size = IDENTITY.layout.chunk_bytes
    store = {"type": "redis", "url": valkey.url, "max_capacity_gb": (4 << 20) / (1 << 30)}
    with open_engine(stores=[store]) as engine:
        engine.clear()
        engine.tiers[0].generations.close()  # nothing is deleted behind it
        count = 2 * (4 << 20) // size // 8
        for seed in range(count):
            tokens = prompt(8 * CHUNK, 100 + seed)
            engine.store(tokens, expected(tokens))
            assert engine.flush(PATIENT_S)
        assert len(names(valkey)) < 8 * count
        assert engine.lookup(prompt(8 * CHUNK, 100 + count - 1)).tokens == 8 * CHUNK


@pytest.mark.ways("tcp")
def test_many_clears_at_any_moment_and_nothing_old(valkey: TestServer) -> None:
    """Weights change, the engine is cleared, prompts come: each reads KV of its weights alone."""
    with on(valkey) as engine, on(valkey) as behind:
        version = [0]
        wrong: list[str] = []
        over = threading.Event()
        lock = threading.Lock()

        def ask(seed: int) -> None:
            while not over.is_set():
                with lock:  # as an engine admits: the weights of this moment, their generation
                    tokens, now = prompt(4 * CHUNK, seed), version[0]
                    read = read_prompt(tokens, CHUNK, b"", generation=engine.generation)
                right = [chunk.tobytes() for chunk in kv(str(now), tokens)]
                with engine.retrieve(read) as hit:
                    pages = [bytes(page) for page in hit.pages]
                if pages != right[: len(pages)]:
                    wrong.append(f"{len(pages)} chunks of before in version {now}")
                engine.store(read, kv(str(now), tokens))
                behind.store(tokens, kv("behind", tokens))

        threads = [threading.Thread(target=ask, args=(seed % 3,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(100):
            time.sleep(0.01)
            with lock:
                version[0] += 1
                engine.clear()
        over.set()
        for thread in threads:
            thread.join(PATIENT_S)
        assert not wrong
