"""What every connector does with values: all drivers, one suite."""

from __future__ import annotations

import threading
import time

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from kvferry.testing import clock
from kvferry.testing.driver import StoreDriver, space_of, value_of

MIB = 1 << 20
SIZES = [1, 4095, 4096, 4097, MIB + 1, 4 * MIB, 9 * MIB]


@pytest.mark.parametrize("size_bytes", SIZES)
def test_values_of_every_size_come_back(driver: StoreDriver, size_bytes: int) -> None:
    values = [value_of(size_bytes, seed) for seed in range(3)]
    with driver.open(space_of(size_bytes)) as store:
        targets = [bytearray(size_bytes) for _ in values]
        assert list(store.batch_get(["a", "b", "c"], targets)) == [Status.MISS] * 3
        stored = store.batch_set(["a", "b", "c"], values)
        assert stored.ok, stored.error
        assert list(stored.sizes) == [size_bytes] * 3
        result = store.batch_get(["c", "a", "b"], targets)
        assert result.ok, result.error
        assert list(result.sizes) == [size_bytes] * 3
        assert [bytes(target) for target in targets] == [values[2], values[0], values[1]]
        assert result.elapsed_s > 0
        # Memory that begins anywhere.
        wide = bytearray(size_bytes + 64)
        assert store.batch_set(["d"], [memoryview(values[1])]).ok
        assert store.batch_get(["d"], [memoryview(wide)[3 : 3 + size_bytes]]).ok
        assert wide[3 : 3 + size_bytes] == values[1]
        assert not any(wide[:3] + wide[3 + size_bytes :])


def test_each_key_has_a_status_of_its_own(driver: StoreDriver) -> None:
    size = 5000
    with driver.open(space_of(size)) as store:
        keys = [f"k{i}" for i in range(10)]
        there = [key for i, key in enumerate(keys) if i not in (4, 7)]
        assert store.batch_set(there, [value_of(size, int(key[1:])) for key in there]).ok
        targets = [bytearray(size) for _ in keys]
        result = store.batch_get(keys, targets)
        expected = [Status.MISS if i in (4, 7) else Status.OK for i in range(10)]
        assert list(result) == expected
        assert result.prefix_len == 4
        for i in range(10):
            assert i in (4, 7) or targets[i] == value_of(size, i)
        assert list(store.batch_exists(keys)) == expected
        assert list(store.batch_exists(keys, touch=True)) == expected
        assert list(store.batch_delete(["k4", "k5"])) == [Status.MISS, Status.OK]
        assert store.batch_get(["k5"], targets[:1])[0] is Status.MISS


def test_a_prefix_ends_at_the_first_key_that_is_missing(driver: StoreDriver) -> None:
    with driver.open(space_of(100)) as store:
        keys = [f"k{i}" for i in range(8)]
        assert store.batch_set(keys[:3] + keys[4:], [value_of(100)] * 7).ok
        targets = [bytearray(100) for _ in keys]
        for result in (
            store.batch_get(keys, targets, prefix=True),
            store.batch_exists(keys, prefix=True),
            store.batch_exists(keys, prefix=True, touch=True),
        ):
            assert result.prefix_len == 3
            assert result[3] is Status.MISS
            assert set(result) <= {Status.OK, Status.MISS, Status.CANCELLED}


def test_a_new_value_replaces_the_old(driver: StoreDriver) -> None:
    size = 70_000
    with driver.open(space_of(size)) as store:
        target = bytearray(size)
        for seed in range(4):
            assert store.batch_set(["a"], [value_of(size, seed)]).ok
            assert store.batch_get(["a"], [target]).ok
            assert target == value_of(size, seed)
        assert store.batch_delete(["a"]).ok
        assert list(store.batch_exists(["a"])) == [Status.MISS]


@pytest.mark.parametrize("key", ["text", "Grüße", "a" * 400, "../../etc/passwd", "#1", "*"])
def test_keys_may_be_any_text(driver: StoreDriver, key: str) -> None:
    with driver.open(space_of(10)) as store:
        assert store.batch_set([key, "other"], [value_of(10, 1), value_of(10, 2)]).ok
        target = bytearray(10)
        assert store.batch_get([key], [target]).ok
        assert target == value_of(10, 1)
        assert store.batch_get([key.encode()], [target]).ok


def test_spaces_with_other_prefixes_are_apart(driver: StoreDriver) -> None:
    with (
        driver.open(space_of(10)) as store,
        driver.open(space_of(10, prefix="zz:")) as other,
    ):
        assert store.batch_set(["a"], [value_of(10, 1)]).ok
        assert list(other.batch_exists(["a"])) == [Status.MISS]
        assert other.batch_set(["a"], [value_of(10, 2)]).ok
        target = bytearray(10)
        assert store.batch_get(["a"], [target]).ok
        assert target == value_of(10, 1)


def test_values_live_as_long_as_they_were_given(driver: StoreDriver) -> None:
    if not driver.knows_more:
        with driver.open(space_of(100)) as store, pytest.raises(errors.UsageError, match="ttl_s"):
            store.batch_set(["long"], [value_of(100)], ttl_s=100)
        return
    with driver.open(space_of(100)) as store:
        assert store.batch_set(["long"], [value_of(100)], ttl_s=100).ok
        assert store.batch_set(["short"], [value_of(100)], ttl_s=0.05).ok
        deadline = clock.now_s() + 10
        while store.batch_exists(["short"]).ok:
            assert clock.now_s() < deadline
            time.sleep(0.01)
        targets = [bytearray(100), bytearray(100)]
        result = store.batch_get(["long", "short"], targets)
        assert list(result) == [Status.OK, Status.MISS]


def test_calls_that_cannot_be_right_are_refused(driver: StoreDriver) -> None:
    with driver.open(space_of(100)) as store:
        good = bytearray(100)
        with pytest.raises(errors.UsageError):
            store.batch_get([], [])
        with pytest.raises(errors.UsageError):
            store.batch_get(["a", "b"], [good])
        with pytest.raises(errors.UsageError):
            store.batch_get("a", [good])
        with pytest.raises(errors.UsageError):
            store.batch_exists([""])
        for wrong in (bytearray(99), bytearray(101), b"x" * 100):
            with pytest.raises(errors.BadBufferError):
                store.batch_get(["a"], [wrong])
        with pytest.raises(errors.BadBufferError):
            store.batch_set(["a"], [bytearray(99)])
        with pytest.raises(errors.UsageError):
            store.batch_exists(["a"], timeout_s=0)
        assert store.batch_set(["a"], [good]).ok


def test_many_threads_see_whole_values_only(driver: StoreDriver) -> None:
    size, rounds = 200_000, 15
    versions = [value_of(size, seed) for seed in range(4)]
    wrong: list[str] = []

    def write(thread: int) -> None:
        for round_ in range(rounds):
            result = store.batch_set(["a", "b"], [versions[(thread + round_) % 4]] * 2)
            if not result.ok:
                wrong.append(f"set {result} {result.error}")

    def read() -> None:
        targets = [bytearray(size), bytearray(size)]
        for _ in range(rounds):
            for status, target in zip(store.batch_get(["a", "b"], targets), targets, strict=True):
                if status is Status.OK and bytes(target) not in versions:
                    wrong.append("bytes that nobody wrote")
                elif status not in (Status.OK, Status.MISS):
                    wrong.append(status.name)

    with driver.open(space_of(size)) as store:
        threads = [threading.Thread(target=write, args=(n,)) for n in range(2)]
        threads += [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
