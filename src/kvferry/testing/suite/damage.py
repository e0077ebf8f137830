"""What is not exactly what was stored is not given out: its cause is counted, and it is deleted."""

from __future__ import annotations

import time

import pytest

from kvferry.client.batch import Status
from kvferry.connectors import Connector
from kvferry.testing import clock
from kvferry.testing.driver import DAMAGES, StoreDriver, space_of, value_of


def refused(store: Connector) -> int:
    return sum(count for name, count in store.stats().items() if name.startswith("refused_"))


def await_gone(store: Connector, key: str) -> None:
    deadline = clock.now_s() + 10
    while store.batch_exists([key]).ok:
        assert clock.now_s() < deadline, "it was not deleted"
        time.sleep(0.01)


@pytest.mark.parametrize("size_bytes", [1000, 4096, 6 << 20])
@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_a_miss_with_a_cause(driver: StoreDriver, kind: str, size_bytes: int) -> None:
    if kind not in driver.damages:
        pytest.skip("this driver's values cannot be damaged so")
    with driver.open(space_of(size_bytes)) as store:
        values = [value_of(size_bytes, seed) for seed in range(2)]
        assert store.batch_set(["a", "b"], values).ok
        driver.damage("a", "b", kind)
        targets = [bytearray(size_bytes), bytearray(size_bytes)]
        result = store.batch_get(["a", "b"], targets)
        assert result[0] in (Status.CORRUPT, Status.SIZE_MISMATCH)
        assert result[1] is Status.OK
        assert targets[1] == values[1]
        assert refused(store) == 1, store.stats()
        await_gone(store, "a")
        assert store.batch_get(["a"], targets[:1])[0] is Status.MISS
        assert store.batch_set(["a"], values[:1]).ok
        assert store.batch_get(["a"], targets[:1]).ok
        assert targets[0] == values[0]


def test_values_of_another_identity_are_not_taken(driver: StoreDriver) -> None:
    with (
        driver.open(space_of(5000, dtype="float16")) as store,
        driver.open(space_of(5000, dtype="bfloat16")) as other,
    ):
        assert store.batch_set(["a"], [value_of(5000)]).ok
        assert other.batch_get(["a"], [bytearray(5000)])[0] is Status.CORRUPT
        assert refused(other) == 1
        assert other.stats()["refused_identity"] == 1
        await_gone(store, "a")


@pytest.mark.parametrize("other_size", [1, 4999, 5001, 9 << 20])
def test_values_of_another_length_are_not_taken(driver: StoreDriver, other_size: int) -> None:
    if not driver.knows_more:
        pytest.skip("its values of another length are misses")
    with driver.open(space_of(5000)) as store, driver.open(space_of(other_size)) as other:
        assert other.batch_set(["a"], [value_of(other_size)]).ok
        result = store.batch_get(["a"], [bytearray(5000)])
        assert result[0] is Status.SIZE_MISMATCH
        assert result.sizes[0] == other_size
        assert store.stats()["refused_size"] == 1
        await_gone(other, "a")
