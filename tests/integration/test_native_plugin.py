"""Clients of the contract that LMCache calls native, as stores, and what they do wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvferry import Status
from kvferry.base.errors import ConfigError
from kvferry.config import CacheConfig
from kvferry.config.stores import StoreConfig
from kvferry.connectors import Connector, load_connector
from kvferry.connectors.native_plugin import NativePluginConnector
from kvferry.server import Client
from support.cache_server import running
from support.connectors import space_of, value_of
from support.engines import CHUNK, IDENTITY, check, expected, open_engine, prompt
from support.native_client import open_clients, stores, trouble
from support.stamps import until

SIZE = 5000
TOKENS = prompt(4 * CHUNK, seed=1)
Open = Callable[..., Connector]


def spec(name: str, class_name: str = "DictClient", **params: Any) -> dict[str, Any]:
    """As LMCache's users write it."""
    return {
        "type": "native_plugin",
        "module_path": "support.native_client",
        "class_name": class_name,
        "adapter_params": {"name": name, **params},
    }


def store_of(name: str, class_name: str = "DictClient", **params: Any) -> StoreConfig:
    return StoreConfig.of(**spec(name, class_name, **params))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.node.name
    yield name
    stores.pop(name, None)
    trouble.pop(name, None)


@pytest.fixture
def store(name: str) -> Iterator[Connector]:
    with load_connector(store_of(name).connector_spec(), space_of(SIZE)) as store:
        yield store
    assert not open_clients


def test_a_client_that_is_silent_costs_time_and_no_memory(name: str, store: Connector) -> None:
    assert store.batch_set(["a"], [value_of(SIZE)]).ok
    trouble[name] = "silent"
    target = bytearray(SIZE)
    late = store.batch_get(["a"], [target], timeout_s=0.05)
    assert list(late) == [Status.TIMEOUT]
    assert store.stats()["missing_batches"] == 1
    until(lambda: not store.available, 20)
    assert list(store.batch_exists(["a"])) == [Status.UNAVAILABLE]
    # What it writes when it wakes up, it writes where nobody looks.
    (client,) = open_clients
    del trouble[name]
    client.release()
    until(lambda: store.available, 20)
    assert target == bytearray(SIZE)
    assert store.stats()["missing_batches"] == 0
    assert store.batch_get(["a"], [target]).ok
    assert target == value_of(SIZE)


def test_a_silent_client_is_tried_again_and_not_for_ever(
    name: str, store: Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvferry.connectors.native_calls._RETRY_S", 0.0)
    trouble[name] = "silent"
    for _ in range(8):
        assert list(store.batch_exists(["a"], timeout_s=0.001)) == [Status.TIMEOUT]
    assert not store.available
    assert list(store.batch_exists(["a"])) == [Status.UNAVAILABLE]


@pytest.mark.parametrize(("kind", "status"), [("raises", 6), ("lies", 3), ("short", 1)])
def test_what_a_client_does_wrong_is_a_status(
    name: str, store: Connector, kind: str, status: int
) -> None:
    assert store.batch_set(["a", "b"], [value_of(SIZE), value_of(SIZE, 1)]).ok
    before = dict(stores[name])
    load_connector(store_of(name).connector_spec(), space_of(SIZE)).close()
    trouble[name] = kind
    targets = [bytearray(SIZE), bytearray(SIZE)]
    result = store.batch_get(["b", "a"], targets)  # not in the order of the spare buffers
    for key, found, target in zip("ba", result, targets, strict=True):
        assert found is Status(status) or target == value_of(SIZE, key == "b")
    if kind == "raises":
        assert "out of order" in (result.error or "")
        assert before == stores[name]


def test_a_client_that_cannot_delete(name: str) -> None:
    made = load_connector(store_of(name, "NoDelete").connector_spec(), space_of(SIZE))
    with made as store:
        assert store.batch_set(["a"], [value_of(SIZE)]).ok
        assert store.batch_delete(["a"]).error == "the client cannot delete"
        assert store.usage().keys == 1


def test_what_is_no_client(name: str) -> None:
    broken = {**spec(name, "Unfinished"), "adapter_params": {}}
    with pytest.raises(ConfigError, match="lacks submit_batch_get, submit_batch_set, submit_b"):
        load_connector(StoreConfig.of(**broken).connector_spec(), space_of(SIZE))
    refused = store_of(name, password="wrong").connector_spec()
    with pytest.raises(ConfigError, match="cannot be opened: ConnectionError") as error:
        load_connector(refused, space_of(SIZE))
    assert "wrong" not in str(error.value)
    assert "wrong" not in repr(store_of(name, password="wrong"))


def test_a_store_of_an_engine(name: str) -> None:
    with open_engine(stores=[spec(name)]) as engine:
        assert engine.store(TOKENS, expected(TOKENS)).chunks == 4
        assert engine.flush()
        (tier,) = engine.tiers
        assert isinstance(tier.tier.connector, NativePluginConnector)
    assert len(stores[name]) == 4
    with open_engine(stores=[spec(name)]) as engine:
        check(engine, TOKENS, 4 * CHUNK)


def test_a_limit_of_such_a_store_holds(name: str) -> None:
    chunk_gb = IDENTITY.layout.chunk_bytes / (1 << 30)
    limited = {**spec(name), "max_capacity_gb": 10 * chunk_gb}
    with open_engine(stores=[limited]) as engine:
        for seed in range(8):
            tokens = prompt(4 * CHUNK, seed=seed)
            engine.store(tokens, expected(tokens))
            assert engine.flush()
            assert len(stores[name]) <= 10


def test_a_store_of_the_server(tmp_path: Path, name: str) -> None:
    cache = {"stores": [store_of(name)]}
    for source in ("computed", "store"):
        with (
            running(tmp_path, mib=4, cache=cache) as server,
            Client(IDENTITY, server.config.endpoints[0], timeout_s=10) as client,
        ):
            assert client.wait(20)
            if source == "computed":
                assert client.store(TOKENS, expected(TOKENS)).chunks == 4
                until(lambda: len(stores[name]) == 4, 20)
            with client.retrieve(TOKENS) as hit:
                assert hit.tokens == 4 * CHUNK
                assert hit.tiers == {"l1": 4 * CHUNK} if source == "computed" else hit.tiers
    assert not open_clients


def test_a_server_goes_on_without_a_store_that_cannot_be_opened(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = store_of(name), store_of(name, password="wrong")
    absent = StoreConfig.of(type="native_plugin", module_path="not.there", class_name="Client")
    stores_given = CacheConfig(stores=(bad, good, absent)).stores
    with running(tmp_path, mib=4, cache={"stores": list(stores_given)}) as server:

        def warned() -> str:
            found = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
            return "\n".join(found)

        until(lambda: "cannot be opened: ConnectionError" in warned(), 20)
        until(lambda: "No module named 'not'" in warned(), 20)
        assert "wrong" not in caplog.text
        with Client(IDENTITY, server.config.endpoints[0], timeout_s=10) as client:
            assert client.wait(20)
            client.store(TOKENS, expected(TOKENS))
            assert client.lookup(TOKENS).tokens == 4 * CHUNK
            until(lambda: len(stores[name]) == 4, 20)
        status = json.loads(json.dumps(server.status()))
    assert [*status["identities"][0]["stores"]] == [stores_given[1].name]
