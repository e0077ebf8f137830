"""fork(): the child has connections of its own, the parent does not notice."""

from __future__ import annotations

import pytest

from support.programs import run_program
from support.pure import MIB, payload
from support.scripted import MiniStore, ScriptedServer, silent
from support.servers import TestServer

START = """
import asyncio, gc, multiprocessing, os, sys, threading, time
import kvferry
from kvferry.client.pure.client import PureRedisClient
PORT, SIZE = int(sys.argv[1]), 1 << 20

def fork(work, leave=sys.exit):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        work()
        leave(7)
    return pid

def ended(pid):
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 7, f"the child ended with {code}"

def check(client, count=20):
    target = bytearray(SIZE)
    for index in range(count):
        key = "even" if index % 2 == 0 else "odd"
        assert client.get(key, target) is True
        assert target == VALUES[key]
    own = f"of {os.getpid()} {threading.get_ident()}"
    client.set(own, target)
    assert client.exists(own) and client.delete(own)

async def acheck(client, count=20):
    target = bytearray(SIZE)
    for index in range(count):
        key = "even" if index % 2 == 0 else "odd"
        assert await client.get(key, target) is True
        assert target == VALUES[key]

with PureRedisClient(port=PORT) as pure:
    VALUES = {"even": bytearray(SIZE), "odd": bytearray(SIZE)}
    for key, memory in VALUES.items():
        assert pure.get(key, memory)
client = kvferry.RedisClient(port=PORT)
"""

BEFORE_USE = """
child = fork(lambda: check(client))
check(client)
ended(child)
"""
AFTER_USE = """
check(client)
def work():
    check(client)
    assert client.stats()["connections_opened"] >= 1
    assert client.stats()["batches_running"] == 0
children = [fork(work) for _ in range(4)]
check(client, 60)
for child in children:
    ended(child)
check(client)
"""
LEFT_BY_THE_BACK_DOOR = """
check(client)
child = fork(lambda: check(client), os._exit)
check(client)
ended(child)
"""
UNUSED_IN_THE_CHILD = """
check(client)
ended(fork(lambda: None))
ended(fork(gc.collect))
ended(fork(client.close))
check(client)
"""
GRANDCHILD = """
check(client)
def work():
    check(client)
    ended(fork(lambda: check(client)))
    check(client)
ended(fork(work))
check(client)
"""
EVENT_FD = """
import select
def readable(*numbers):
    return [number in select.select([number], [], [], 10)[0] for number in numbers]
def silent(*numbers):
    return not select.select(numbers, [], [], 0)[0]
noted = client.event_fd()
batch_id = client.submit_batch_get(["even"], [bytearray(SIZE)])
assert readable(noted) == [True]
def work(depth=2):
    # Under that number nothing of the parent's can be seen or taken.
    assert silent(noted)
    try:
        os.eventfd_read(noted)
    except BlockingIOError:
        pass
    with select.epoll() as poller:
        poller.register(noted, select.EPOLLIN)  # before this process has a client
        target = bytearray(SIZE)
        mine = client.submit_batch_get(["odd"], [target])
        assert readable(noted, client.event_fd()) == [True, True]
        assert poller.poll(10)
    [(done, result)] = client.drain_completions()
    assert done == mine and result.ok and target == VALUES["odd"]
    assert silent(noted, client.event_fd())
    if depth:
        mine = client.submit_batch_exists(["odd"])
        assert readable(noted) == [True]
        ended(fork(lambda: work(depth - 1)))
        assert readable(noted, client.event_fd()) == [True, True]
        assert [done for done, _ in client.drain_completions()] == [mine]
ended(fork(work))
assert readable(noted) == [True]
assert [done for done, _ in client.drain_completions()] == [batch_id]
"""
EVENT_FD_UNDER_ASYNCIO = """
import select
aclient = kvferry.AsyncRedisClient(port=PORT)
async def main():
    await acheck(aclient)
    noted = aclient.event_fd()
    asked = asyncio.create_task(aclient.batch_exists(["odd"]))
    await asyncio.sleep(0)
    assert select.select([noted], [], [], 10)[0]
    def work():
        try:
            os.eventfd_read(noted)
        except BlockingIOError:
            os._exit(7)
    ended(fork(work, lambda _: os._exit(1)))
    assert (await asyncio.wait_for(asked, 10)).ok
    await aclient.aclose()
asyncio.run(main())
"""
NO_DESCRIPTORS_LEFT = """
import logging, resource
logging.disable()  # the parent's client has none either, meanwhile
noted = client.event_fd()
batch_id = client.submit_batch_get(["even"], [bytearray(SIZE)])
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
def work():
    try:
        os.eventfd_read(noted)
    except OSError:
        os._exit(7)
pid = fork(work)
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
ended(pid)
while not (done := client.drain_completions()):
    time.sleep(0.001)
assert [finished for finished, _ in done] == [batch_id]
"""
IN_FLIGHT = """
targets = [bytearray(SIZE) for _ in range(200)]
keys = ["even", "odd"] * 100
for _ in range(5):
    batch_id = client.submit_batch_get(keys, targets)
    children = [fork(lambda: check(client)), fork(lambda: check(client))]
    while not (done := client.drain_completions()):
        time.sleep(0.001)
    assert [(finished, result.ok) for finished, result in done] == [(batch_id, True)]
    assert all(target == VALUES[key] for key, target in zip(keys, targets))
    targets[0][:] = bytes(SIZE)
    for child in children:
        ended(child)
"""
FROM_A_THREAD = """
stop = threading.Event()
failures = []
def busy():
    try:
        while not stop.is_set():
            check(client, 2)
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=busy) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(8):
    time.sleep(0.01)
    ended(fork(lambda: check(client)))
stop.set()
for thread in threads:
    thread.join()
assert not failures, failures
"""
THREADS_IN_THE_CHILD = """
check(client)
def work():
    failures = []
    def busy():
        try:
            check(client)
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=busy) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
ended(fork(work))
"""
NAMESPACE = """
space = client.namespace("n", bytes(range(16)), SIZE)
space.set("k", VALUES["odd"])
def work():
    target = bytearray(SIZE)
    assert space.get("k", target) and target == VALUES["odd"]
ended(fork(work))
work()
"""
CLOSED = """
client.close()
def work():
    try:
        client.exists("k")
    except kvferry.base.errors.ClosedError:
        return
    os._exit(1)
ended(fork(work))
"""
POOL = """
def job(number):
    check(client, 4)
    return number
check(client)
with multiprocessing.get_context("fork").Pool(3) as pool:
    assert pool.map(job, range(12)) == list(range(12))
    pool.close()
    pool.join()
check(client)
"""
PURE = """
pure = PureRedisClient(port=PORT)
check(pure)
def work():
    with pure:
        check(pure)
children = [fork(work) for _ in range(3)]
check(pure, 60)
for child in children:
    ended(child)
pure.close()
"""
ASYNCIO_BETWEEN_LOOPS = """
aclient = kvferry.AsyncRedisClient(port=PORT)
asyncio.run(acheck(aclient))
child = fork(lambda: asyncio.run(acheck(aclient)))
asyncio.run(acheck(aclient))
ended(child)
"""
ASYNCIO_IN_A_LOOP = """
async def main():
    aclient = kvferry.AsyncRedisClient(port=PORT)
    await acheck(aclient)
    for work in (lambda: None, aclient.close, lambda: asyncio.run(acheck(aclient))):
        flying = asyncio.create_task(acheck(aclient, 40))
        await asyncio.sleep(0)
        # The loop's poller is shared with the child: its exit must not take our descriptor out.
        ended(fork(work, os._exit if work.__name__ != "close" else leave))
        await asyncio.wait_for(flying, 60)
    await aclient.aclose()

def leave(code):  # the way of sys.exit, which cannot leave a running loop
    import kvferry.client.handle as handle
    handle._close_all()
    os._exit(code)
asyncio.run(main())
"""

PROGRAMS = {
    name.lower().replace("_", " "): source
    for name, source in dict(globals()).items()
    if isinstance(source, str) and name.isupper() and name != "START"
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_fork(valkey: TestServer, program: str) -> None:
    valkey.cli("SET", "even", payload(MIB, 0))
    valkey.cli("SET", "odd", payload(MIB, 1))
    assert run_program(START + program, valkey.port, within_s=20) == ""


def test_connections_of_the_parent_stay_its_own(valkey: TestServer) -> None:
    """The child's descriptors of the parent's sockets carry no byte of the child."""
    source = """
import os, sys, kvferry
client = kvferry.RedisClient(port=int(sys.argv[1]), tuning={"client_name": f"of-{os.getpid()}"})
client.set("k", b"v")
if os.fork() == 0:
    other = {"client_name": "of-child"}
    client.config = client.config.__class__(port=client.config.port, tuning=other)
    assert client.get("k", bytearray(1))
    sys.exit()
os.wait()
print(client.stats()["connections_lost"], client.stats()["commands_retried"])
assert client.get("k", bytearray(1))
"""
    assert run_program(source, valkey.port) == "0 0\n"


def test_a_child_of_a_parent_that_waits_is_free_at_once() -> None:
    """The parent's batch never ends; the child neither waits for it nor ends it."""
    source = """
import os, sys, time, kvferry
from support.clock import now_s
patient = {"stall_timeout_s": 60}
client = kvferry.RedisClient(port=int(sys.argv[1]), timeout_s=60, tuning=patient)
memory = bytearray(1000)
batch_id = client.submit_batch_get(["k"], [memory])
time.sleep(0.2)
started = now_s()
if os.fork() == 0:
    sys.exit()
os.wait()
assert now_s() - started < 1
assert client.drain_completions() == []
client.cancel(batch_id)
deadline = time.monotonic() + 20
while not (done := client.drain_completions()) and time.monotonic() < deadline:
    time.sleep(0.01)
print([(finished == batch_id, list(map(str, result))) for finished, result in done])
"""
    with ScriptedServer(silent(), MiniStore()) as deaf:
        assert run_program(source, deaf.port, within_s=5) == "[(True, ['7'])]\n"
