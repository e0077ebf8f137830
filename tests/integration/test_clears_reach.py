"""A clear for everybody reaches every kind of store, every instance, and who was away."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvferry import StoreConfig, TieredCache
from kvferry.base.errors import KVFerryError, UnavailableError, UsageError
from kvferry.chunks.generation import Mark
from kvferry.chunks.prompt import read_prompt
from kvferry.connectors.peer import PeerConnector
from kvferry.server import Client
from kvferry.sharing.controller.controller import Controller
from support import clock
from support.cache_server import CacheServerProcess, running
from support.clearing import TOKENS, found, put, worker
from support.dict_store import DictStore
from support.engines import CHUNK, IDENTITY, memory_store, open_engine
from support.servers import TestServer, wait_for
from support.sharing import Open, instances, meets, running_controller, sharing

SECOND_S = 1.0  # what the memory of others may take to follow
PATIENT_S = 30.0
_BREAK_S = 2.0  # what counts as one


def folder(path: Path) -> dict[str, Any]:
    return {"type": "file", "path": str(path), "max_capacity_gb": 0.5}


def redis(server: TestServer) -> dict[str, Any]:
    return {"type": "redis", "url": server.url}


def mark_file(path: Path) -> Path:
    return path / "identities" / f"{IDENTITY.digest.hex()}.generation"


def follows(engine: TieredCache | Client) -> None:
    """It finds nothing old within the second, and no more from then on."""
    until = clock.now_s() + SECOND_S + 0.5
    while found(engine):
        assert clock.now_s() < until, "it still finds what was cleared"
        time.sleep(0.02)


# --- Stores ---


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    stores = [folder(tmp_path / "kv")]
    with open_engine(stores=stores) as one, worker(stores=stores) as other:
        put(one)
        assert other("found") == "old"
        assert one.clear(everybody=True) == 8
        assert found(one) == ""
        time.sleep(SECOND_S + 0.2)
        assert other("found") == ""
        other("put", version="new")
        assert found(one) == "new", "they share what comes later"
    with open_engine(stores=stores) as anew:
        assert found(anew) == "new"


def test_what_another_cache_writes_behind_a_clear_is_read_by_nobody(tmp_path: Path) -> None:
    """It has the old chunks in memory, the folder has lost them, and a request goes on."""
    stores = [folder(tmp_path / "kv")]
    with open_engine(stores=stores) as one, worker(stores=stores) as other:
        other("put", version="old")
        one.clear(everybody=True)
        until = time.monotonic() + SECOND_S + 0.2
        while time.monotonic() < until:
            other("found")
            other("put admitted")
        with open_engine(stores=stores) as anew:
            assert found(anew) == ""


@pytest.mark.ways("tcp")
def test_a_folder_and_a_redis_mixed(valkey: TestServer, tmp_path: Path) -> None:
    """Caches that have one store in common, and each one of its own, go on together."""
    shared = redis(valkey)
    with (
        open_engine(stores=[shared, folder(tmp_path / "a")]) as one,
        open_engine(stores=[shared, folder(tmp_path / "b")]) as other,
        open_engine(stores=[folder(tmp_path / "b")]) as third,
    ):
        put(one)
        put(other)
        put(third)
        assert one.clear(everybody=True) == 8
        for engine in (one, other):
            follows(engine)
        wait_for("it hears of it from one that heard", lambda: not found(third))
        put(one, "new")
        assert found(other) == "new", "they share what comes later"
        wait_for("all are of one generation", lambda: third.generation == one.generation)
    with open_engine(stores=[folder(tmp_path / "b")]) as anew:
        assert found(anew) in ("", "new")


@pytest.mark.parametrize("kind", ["memory alone", "store in memory", "folder"])
def test_a_clear_says_how_much_memory_had(kind: str, tmp_path: Path) -> None:
    connectors = [memory_store("counted")] if kind == "store in memory" else []
    stores = [folder(tmp_path / "kv")] if kind == "folder" else []
    with open_engine(*connectors, stores=stores) as engine:
        put(engine)
        assert engine.clear(everybody=True) == 8
        assert found(engine) == ""
        put(engine, "new")
        assert found(engine, memory=kind == "memory alone") == "new"


@pytest.mark.ways("tcp")
def test_a_clear_says_how_much_memory_had_over_redis(valkey: TestServer) -> None:
    with open_engine(stores=[redis(valkey)]) as engine:
        put(engine)
        assert engine.clear(everybody=True) == 8


def test_two_caches_on_a_store_in_memory() -> None:
    with open_engine(memory_store("both")) as one, open_engine(memory_store("both")) as other:
        put(one)
        assert found(other) == "old"
        one.clear(everybody=True)
        follows(other)


@pytest.mark.parametrize("lost", ["removed", "damaged", "older", "empty", "digits"])
def test_a_folder_that_loses_its_mark_gets_a_new_one(tmp_path: Path, lost: str) -> None:
    stores = [folder(tmp_path / "kv")]
    with open_engine(stores=stores) as one, open_engine(stores=stores) as other:
        put(one)
        one.clear(everybody=True)
        one.clear(everybody=True)
        file = mark_file(tmp_path / "kv")
        known = Mark.decode(file.read_bytes())
        assert known.counter == 2
        wait_for("the other knows", lambda: other.generation == one.generation)
        put(one)
        if lost == "removed":
            file.unlink()
        else:
            said = {"damaged": b"nonsense", "older": Mark(1, b"restored").encode(), "empty": b""}
            file.write_bytes(said.get(lost, b"9" * 4300 + b" " + b"ab" * 8))

        def drawn() -> bool:
            now = Mark.decode(file.read_bytes()) if file.exists() else Mark()
            return now.counter > known.counter and one.generation == other.generation

        wait_for("a new one is drawn", drawn)
        wait_for("both have it", lambda: found(one) == found(other) == "")
    assert not list(file.parent.glob(".*")), "nothing half written stays"


# --- Who cannot hear ---


@pytest.mark.ways("tcp")
def test_a_store_that_keeps_no_generation_is_named_and_nothing_is_cleared(
    valkey: TestServer, tmp_path: Path
) -> None:
    stores = [redis(valkey), folder(tmp_path / "kv")]
    with open_engine(DictStore(), stores=stores) as engine:
        put(engine)
        before = engine.generation
        with pytest.raises(UsageError, match=r"store0.*nothing was cleared"):
            engine.clear(everybody=True)
        assert engine.generation == before
        assert found(engine) == "old"
        assert not mark_file(tmp_path / "kv").exists()
        assert valkey.cli("EXISTS", f"kvf:{IDENTITY.digest.hex()}:generation") == 0


@pytest.mark.ways("tcp")
def test_a_store_that_was_away_is_cleared_when_it_is_back(
    valkey: TestServer, tmp_path: Path
) -> None:
    """Even where a later clear was made there meanwhile: an old mark never wins by its number."""
    with open_engine(stores=[redis(valkey)]) as before:
        for _ in range(3):
            before.clear(everybody=True)
        put(before)
    with open_engine(stores=[redis(valkey), folder(tmp_path / "kv")]) as engine:
        assert found(engine) == "old"
        valkey.pause()
        try:
            with pytest.raises(KVFerryError, match="redis"):
                engine.clear(everybody=True)
            assert found(engine) == ""
        finally:
            valkey.resume()
        keeper = engine.tiers[0].generations
        wait_for("the store says the new one", lambda: keeper.known and not keeper._owes)
        assert found(engine) == ""
        with open_engine(stores=[redis(valkey)]) as anew:
            assert found(anew) == ""


def test_a_server_whose_store_cannot_be_opened_refuses_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "theirs").touch()
    cache = {"stores": (StoreConfig.of(**folder(tmp_path / "full")),)}
    with (
        running(tmp_path, cache=cache) as server,
        Client(IDENTITY, server.config.endpoints[0], timeout_s=PATIENT_S) as client,
    ):
        assert client.wait(PATIENT_S)
        put(client)
        with pytest.raises(UnavailableError, match=r"file.*nothing was cleared"):
            client.clear(everybody=True)
        assert found(client) == "old"


def test_two_servers_on_one_folder(tmp_path: Path) -> None:
    adapter = '{"type": "file", "base_path": "%s", "max_capacity_gb": 0.1}' % (tmp_path / "kv")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with (
        CacheServerProcess(tmp_path / "a", "--l2-adapter", adapter) as first,
        CacheServerProcess(tmp_path / "b", "--l2-adapter", adapter) as second,
        Client(IDENTITY, first.endpoint, timeout_s=PATIENT_S) as one,
        Client(IDENTITY, second.endpoint, timeout_s=PATIENT_S) as other,
    ):
        assert one.wait(PATIENT_S)
        assert other.wait(PATIENT_S)
        put(one)
        wait_for("the other server reads it", lambda: found(other) == "old")
        assert one.clear(everybody=True) == 8
        follows(other)
        os.kill(second.pid, signal.SIGSTOP)
        put(one, "new")
        one.clear(everybody=True)
        time.sleep(_BREAK_S)
        os.kill(second.pid, signal.SIGCONT)
        assert found(other) == ""


# --- Instances ---


@pytest.fixture
def controller() -> Iterator[Controller]:
    with running_controller() as controller:
        yield controller


@pytest.fixture
def instance(controller: Controller) -> Iterator[Open]:
    with instances(controller) as opened:
        yield opened


def test_instances_that_share_have_heard_when_it_returns(instance: Open) -> None:
    one, other = instance("one"), instance("other")
    meets(other, "one")
    meets(one, "other")
    put(one)
    wait_for("the other reads it", lambda: found(other) == "old")
    assert one.clear(everybody=True) == 8
    assert found(other) == ""
    put(other, "new")
    wait_for("they share what comes later", lambda: found(one) == "new")


def test_instances_hear_of_it_from_each_other_while_the_controller_is_away(
    controller: Controller, instance: Open
) -> None:
    one, other = instance("one"), instance("other")
    meets(other, "one")
    meets(one, "other")
    put(one)
    wait_for("the other reads it", lambda: found(other) == "old")
    controller.stop()
    one.clear(everybody=True)
    assert found(other) == ""


def test_a_controller_that_begins_anew_hears_of_it_and_tells_who_was_away() -> None:
    """Neither instance lends, so there is no other way."""
    with running_controller() as first:
        ports = first.ports
        with instances(first) as opened:
            one = opened("one", enable_p2p=False)
            put(one)
            one.clear(everybody=True)
            generation = one.generation
            first.stop()
            with (
                running_controller(monitor_ports=ports) as second,
                instances(second) as later,
            ):
                other = later("other", enable_p2p=False)
                wait_for("a new instance hears of it", lambda: other.generation == generation)


def test_a_clear_that_reaches_nobody_says_so(controller: Controller, instance: Open) -> None:
    one = instance("one")
    put(one)
    wait_for("it is registered", lambda: len(controller.members.living()) == 1)
    controller.stop()
    with pytest.raises(UnavailableError, match="controller at localhost:"):
        one.clear(everybody=True)
    assert found(one) == ""


def test_two_clears_at_one_moment_end_both(instance: Open) -> None:
    one, other = instance("one"), instance("other")
    meets(other, "one")
    meets(one, "other")
    put(one)
    put(other)
    threads = [
        threading.Thread(target=engine.clear, kwargs={"everybody": True}) for engine in (one, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENT_S)
    wait_for("both are of one generation", lambda: one.generation == other.generation)
    assert found(one) == found(other) == ""


# --- Who was stopped ---


def stopped(other: Any, clear: Any) -> str:
    """What a process that is stopped meanwhile finds, asked before it goes on."""
    answers: list[str] = []
    os.kill(other.pid, signal.SIGSTOP)
    asking = threading.Thread(target=lambda: answers.append(other("found")))
    try:
        asking.start()
        clear()
        time.sleep(_BREAK_S)
    finally:
        os.kill(other.pid, signal.SIGCONT)
    asking.join(PATIENT_S)
    return answers[0]


@pytest.mark.ways("tcp")
@pytest.mark.parametrize("kind", ["folder", "redis"])
def test_a_process_that_was_stopped_finds_nothing_old_when_it_goes_on(
    kind: str, valkey: TestServer, tmp_path: Path
) -> None:
    stores = [folder(tmp_path / "kv") if kind == "folder" else redis(valkey)]
    with open_engine(stores=stores) as one, worker(stores=stores) as other:
        put(one)
        assert other("found") == "old"
        assert stopped(other, lambda: one.clear(everybody=True)) == ""


def test_an_instance_that_was_stopped_neither_finds_nor_lends_what_is_old(
    controller: Controller, instance: Open
) -> None:
    """Asked the moment it goes on, by whoever knows the names of old chunks."""
    one = instance("one")
    old = read_prompt(TOKENS, CHUNK, b"", generation=one.generation)
    with worker(**sharing(controller, "other")) as other:
        other("put", version="old")
        meets(one, "other")
        [peer] = one.tiers
        node = peer.tier.connector
        assert isinstance(node, PeerConnector)
        wait_for("it lends it", lambda: node.batch_exists(old.keys(0, 8)).prefix_len == 8)
        lent: list[int] = []

        def clear() -> None:
            one.clear(everybody=True)
            time.sleep(_BREAK_S)
            asked = node.submit_exists(old.keys(0, 8))
            threading.Thread(target=lambda: lent.append(_leading(asked.wait(PATIENT_S)))).start()

        assert stopped(other, clear) == ""
        wait_for("its node answers", lambda: lent)
        assert lent == [0]
        wait_for("it has the newest", lambda: other("generation") == one.generation.hex())
        other("put", version="new")
        wait_for("it lends what comes later", lambda: found(one) == "new")


def _leading(result: Any) -> int:
    return 0 if result is None else int(result.prefix_len)
