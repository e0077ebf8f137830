"""close() with work in flight, from wherever it comes; and what remains of a client after it."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kvferry import RedisClient, Status
from kvferry.base import errors
from kvferry.config import ClientConfig
from support import clock
from support.pure import MIB, payload
from support.scripted import MiniStore, ScriptedServer, silent
from support.servers import TestServer
from support.stamps import until, within
from support.tuned import tuned


@pytest.fixture
def deaf() -> Iterator[ScriptedServer]:
    with ScriptedServer(silent(), MiniStore()) as server:
        yield server


def patient(server: ScriptedServer) -> RedisClient:
    """A client whose calls wait until the test ends them, however busy the machine is."""
    limits = dict.fromkeys(("timeout_s", "connect_timeout_s", "stall_timeout_s"), 60.0)
    return RedisClient(server.host, server.port, **tuned(ClientConfig, **limits))


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def io_thread_ids() -> set[str]:
    """Threads of native clients in this process."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if (task / "comm").read_text().startswith("kvferry"):
                found.add(task.name)
    return found


def io_threads() -> int:
    return len(io_thread_ids())


def settles(count: Callable[[], int], limit: int) -> None:
    """Wait until the count is down to the limit: the kernel takes a moment to end a thread."""
    deadline = clock.now_s() + 3
    while (now := count()) > limit:
        assert clock.now_s() < deadline, f"{now}, not {limit}"
        time.sleep(0.01)


def in_threads(
    count: int, work: Callable[[int], object]
) -> tuple[list[threading.Thread], list[object]]:
    """Start threads; the outcome of each, result or exception, is appended to the list."""
    outcomes: list[object] = []

    def run(number: int) -> None:
        try:
            outcomes.append(work(number))
        except BaseException as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads, outcomes


def test_blocking_calls_end_as_cancelled(deaf: ScriptedServer) -> None:
    client = patient(deaf)
    targets = [bytearray(MIB) for _ in range(20)]
    threads, outcomes = in_threads(20, lambda n: list(client.batch_get(["k"], [targets[n]])))
    one, single = in_threads(1, lambda _: client.get("k", bytearray(1)))
    until(lambda: client.stats()["batches_running"] == 21, 10)
    time.sleep(0.1)
    assert outcomes == single == []
    with within(1):
        client.close()
        for thread in (*threads, *one):
            thread.join(30)
    assert outcomes == [[Status.CANCELLED]] * 20
    assert [type(outcome) for outcome in single] == [errors.BatchCancelledError]
    for target in targets:
        target.append(0)


def test_close_ends_dials_too() -> None:
    """Nobody listens, nobody answers the greeting, nobody knows the name: close does not wait."""
    with ScriptedServer(silent(b"HELLO"), MiniStore()) as mute, ScriptedServer() as gone:
        gone.close()
        for host, port in ((mute.host, mute.port), (gone.host, gone.port), ("nowhere.invalid", 1)):
            client = RedisClient(host, port)
            client.submit_batch_exists(["k"])
            time.sleep(0.1)
            with within(1):
                client.close()
            assert len(client.drain_completions()) == 1


def test_close_races_with_calls() -> None:
    """Whatever the moment, a call returns or raises, and a submission completes once."""
    with ScriptedServer(MiniStore()) as server:
        for turn in range(100):
            client = RedisClient(server.host, server.port, connections=1)
            submitted: list[int] = []

            def work(number: int, client: RedisClient = client, ids: list[int] = submitted) -> None:
                while True:
                    client.batch_exists(["k"])
                    if number % 2:
                        ids.append(client.submit_batch_exists(["k"]))

            threads, outcomes = in_threads(4, work)
            time.sleep(0.0002 * (turn % 10))
            client.close()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive(), "a call does not return"
            assert all(isinstance(outcome, errors.ClosedError) for outcome in outcomes), outcomes
            completed = [batch_id for batch_id, _ in client.drain_completions()]
            assert sorted(completed) == sorted(submitted)


def test_close_from_many_threads(deaf: ScriptedServer) -> None:
    client = patient(deaf)
    client.submit_batch_exists(["k"])
    with within(2):
        threads, outcomes = in_threads(20, lambda _: client.close())
        for thread in threads:
            thread.join(30)
    assert outcomes == [None] * 20


def test_a_block_that_raises_closes(deaf: ScriptedServer) -> None:
    client = patient(deaf)
    with pytest.raises(errors.DeadlineExceeded), client:
        client.batch_exists(["k"], timeout_s=0.05).raise_for_errors()
    with pytest.raises(errors.ClosedError):
        client.exists("k")


# What remains.


def test_a_client_that_is_dropped_ends_its_threads(valkey: TestServer) -> None:
    gc.collect()
    fds, before = open_fds(), io_thread_ids()  # of which some may be about to end
    client = RedisClient(valkey.host, valkey.port, workers=3)
    client.set("k", b"v")
    ours = io_thread_ids() - before
    assert len(ours) == 3 + 2  # one has the lane of small commands, one asks for a Unix socket
    assert open_fds() > fds
    del client
    settles(lambda: len(io_thread_ids() & ours), 0)
    settles(open_fds, fds)


def test_a_client_dropped_with_work_in_flight_ends_its_threads(deaf: ScriptedServer) -> None:
    gc.collect()
    threads, target = io_threads(), bytearray(MIB)
    client = patient(deaf)
    client.submit_batch_get(["k"], [target])
    time.sleep(0.1)
    with within(1):
        del client
    settles(io_threads, threads)
    target.append(0)


def test_a_client_in_a_cycle_is_collected(valkey: TestServer) -> None:
    gc.collect()
    threads = io_threads()
    client = RedisClient(valkey.host, valkey.port)
    client.exists("k")
    client.__dict__["myself"] = client
    del client
    gc.collect()
    settles(io_threads, threads)


def test_many_clients_come_and_go(valkey: TestServer) -> None:
    valkey.cli("SET", "k", payload(1000))
    gc.collect()
    fds, threads = open_fds(), io_threads()
    target = bytearray(1000)
    for turn in range(150):
        client = RedisClient(valkey.host, valkey.port, workers=1 + turn % 3)
        if turn % 3:
            assert client.get("k", target)
        if turn % 2:
            client.close()
    del client
    settles(io_threads, threads)
    settles(open_fds, fds)
    clients = [RedisClient(valkey.host, valkey.port, connections=2) for _ in range(40)]
    for each in clients:
        assert each.get("k", target)
    for each in clients:
        each.close()
    clients.clear()
    del each
    settles(io_threads, threads)
    settles(open_fds, fds)
    connected = lambda: int(valkey.info("clients")["connected_clients"])  # noqa: E731
    settles(connected, 1)  # the one that asks
