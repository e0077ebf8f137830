"""A cache keeps no token waiting: neither while its store takes what it can, nor while it hangs.

The time between one token and the next, of one request alone, turn by turn: without a cache, with
one, and without one while a stranger writes to the same store as fast. That is what the store and
the way to it take from the processors, whoever writes. The tiny model on a processor makes a token
in a few milliseconds, so that anything that a step does for the cache shows.

Beside a store that hangs nothing else is at work, so 5 % are to be seen. But an engine against
another one of the same kind, in runs of 200 tokens, differs by up to a half. So two of each make
tokens in turn, some tenths of a second each, and what a thread waited for a processor does not
count. How many rounds there are is fixed beforehand, and the verdict is that of every bar: it falls
short if the interval as a whole is above it, and is undecided if only a part of it and the value.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles

import pytest

from engines.conftest import VllmVenv, prompt
from engines.integrations import connector
from kvferry_lab.bench.intervals import Interval, percentile
from kvferry_lab.engines.engine_process import EngineProcess
from support.proxy import FaultProxy
from support.servers import TestServer, start_server
from support.stamps import until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

ROUNDS, TOKENS = 9, 200
PROMPTS = 4  # 48 MB of KV
LATER = 1.05  # at the 99th percentile, the median of all rounds
NOISE = 0.1  # what rounds without a cache differ among each other on a machine with other work
MB = 1_000_000
# While prompts are computed, so that most of their KV is still to be written; and while tokens are
# made, which is more than the engine can compute.
HELD_BACK, LET_GO = 4 * MB, 25 * MB
# Beside a store that hangs: tokens of a burst, bursts of a round, and rounds.
BURST, BURSTS, ROUNDS_HUNG = 50, 12, 8
PAIRS = 2  # of engines: one process is quicker than another of its kind, by some percent
OURS = 0.01  # of a processor, by the cache's own threads
STRANGER = """
import socket
way = socket.create_connection(({host!r}, {port}))
size = 786432
head = b"*3\\r\\n$3\\r\\nSET\\r\\n$8\\r\\nstranger\\r\\n$%d\\r\\n" % size
while True:
    way.sendall(head + bytes(size) + b"\\r\\n")
    way.recv(64)
"""


def received(store: TestServer) -> int:
    """Bytes that the store has got."""
    lines = store.cli("INFO", "stats").decode().splitlines()
    return next(int(line.split(":")[1]) for line in lines if "total_net_input_bytes" in line)


@contextmanager
def stranger(store: TestServer, proxy: FaultProxy) -> Iterator[None]:
    """Somebody who writes to the store, on the same way."""
    before = received(store)
    program = STRANGER.format(host=proxy.host, port=proxy.port)
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        until(lambda: received(store) > before + MB, 30)
        yield
    finally:
        process.kill()
        process.wait()


def test_a_store_that_is_written_to_delays_no_token(
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    open_engine: Callable[..., EngineProcess],
) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(start_server("valkey"))
        proxy = stack.enter_context(FaultProxy(store.host, store.port))
        plain, cached = opened(stack, proxy, newest_vllm, model, open_engine)
        engines = {"plain": plain, "cached": cached, "stranger": plain}
        proxy.up.shared = True
        seen: dict[str, list[float]] = {name: [] for name in engines}
        written: list[int] = []
        for turn in range(ROUNDS):
            for name, engine in engines.items():
                proxy.up.bandwidth_bytes_per_s = HELD_BACK
                engine.generate([prompt(3000, 100 * turn + n) for n in range(PROMPTS)], 1)
                proxy.up.bandwidth_bytes_per_s = LET_GO
                with ExitStack() as beside:
                    if name == "stranger":
                        beside.enter_context(stranger(store, proxy))
                    before = received(store)
                    values = {"ids": prompt(40, turn), "tokens": TOKENS}
                    waits = engine.call("token_times:between_tokens", **values)
                    if name == "cached":
                        written.append(received(store) - before)
                seen[name].append(quantiles(waits, n=100)[98])
    p99_s = {name: median(each) for name, each in seen.items()}
    print("\np99 between tokens: ", {name: p99_s[name] / p99_s["plain"] for name in p99_s}, seen)
    print(f"written meanwhile: {written}")
    assert median(written) > 5 * MB  # else nothing was tried
    assert p99_s["cached"] <= (LATER + NOISE) * max(p99_s["plain"], p99_s["stranger"])


def test_a_store_that_hangs_delays_no_token(
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    open_engine: Callable[..., EngineProcess],
) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(start_server("valkey"))
        proxy = stack.enter_context(FaultProxy(store.host, store.port))
        pairs = [opened(stack, proxy, newest_vllm, model, open_engine) for _ in range(PAIRS)]
        engines = [engine for pair in pairs for engine in pair]
        proxy.black_hole()
        seen: dict[EngineProcess, list[list[float]]] = {engine: [] for engine in engines}
        for turn in range(ROUNDS_HUNG):
            for engine in engines:
                engine.generate([prompt(3000, 100 * turn + n) for n in range(PROMPTS)], 1)
                engine.call("token_times:begin", ids=prompt(40, turn), tokens=BURST * BURSTS)
            began, used_s = time.monotonic(), threads_s(pairs)
            for _ in range(BURSTS):
                engines.append(engines.pop(0))
                for engine in engines:
                    waits = engine.call("token_times:some_tokens", tokens=BURST)
                    seen[engine].append([waited_s for _, waited_s in waits])
            # What they may take from tokens.
            assert threads_s(pairs) - used_s <= OURS * PAIRS * (time.monotonic() - began)
    plain, cached = ([run for e in kind for run in seen[e]] for kind in zip(*pairs, strict=True))
    p99 = Interval.of_ratio(cached, plain, lambda each: percentile(each, 99))
    p50 = Interval.of_ratio(cached, plain, median)
    same = Interval.of_ratio(
        seen[pairs[0][0]], seen[pairs[1][0]], lambda each: percentile(each, 99)
    )
    print(f"\nbetween tokens: p50 {p50}, p99 {p99}; two without a cache: {same}")
    assert p99.low <= LATER
    if p99.middle > LATER:
        pytest.skip(f"no verdict on {LATER}: the machine has other work, and p99 is {p99}")


def threads_s(pairs: Sequence[tuple[EngineProcess, EngineProcess]]) -> float:
    """What the threads of caches have used of processors."""
    used = [cached.call("token_times:processor_s", of="kvferry") for _, cached in pairs]
    return float(sum(used))


def opened(
    stack: ExitStack,
    proxy: FaultProxy,
    vllm: VllmVenv,
    model: Callable[..., Path],
    open_engine: Callable[..., EngineProcess],
) -> tuple[EngineProcess, EngineProcess]:
    """An engine without a cache and one with."""
    settings = {"kvferry.remote_url": proxy.url, "kvferry.max_local_cpu_size": 0.25}
    transfer = connector("KvferryConnector", settings)
    plain = open_engine(stack, vllm, model("tiny"), None)
    return plain, open_engine(stack, vllm, model("tiny"), transfer)
