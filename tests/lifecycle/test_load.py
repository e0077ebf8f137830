"""Many threads, few descriptors, long use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.programs import Program, run_program
from support.proxy import FaultProxy
from support.pure import payload
from support.scripted import MiniStore, ScriptedServer, truncated
from support.servers import TestServer


def test_a_thousand_threads_share_a_client(valkey: TestServer) -> None:
    """Each has a value of its own and checks every byte of it."""
    source = """
import random, sys, threading
import kvferry
client = kvferry.RedisClient(port=int(sys.argv[1]))
failures, gate = [], threading.Barrier(1001)
def work(number):
    value = random.Random(number).randbytes(20_000 + number)
    target, other = bytearray(len(value)), bytearray(len(value))
    try:
        gate.wait()
        client.set(f"k{number}", value)
        assert client.get(f"k{number}", target) and target == value
        result = client.batch_get([f"none{number}", f"k{number}"], [bytearray(1), other])
        assert [int(status) for status in result] == [1, 0] and other == value
        assert client.delete(f"k{number}")
    except BaseException as error:
        failures.append((number, repr(error)))
threading.stack_size(256 << 10)
threads = [threading.Thread(target=work, args=(number,)) for number in range(1000)]
for thread in threads:
    thread.start()
gate.wait()
for thread in threads:
    thread.join()
assert not failures, failures[:3]
print(client.stats()["batches_running"], client.stats()["connections_lost"])
"""
    assert run_program(source, valkey.port, within_s=30) == "0 0\n"
    assert valkey.cli("DBSIZE") == 0


# Descriptors.

SHORT_OF_DESCRIPTORS = """
import os, resource, sys, time
import kvferry
from kvferry import errors
PORT = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
hogs = []

def hog(leave):
    try:
        while True:
            hogs.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for _ in range(leave):
            os.close(hogs.pop())

def release():
    while hogs:
        os.close(hogs.pop())

def recovers(client):
    deadline = time.monotonic() + 30
    while (status := client.batch_exists(["k"])[0].name) != "OK":
        assert status == "UNAVAILABLE", status
        assert time.monotonic() < deadline, client.stats()
        time.sleep(0.02)
    target = bytearray(1000)
    assert client.get("k", target) and target == bytes(range(250)) * 4
"""


@pytest.mark.parametrize("left", range(14))
def test_a_client_opened_without_descriptors(valkey: TestServer, left: int) -> None:
    """It cannot be made, and says so; or it answers UNAVAILABLE, and recovers. Nothing leaks."""
    valkey.cli("SET", "k", bytes(range(250)) * 4)
    source = (
        SHORT_OF_DESCRIPTORS
        + """
import kvferry.client.sync, encodings.idna    # what is loaded on first use
before = len(os.listdir("/proc/self/fd"))
hog(int(sys.argv[2]))
try:
    client = kvferry.RedisClient("127.0.0.1", PORT)
except errors.SystemResourceError:
    client = None
else:
    result = client.batch_exists(["k"], timeout_s=20)
    assert result[0].name in ("OK", "UNAVAILABLE"), result    # and not TIMEOUT
release()
if client is None:
    client = kvferry.RedisClient("127.0.0.1", PORT)
recovers(client)
client.close()
del client
assert len(os.listdir("/proc/self/fd")) == before
"""
    )
    source = "import logging; logging.disable()\n" + source
    assert run_program(source, valkey.port, left, within_s=45) == ""


def test_a_client_that_loses_its_connections_without_descriptors(
    valkey: TestServer, proxied: Callable[[TestServer], FaultProxy]
) -> None:
    """The server is gone and back, while every descriptor that comes free is taken at once."""
    valkey.cli("SET", "k", bytes(range(250)) * 4)
    source = (
        "import logging; logging.disable()\n"
        + SHORT_OF_DESCRIPTORS
        + """
client = kvferry.RedisClient("127.0.0.1", PORT)
recovers(client)
hog(0)
print("hungry", flush=True)
deadline = time.monotonic() + 30
while client.batch_exists(["k"])[0].name == "OK":
    hog(0)
    assert time.monotonic() < deadline, "nobody killed the connections"
print("lost", flush=True)
started = time.monotonic()
while time.monotonic() - started < 0.5:
    hog(0)
    result = client.batch_get(["k"], [bytearray(1000)])
    assert result[0].name in ("OK", "UNAVAILABLE"), result
release()
recovers(client)
"""
    )
    proxy = proxied(valkey)
    with Program(source, proxy.port) as program:
        assert program.read_line() == "hungry"
        proxy.refuse()
        proxy.cut_now()
        assert program.read_line() == "lost"  # else it may be served again before it looks
        proxy.accept()
        assert program.ends(within_s=45) == ""


# Growth.

GROWTH = """
import asyncio, gc, os, sys, time
import kvferry
PORT = int(sys.argv[1])

def rss_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def counts():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

def becomes(condition):
    ends = time.monotonic() + 20
    while not condition() and time.monotonic() < ends:
        time.sleep(0.01)

def watched(turn, warm_up, turns, up=8):
    for _ in range(warm_up):
        turn()
    becomes(lambda: client.stats()["connections_up"] >= up)  # else there would be more behind it
    gc.collect()
    rss, before = rss_bytes(), counts()
    for _ in range(turns):
        turn()
    gc.collect()
    is_flat = lambda: counts() == before if up else max(counts()) < 40
    becomes(is_flat)
    assert is_flat(), (counts(), before)
    growth = rss_bytes() - rss
    assert growth < 2 << 20, f"{growth} bytes more"

keys = [f"k{index}" for index in range(16)]
memory = [bytearray(5000) for _ in keys]
wrong = [bytearray(4999) for _ in keys]
"""


def test_ten_thousand_batches_leave_nothing(valkey: TestServer) -> None:
    source = (
        GROWTH
        + """
client = kvferry.RedisClient(port=PORT, same_host="tcp")  # they stay where they are
space = client.namespace("n:", bytes(16), 5000)
small = bytes(5000)
def turn():
    assert client.batch_set(keys, memory).ok
    assert client.batch_get(keys, memory).ok
    assert not client.batch_get(["none"] * 16, memory, prefix=True).ok
    assert not client.batch_get(keys, wrong).ok
    assert client.batch_exists(keys).ok
    assert space.batch_set(keys, memory).ok
    assert space.batch_get(keys, memory).ok
    client.submit_batch_get(keys, memory)
    client.cancel(client.submit_batch_get(keys, wrong))
    try:
        client.batch_get(["a", "b"], [memory[0], memory[0]])
    except kvferry.KVFerryError:
        pass
    client.drain_completions()
watched(turn, 300, 1000)
"""
    )
    assert run_program(source, valkey.port, within_s=30) == ""


def test_asyncio_batches_leave_nothing(valkey: TestServer) -> None:
    source = (
        GROWTH
        + """
loop = asyncio.new_event_loop()
client = kvferry.AsyncRedisClient(port=PORT, same_host="tcp")
async def several():
    assert (await client.batch_exists(["none"]))[0].name == "MISS"
    await client.batch_set(keys, memory)
    task = asyncio.create_task(client.batch_get(keys, wrong))
    await asyncio.sleep(0)
    task.cancel()
    results = await asyncio.gather(
        *(client.get(key, target) for key, target in zip(keys, memory)),
        task, return_exceptions=True)
    assert results[:-1] == [True] * 16, results
watched(lambda: loop.run_until_complete(several()), 100, 400)
loop.run_until_complete(client.aclose())
loop.close()
"""
    )
    assert run_program(source, valkey.port, within_s=30) == ""


def test_large_values_leave_nothing(valkey: TestServer) -> None:
    valkey.cli("SET", "k", payload(1 << 20))
    source = (
        GROWTH
        + """
client = kvferry.RedisClient(port=PORT, same_host="tcp")
space = client.namespace("n:", bytes(16), 9 << 20)
target, large = bytearray(1 << 20), bytearray(9 << 20)
def turn():
    assert not client.exists("none")
    assert client.get("k", target)
    space.set("v", large)
    assert space.get("v", large)
watched(turn, 40, 60)
"""
    )
    assert run_program(source, valkey.port, within_s=30) == ""


def test_failures_leave_nothing() -> None:
    """A server that ends each connection in the middle of a value, again and again."""
    source = (
        "import logging; logging.disable()\n"
        + GROWTH
        + """
tuning = {"reconnect_min_s": 0.001, "reconnect_max_s": 0.002}
client = kvferry.RedisClient("127.0.0.1", PORT, tuning=tuning)
target = bytearray(100_000)
def turn():
    assert client.batch_get(["k"], [target])[0].name == "UNAVAILABLE"
watched(turn, 100, 200, up=0)
"""
    )
    with ScriptedServer(truncated(bytes(100_000), 50_000), MiniStore()) as server:
        assert run_program(source, server.port, within_s=30) == ""
