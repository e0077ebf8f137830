"""The end of a process: with work in flight, with Ctrl-C, without close()."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from support import clock
from support.programs import Program, run_program
from support.pure import MIB, payload
from support.scripted import MiniStore, ScriptedServer, silent
from support.servers import TestServer


@pytest.fixture
def deaf() -> Iterator[ScriptedServer]:
    with ScriptedServer(silent(), MiniStore()) as server:
        yield server


START = """
import asyncio, os, signal, sys, threading, time
import kvferry
from kvferry.client.pure.client import PureRedisClient
PORT = int(sys.argv[1])
# No stall on a busy machine: what is said of one would be heard at the end.
PATIENT = {"timeout_s": 60, "connect_timeout_s": 60, "tuning": {"stall_timeout_s": 60}}
buffers = [bytearray(1 << 20) for _ in range(4)]
keys = ["a", "b", "c", "d"]
"""

SUBMITTED = """
client = kvferry.RedisClient(port=PORT, **PATIENT)
for _ in range(20):
    client.submit_batch_get(keys, [bytearray(1 << 20) for _ in keys])
    client.submit_batch_set(keys, [bytes(1 << 20) for _ in keys])
    client.submit_batch_exists(keys)
time.sleep(0.2)
"""
MANY = """
clients = [kvferry.RedisClient(port=PORT, **PATIENT) for _ in range(20)]
for client in clients:
    client.submit_batch_get(keys, [bytearray(1 << 20) for _ in keys])
"""
IN_A_THREAD = """
client = kvferry.RedisClient(port=PORT, **PATIENT)
for _ in range(8):
    target = lambda: client.batch_get(keys, [bytearray(1 << 20) for _ in keys], timeout_s=60)
    threading.Thread(target=target, daemon=True).start()
time.sleep(0.3)
"""
ASYNCIO = """
async def main():
    client = kvferry.AsyncRedisClient(port=PORT, **PATIENT)
    waiting = [asyncio.create_task(client.batch_get([key], [memory]))
               for key, memory in zip(keys, buffers)]
    await asyncio.sleep(0.2)
asyncio.run(main())
"""
ASYNCIO_LOOP_ABANDONED = """
async def forever(client):
    await client.batch_get(keys, buffers)
loop = asyncio.new_event_loop()
client = kvferry.AsyncRedisClient(port=PORT, **PATIENT)
task = loop.create_task(forever(client))
loop.run_until_complete(asyncio.sleep(0.2))
client.close()
loop.run_until_complete(asyncio.wait([task]))
assert isinstance(task.exception() or task.result(), (type(None), kvferry.KVFerryError))
loop.close()
"""
IN_A_CYCLE = """
client = kvferry.RedisClient(port=PORT, **PATIENT)
client.myself = client
client.submit_batch_get(keys, buffers)
del client
"""
CLOSED_AT_EXIT = """
import atexit
client = kvferry.RedisClient(port=PORT, **PATIENT)
atexit.register(client.close)
client.submit_batch_get(keys, buffers)
"""
UNUSED = "client = kvferry.RedisClient(port=PORT, **PATIENT)"


@pytest.mark.parametrize(
    "program",
    [
        SUBMITTED,
        MANY,
        IN_A_THREAD,
        ASYNCIO,
        ASYNCIO_LOOP_ABANDONED,
        IN_A_CYCLE,
        CLOSED_AT_EXIT,
        UNUSED,
    ],
    ids=[
        "submitted",
        "many clients",
        "in daemon threads",
        "asyncio",
        "asyncio without its loop",
        "in a cycle",
        "closed at exit",
        "unused",
    ],
)
def test_exit_with_work_in_flight(deaf: ScriptedServer, program: str) -> None:
    assert run_program(START + program, deaf.port, within_s=3) == ""


@pytest.mark.parametrize("ending", ["sys.exit(0)", "raise SystemExit", "os._exit(0)"])
def test_exit_by_other_integrations(deaf: ScriptedServer, ending: str) -> None:
    assert run_program(START + SUBMITTED + ending, deaf.port, within_s=3) == ""


def test_daemon_threads_at_work_when_the_process_ends(valkey: TestServer) -> None:
    """They run into the end of the interpreter at every point of a call, in turn."""
    program = """
client = kvferry.RedisClient(port=PORT, **PATIENT)
client.batch_set(keys, buffers)
def work():
    memory = [bytearray(1 << 20) for _ in keys]
    while True:
        client.batch_get(keys, memory)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(float(sys.argv[2]))
"""
    for turn in range(6):
        with Program(START + program, valkey.port, 0.05 + turn * 0.007) as running:
            running.process.communicate(timeout=200)
            assert running.process.returncode == 0


def test_a_server_that_is_away_delays_nobody() -> None:
    with ScriptedServer() as server:
        port = server.port
    quiet = "import logging; logging.getLogger('kvferry').setLevel(logging.ERROR)\n"
    assert run_program(START + quiet + SUBMITTED, port, within_s=3) == ""


# Ctrl-C.

INTERRUPTED = """
client = {client}
client.exists("k") if {warm} else None
try:
    print("ready", flush=True)
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
for memory in buffers:
    memory.append(0)    # BufferError while anything holds it
"""
NATIVE, PURE = "kvferry.RedisClient(port=PORT, **PATIENT)", "PureRedisClient(port=PORT, **PATIENT)"


@pytest.mark.parametrize(
    ("client", "call"),
    [
        (NATIVE, "client.batch_get(keys, buffers, timeout_s=60)"),
        (NATIVE, "client.batch_set(keys, buffers, timeout_s=60)"),
        (NATIVE, "client.batch_exists(keys, timeout_s=60)"),
        (NATIVE, "client.get('k', buffers[0])"),
        (
            NATIVE,
            "client.namespace('n', bytes(16), 1 << 20).batch_get(keys, buffers, timeout_s=60)",
        ),
        (PURE, "client.batch_get(keys, buffers, timeout_s=60)"),
    ],
    ids=["get", "set", "exists", "get one", "namespace", "pure"],
)
def test_ctrl_c_ends_a_blocking_call(deaf: ScriptedServer, client: str, call: str) -> None:
    source = START + INTERRUPTED.format(client=client, call=call, warm=False)
    with Program(source, deaf.port) as program:
        assert program.read_line() == "ready"
        time.sleep(0.2)
        program.interrupt()
        pressed = clock.now_s()
        assert program.read_line() == "interrupted"
        assert clock.now_s() - pressed < 0.5
        assert program.ends(within_s=2) == ""


def test_ctrl_c_ends_an_await(deaf: ScriptedServer) -> None:
    source = """
async def main():
    client = kvferry.AsyncRedisClient(port=PORT, **PATIENT)
    print("ready", flush=True)
    await client.batch_get(keys, buffers, timeout_s=60)
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
for memory in buffers:
    memory.append(0)
"""
    with Program(START + source, deaf.port) as program:
        assert program.read_line() == "ready"
        time.sleep(0.2)
        program.interrupt()
        pressed = clock.now_s()
        assert program.read_line() == "interrupted"
        assert clock.now_s() - pressed < 0.5
        assert program.ends(within_s=2) == ""


def test_a_client_outlives_ctrl_c(valkey: TestServer) -> None:
    """A handler that raises in the middle of calls: the next ones get the right bytes."""
    valkey.cli("SET", "k", payload(MIB))
    source = """
class Alarm(Exception): pass
def ring(*_): raise Alarm
signal.signal(signal.SIGALRM, ring)
client = kvferry.RedisClient(port=PORT, **PATIENT)
assert client.get("k", buffers[0])
right, rung = bytes(buffers[0]), 0
for turn in range(60):
    target = bytearray(1 << 20)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 + turn * 0.0001)
        while True:
            client.batch_get(["k"] * 40, [bytearray(1 << 20) for _ in range(40)])
    except Alarm:
        rung += 1
    assert client.get("k", target) and target == right
    target.append(0)
print(rung)
"""
    assert run_program(START + source, valkey.port, within_s=30) == "60\n"


def test_other_signals_do_not_end_a_call(deaf: ScriptedServer) -> None:
    """PEP 475: a handler that returns does not end what it interrupted."""
    source = """
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(time.monotonic()))
client = kvferry.RedisClient(port=PORT, **PATIENT)
sender = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
sender.start()
result = client.batch_get(["k"], buffers[:1], timeout_s=4)
ended = time.monotonic()
assert [status.name for status in result] == ["TIMEOUT"]
assert heard and heard[0] < ended - 0.5, "the handler waited for the call"
"""
    assert run_program(START + source, deaf.port, within_s=8) == ""
