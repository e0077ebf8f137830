"""Threads of the cache server: each engine process has its share, and the queues take turns."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from kvferry.rpc.fair_pool import FairJob, FairPool
from support.stamps import until


class Hung:
    """Work that goes on until it is let go; what has begun is in `began`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.began: list[tuple[str, int]] = []

    def job(self, who: str, index: int = 0) -> FairJob:
        def work() -> None:
            self.began.append((who, index))
            assert self.go.wait(30)

        return FairJob(who, work)


@pytest.fixture
def hung() -> Iterator[Hung]:
    hung = Hung()
    yield hung
    hung.go.set()


@pytest.fixture
def pool(hung: Hung) -> Iterator[FairPool]:
    pool = FairPool(16, "test-turns", jobs_max=100)
    yield pool
    hung.go.set()
    pool.close()


def test_who_comes_finds_a_thread_however_much_another_one_wants(
    pool: FairPool, hung: Hung
) -> None:
    for _ in range(80):
        assert pool.put(hung.job("greedy"))
    assert pool.put(hung.job("second"))
    assert pool.put(hung.job("third"))
    until(lambda: len(hung.began) == 10, 10)
    assert (hung.began.count(("greedy", 0)), pool.waiting) == (8, 72)


def test_queues_take_turns(pool: FairPool, hung: Hung) -> None:
    running = [hung.job("greedy") for _ in range(8)]
    for job in running:
        pool.put(job)
    for index in range(3):
        pool.put(hung.job("greedy", index))
    for index in range(5):
        pool.put(hung.job("modest", index))
    until(lambda: len(hung.began) == 12, 30)  # half of the rest is for the second one
    assert sum(who == "modest" for who, _ in hung.began) == 4
    for job in running:
        pool.over(job)
    until(lambda: len(hung.began) == 16, 30)
    assert pool.waiting == 0
    assert {("modest", index) for index in range(5)} <= set(hung.began)


def test_what_nobody_waits_for_is_left_out(pool: FairPool, hung: Hung) -> None:
    running = [hung.job("one", index) for index in range(8)]
    for job in running:
        pool.put(job)
    waits = hung.job("one", 100)
    pool.put(waits)
    assert pool.abandon(waits)
    assert not pool.abandon(running[0])
    for job in running:
        pool.over(job)
    pool.put(hung.job("one", 101))
    until(lambda: ("one", 101) in hung.began, 10)
    assert ("one", 100) not in hung.began
    assert pool.waiting == 0


def test_a_queue_has_a_limit(pool: FairPool, hung: Hung) -> None:
    taken = sum(pool.put(hung.job("one")) for _ in range(200))
    assert taken == 108  # eight have begun


def test_what_a_job_holds_goes_when_it_has_ended_without_the_collector(pool: FairPool) -> None:
    """Also where the work names its job, as that of a dispatcher does."""
    held = Hung()
    gone, job = weakref.ref(held), FairJob("one", lambda: None)

    def work(held: Hung = held, job: FairJob = job) -> None:
        held.began.append(("one", 0))

    job.work = work
    gc.disable()
    try:
        assert pool.put(job)
        del held, job, work
        until(lambda: gone() is None, 10)
    finally:
        gc.enable()
