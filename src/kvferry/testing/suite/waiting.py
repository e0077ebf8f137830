"""Tickets, completions, cancels, deadlines and ends: nothing waits without a limit."""

from __future__ import annotations

import gc
import select
import threading
import time

import pytest

from kvferry.base import errors
from kvferry.client.batch import Status
from kvferry.connectors import Connector
from kvferry.testing import clock
from kvferry.testing.driver import StoreDriver, space_of, value_of

LATE = (Status.OK, Status.TIMEOUT, Status.CANCELLED)


def drained(store: Connector, count: int) -> dict[int, list[Status]]:
    """So many completions, by the descriptor alone."""
    found: dict[int, list[Status]] = {}
    deadline = clock.now_s() + 20
    while len(found) < count:
        if not select.select([store.event_fd()], [], [], 0.25)[0]:
            assert clock.now_s() < deadline
            continue
        for job_id, result in store.drain_completions():
            assert job_id not in found
            found[job_id] = list(result)
    return found


def test_tickets_end_once_and_say_how(driver: StoreDriver) -> None:
    with driver.open(space_of(1000)) as store:
        ticket = store.submit_set(["a", "b"], [value_of(1000)] * 2)
        result = ticket.wait(20)
        assert result is not None
        assert result.ok
        assert ticket.done
        assert ticket.prefix_len == 2
        assert ticket.wait(0) is result
        targets = [bytearray(1000) for _ in range(3)]
        found = store.submit_get(["a", "c", "b"], targets).wait(20)
        assert found is not None
        assert list(found) == [Status.OK, Status.MISS, Status.OK]
        there = store.submit_exists(["a", "c"], touch=True).wait(20)
        assert there is not None
        assert list(there) == [Status.OK, Status.MISS]
        gone = store.submit_delete(["a", "c"]).wait(20)
        assert gone is not None
        assert list(gone) == [Status.OK, Status.MISS]
        assert store.drain_completions() == [], "tickets are not announced"


def test_completions_come_through_one_descriptor(driver: StoreDriver) -> None:
    with driver.open(space_of(1000)) as store:
        targets = [bytearray(1000) for _ in range(2)]
        assert not select.select([store.event_fd()], [], [], 0)[0]
        stored = store.submit_batch_set(["a"], [value_of(1000)])
        assert drained(store, 1) == {stored: [Status.OK]}
        ids = {
            store.submit_batch_get(["a", "b"], targets): [Status.OK, Status.MISS],
            store.submit_batch_exists(["b"]): [Status.MISS],
            store.submit_batch_delete(["c"]): [Status.MISS],
        }
        assert drained(store, 3) == ids
        assert not select.select([store.event_fd()], [], [], 0)[0]
        assert store.drain_completions() == []
        assert targets[0] == value_of(1000)


def test_threads_may_wait_for_one_ticket(driver: StoreDriver) -> None:
    size = 1 << 20
    with driver.open(space_of(size)) as store:
        ticket = store.submit_set([f"k{i}" for i in range(16)], [value_of(size)] * 16)
        results: list[object] = []
        threads = [
            threading.Thread(target=lambda: results.append(ticket.wait(20))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(results) == 4
        assert None not in results


def test_cancelled_jobs_end_soon(driver: StoreDriver) -> None:
    size, count = 1 << 20, 24
    with driver.open(space_of(size)) as store:
        keys = [f"k{i}" for i in range(count)]
        ticket = store.submit_set(keys, [value_of(size)] * count)
        ticket.cancel()
        result = ticket.wait(20)
        assert result is not None
        assert set(result) <= {Status.OK, Status.CANCELLED}
        job = store.submit_batch_set(keys, [value_of(size, 1)] * count)
        store.cancel(job)
        store.cancel(job + 1000)
        assert set(drained(store, 1)[job]) <= {Status.OK, Status.CANCELLED}
        # What a cancelled job had stored is whole.
        target = bytearray(size)
        for key in keys:
            if store.batch_get([key], [target])[0] is Status.OK:
                assert bytes(target) in (value_of(size), value_of(size, 1))


def test_tickets_that_nobody_keeps_let_go_of_their_buffers(driver: StoreDriver) -> None:
    with driver.open(space_of(1000)) as store:
        buffer = bytearray(1000)
        store.submit_get(["a"], [buffer])
        gc.collect()
        deadline = clock.now_s() + 20
        while True:
            store.batch_exists(["a"])
            try:
                buffer.append(0)
            except BufferError:  # still leased
                assert clock.now_s() < deadline
                time.sleep(0.01)
            else:
                break


@pytest.mark.parametrize("timeout_s", [1e-9, 1e-4, 0.002])
def test_deadlines_that_nobody_can_keep(driver: StoreDriver, timeout_s: float) -> None:
    size, count = 1 << 20, 16
    with driver.open(space_of(size)) as store:
        keys = [f"k{i}" for i in range(count)]
        assert store.batch_set(keys, [value_of(size)] * count).ok
        targets = [bytearray(size) for _ in keys]
        started = clock.now_s()
        result = store.batch_get(keys, targets, timeout_s=timeout_s)
        assert clock.now_s() - started < 10
        assert set(result) <= set(LATE)
        for status, target in zip(result, targets, strict=True):
            assert status is not Status.OK or target == value_of(size)
        stored = store.batch_set(keys, [value_of(size, 1)] * count, timeout_s=timeout_s)
        assert set(stored) <= set(LATE)
        assert store.batch_get(keys[:1], targets[:1])[0] in (Status.OK, Status.MISS)
        assert bytes(targets[0]) in (value_of(size), value_of(size, 1))


def test_closing_ends_what_is_in_flight(driver: StoreDriver) -> None:
    size, count = 1 << 20, 32
    store = driver.open(space_of(size))
    keys = [f"k{i}" for i in range(count)]
    tickets = [store.submit_set(keys, [value_of(size)] * count) for _ in range(3)]
    outcome: list[object] = []

    def block() -> None:
        try:
            outcome.append(store.batch_get(keys, [bytearray(size) for _ in keys]))
        except errors.ClosedError as error:
            outcome.append(error)

    thread = threading.Thread(target=block)
    thread.start()
    started = clock.now_s()
    store.close()
    store.close()
    assert clock.now_s() - started < 10
    thread.join(20)
    assert not thread.is_alive()
    assert len(outcome) == 1
    for ticket in tickets:
        result = ticket.wait(20)
        assert result is not None
        assert set(result) <= {Status.OK, Status.CANCELLED, Status.UNAVAILABLE}
    with pytest.raises(errors.ClosedError):
        store.batch_exists(["a"])
    with pytest.raises(errors.ClosedError):
        store.submit_get(["a"], [bytearray(size)])
