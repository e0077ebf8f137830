"""What a connector says of its store: usage, keys, identities, what is there after reopening."""

from __future__ import annotations

import os
import select
import time
import warnings

import pytest

from kvferry.client.batch import Status
from kvferry.connectors import Connector, Usage
from kvferry.testing import clock
from kvferry.testing.driver import StoreDriver, space_of, value_of


def scanned(store: Connector, limit: int) -> dict[str | bytes, float]:
    found: dict[str | bytes, float] = {}
    for batch in store.scan(limit):
        assert 0 < len(batch) <= limit
        found.update(batch)
    return found


def settled_usage(store: Connector) -> Usage:
    """What a store holds; a server may still be freeing what the test before deleted."""
    deadline = clock.now_s() + 10
    seen, alike = store.usage(), 0
    while alike < 4:  # its thread for that may get no time for a while
        time.sleep(0.1)
        now = store.usage()
        alike = alike + 1 if abs(now.used_bytes - seen.used_bytes) < 1 << 16 else 0
        assert clock.now_s() < deadline
        seen = now
    return seen


def test_usage_grows_and_shrinks(driver: StoreDriver) -> None:
    if not driver.knows_more:
        pytest.skip("it knows what this connector stored alone")
    size = 1 << 20
    with driver.open(space_of(size)) as store, driver.open(space_of(size)) as peer:
        before = settled_usage(peer)
        keys = [f"k{i}" for i in range(16)]
        assert store.batch_set(keys, [value_of(size)] * 16).ok
        full = settled_usage(peer)
        assert full.used_bytes - before.used_bytes >= 15 * size
        assert full.keys is not None
        assert full.keys >= 16
        assert store.batch_set(keys, [value_of(size, 1)] * 16).ok
        deadline = clock.now_s() + 10  # a server frees what was overwritten when it has time
        while abs(peer.usage().used_bytes - full.used_bytes) >= 2 * size:
            assert clock.now_s() < deadline
            time.sleep(0.05)
        assert store.batch_delete(keys).ok
        deadline = clock.now_s() + 10
        while peer.usage().used_bytes > before.used_bytes + size:
            assert clock.now_s() < deadline
            time.sleep(0.05)


def test_a_full_store_says_so(driver: StoreDriver) -> None:
    size = 100_000
    store = driver.limited(space_of(size), 5 * (size + 8192))
    if store is None:
        pytest.skip("its server sets the limit")
    with store:
        keys = [f"k{i}" for i in range(10)]
        result = store.batch_set(keys, [value_of(size, i) for i in range(10)])
        stored = [key for key, status in zip(keys, result, strict=True) if status is Status.OK]
        assert 4 <= len(stored) <= 6
        assert set(result) == {Status.OK, Status.SERVER_ERROR}
        assert "full" in (result.error or "")
        usage = store.usage()
        assert usage.capacity_bytes is not None
        assert usage.used_bytes <= usage.capacity_bytes
        target = bytearray(size)
        for key in stored:
            assert store.batch_get([key], [target]).ok
            assert target == value_of(size, int(key[1:]))
        assert store.batch_delete(stored[:1]).ok
        assert store.batch_set(["new"], [value_of(size)]).ok


def test_reopening_finds_what_was_stored(driver: StoreDriver) -> None:
    if not driver.persistent:
        pytest.skip("it ends with its connectors")
    size = 300_000
    with driver.open(space_of(size)) as store:
        keys = [f"k{i}" for i in range(5)]
        assert store.batch_set(keys, [value_of(size, i) for i in range(5)]).ok
    with driver.open(space_of(size)) as store:
        if driver.knows_more:
            assert settled_usage(store).used_bytes >= 5 * size
            assert scanned(store, 2).keys() == set(keys)
        targets = [bytearray(size) for _ in keys]
        assert store.batch_get(keys, targets).ok
        assert targets == [value_of(size, i) for i in range(5)]


def test_scan_finds_the_keys_of_this_space_alone(driver: StoreDriver) -> None:
    if not driver.knows_more:
        pytest.skip("it knows what this connector stored alone")
    size = 5 << 20  # striped, where there are stripes
    with (
        driver.open(space_of(size)) as store,
        driver.open(space_of(size, prefix="zz:")) as other,
    ):
        keys = [f"k{i}" for i in range(7)]
        assert store.batch_set(keys, [value_of(size)] * 7).ok
        assert other.batch_set(["z"], [value_of(size)]).ok
        found = scanned(store, 3)
        assert found.keys() == set(keys)
        assert all(0 <= age_s < 60 for age_s in found.values())
        assert scanned(other, 10).keys() == {"z"}
        assert store.batch_delete(keys[:2]).ok
        assert scanned(store, 100).keys() == set(keys[2:])


def test_descriptions_of_all_identities_are_kept(driver: StoreDriver) -> None:
    if not driver.knows_more:
        pytest.skip("it knows what this connector stored alone")
    first, second = space_of(10, dtype="float16"), space_of(10, dtype="bfloat16")
    with driver.open(first) as store, driver.open(second) as other:
        found = other.descriptions()
        assert found[first.identity] == first.description
        assert found[second.identity] == second.description
        assert store.descriptions() == found
        assert store.available


def test_a_forked_child_has_a_connector_of_its_own(driver: StoreDriver) -> None:
    size = 100_000
    with driver.open(space_of(size)) as store:
        assert store.batch_set(["a"], [value_of(size)]).ok
        parents = store.submit_batch_exists(["a"])
        noted = store.event_fd()
        assert select.select([noted], [], [], 10)[0]
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of others: what is tested
            child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(reader)
                target = bytearray(size)
                silent = not select.select([noted], [], [], 0)[0]
                found = store.batch_get(["a"], [target], timeout_s=10)
                good = not driver.persistent or (found.ok and target == value_of(size))
                stored = store.batch_set(["b"], [value_of(size, 1)], timeout_s=10)
                own = store.submit_batch_exists(["b"], timeout_s=10)
                woken = silent and select.select([noted], [], [], 10)[0] == [noted]
                drained = [(own, True)] == [(n, r.ok) for n, r in store.drain_completions()]
                status = 0 if good and stored.ok and woken and drained else 2
                os.write(writer, f"{found} {stored} {stored.error} {woken} {drained}".encode())
            finally:
                os._exit(status)
        os.close(writer)
        said = os.read(reader, 1000)
        os.close(reader)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, said
        assert select.select([noted], [], [], 0)[0], "the child has taken our wake-up"
        assert [job_id for job_id, _ in store.drain_completions()] == [parents]
        target = bytearray(size)
        assert store.batch_get(["a"], [target]).ok
        assert target == value_of(size)
        if driver.persistent:
            assert store.batch_get(["b"], [target]).ok
            assert target == value_of(size, 1)
