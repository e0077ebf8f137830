"""Threads of servers, controllers, their clients and programs, when their work raises."""

from __future__ import annotations

import asyncio
import signal
import threading
import urllib.request
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

import pytest

from kvferry.base import process as _process
from kvferry.base.threads import Guarded
from kvferry.cache.tiered_cache import TieredCache
from kvferry.config.stores import StoreConfig
from kvferry.http.listener import HttpListener
from kvferry.rpc.fair_pool import FairJob, FairPool
from kvferry.server import AsyncClient, Client
from kvferry.server import run as server_run
from kvferry.server.client.attachment import Attachment
from kvferry.server.client.session_thread import SessionThread
from kvferry.server.http.prefetch import Prefetches, _Job
from kvferry.server.memory.pools import Pools
from kvferry.server.sessions import shard
from kvferry.server.sessions.store_watch import StoreWatch
from kvferry.sharing.controller import run as controller_run
from kvferry.sharing.controller.controller import Controller
from kvferry.sharing.controller.shared_directory import SharedDirectory
from kvferry.sharing.membership import Command, Reporter
from support import clock
from support.cache_server import running
from support.engines import CHUNK, IDENTITY, expected, prompt
from support.holdings import FakeCache, config, controller, hashes, reporting
from support.stamps import until
from support.thread_faults import LIMIT_S, Fault, scenario

TOKENS = prompt(4 * CHUNK, seed=1)
NOWHERE = "127.0.0.1:1"


def works(client: Client) -> bool:
    """Whether chunks go through the server's memory."""
    client.store(TOKENS, expected(TOKENS))
    hit = client.retrieve(TOKENS)
    pages = [bytes(page) for page in hit.pages]
    return hit.release() and pages == [chunk.tobytes() for chunk in expected(TOKENS)]


def files(fault: Fault) -> StoreConfig:
    return StoreConfig.of(type="fs", base_path=str(fault.folder), max_capacity_gb=1)


# --- The cache server ---


@scenario("open")
def opening_a_store_fails(fault: Fault) -> None:
    """The server goes on with memory, and says why it has no store."""
    fault.breaks(TieredCache, "open_store")
    with (
        running(fault.folder, cache={"stores": (files(fault),)}) as server,
        Client(IDENTITY, server.config.endpoints[0]) as client,
    ):
        fault.met()
        until(lambda: works(client), LIMIT_S)


@scenario("open")
def what_follows_the_stores_fails(fault: Fault) -> None:
    fault.breaks(shard.IdentityShard, "_open")
    with (
        running(fault.folder) as server,
        Client(IDENTITY, server.config.endpoints[0]) as client,
    ):
        fault.met()
        until(lambda: works(client), LIMIT_S)


@scenario("watch")
def asking_a_store_fails(fault: Fault) -> None:
    store = files(fault)
    fault.breaks(StoreWatch, "_note")
    watch = StoreWatch([store], list)
    watch.start()
    fault.met(2)
    fault.over()
    until(lambda: watch.status().get(store.name, {}).get("available"), LIMIT_S)
    watch.stop()


@scenario("work")
def work_for_an_engine_fails(fault: Fault) -> None:
    pool = FairPool(1, "kvferry-test-turns")
    done = threading.Event()
    pool.put(FairJob("one", fault()))
    fault.met()
    pool.over(FairJob("one", done.set))  # as the loop says when it hears of it
    pool.put(FairJob("two", done.set))
    assert done.wait(LIMIT_S)
    pool.close()


@scenario("pages")
def backing_pages_fails(fault: Fault) -> None:
    fault.breaks(Pools, "_grow")
    with (
        running(fault.folder, cache={"prefault": True}) as server,
        Client(IDENTITY, server.config.endpoints[0]) as client,
    ):
        fault.met(2)
        fault.over()
        until(lambda: works(client), LIMIT_S)


@scenario("prefetch")
def a_prefetch_fails(fault: Fault) -> None:
    """Who waits for it hears that, and the next one runs."""
    fault.breaks(Prefetches, "_one")
    prefetches = Prefetches()
    jobs = [_Job(str(n), cast(Any, None), [] if n else ["a file"], None) for n in range(2)]
    prefetches._begin(jobs[0])
    assert jobs[0].done.wait(LIMIT_S)
    assert jobs[0].state == "stopped"
    prefetches._begin(jobs[1])
    assert jobs[1].done.wait(LIMIT_S)
    assert jobs[1].state == "done"
    prefetches.close()


class Stopping:
    """A server, as whoever hears signals sees it."""

    endpoints: tuple[str, ...] = ()

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    @property
    def ready(self) -> bool:
        return self._ready()


@scenario("signals")
def hearing_signals_fails(fault: Fault) -> None:
    ended = threading.Event()
    server = Stopping(fault(lambda: True))
    thread = Guarded(server_run._listen, "signals", server, ended)
    thread.start()
    fault.met(2)
    fault.over()
    ended.set()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


@scenario("second-signal")
def waiting_for_a_second_signal_fails(fault: Fault) -> None:
    over = threading.Event()
    fault.breaks(controller_run, "_at_once")
    Guarded(fault(over.set), "second-signal").start()
    fault.met(2)
    fault.over()
    assert over.wait(LIMIT_S)


@scenario("start-signals")
def taking_signals_at_a_start_fails(fault: Fault) -> None:
    """The program starts; only that it cannot be ended early."""
    mask = signal.pthread_sigmask

    def masked(*args: Any) -> Any:
        here = threading.current_thread() is threading.main_thread()
        return mask(*args) if here else fault()()

    signal.pthread_sigmask = masked  # type: ignore[assignment]
    try:
        with _process.ending_at_once((signal.SIGUSR2,)):
            fault.met()
    finally:
        signal.pthread_sigmask = mask


# --- Its clients ---


@scenario("session")
def keeping_a_session_fails(fault: Fault) -> None:
    fault.breaks(SessionThread, "_live")
    with (
        running(fault.folder) as server,
        Client(IDENTITY, server.config.endpoints[0]) as client,
    ):
        fault.met()
        began = clock.now_s()
        assert client.lookup(TOKENS).tokens == 0
        assert client.retrieve(TOKENS).tokens == 0
        assert client.store(TOKENS, expected(TOKENS)).chunks == 0
        assert clock.now_s() - began < 5.0
        assert not client.available
        fault.over()
        until(lambda: client.available, LIMIT_S)
        assert works(client)


@scenario("client")
def a_call_in_the_background_fails(fault: Fault) -> None:
    with Client(IDENTITY, f"ipc://{fault.folder}/nobody") as client:
        assert isinstance(client._start(fault()).exception(LIMIT_S), type(fault.error()))
        assert client.prefetch(TOKENS).result(LIMIT_S) == 0


@scenario("aclient")
def an_awaited_call_fails(fault: Fault) -> None:
    async def run() -> None:
        async with await AsyncClient.open(IDENTITY, f"ipc://{fault.folder}/nobody") as client:
            with pytest.raises(type(fault.error())):
                await client._run(fault())
            assert (await client.lookup(TOKENS)).tokens == 0

    asyncio.run(run())


@scenario("fill")
def filling_page_tables_fails(fault: Fault) -> None:
    """The segment is let go of all the same."""

    class Pages:
        populate = staticmethod(fault())
        closed = False

        def close(self) -> None:
            self.closed = True

    pages = Pages()
    attachment = Attachment(cast(Any, pages), 4)
    attachment.fill()
    fault.met()
    attachment.close()
    until(lambda: pages.closed, LIMIT_S)


# --- Controllers and who reports to them ---


@scenario("reporter", OSError)
def reporting_fails(fault: Fault) -> None:
    fault.breaks(Reporter, "_session")
    cache = FakeCache()
    with controller() as one, reporting(cache, one) as reporter:
        cache.add(hashes(4))
        fault.met(2)
        assert reporter.status()["problem"]
        fault.over()
        until(lambda: [m.chunks for m in one.members.lookup(hashes(4))] == [4], LIMIT_S)


@scenario("heartbeat", OSError)
def heartbeats_fail(fault: Fault) -> None:
    fault.breaks(Reporter, "_beats")
    cache = FakeCache()
    with controller() as one, reporting(cache, one):
        cache.add(hashes(4))
        fault.met(2)
        fault.over()
        until(lambda: [m.chunks for m in one.members.lookup(hashes(4))] == [4], LIMIT_S)
        until(lambda: one.members.living()[0].beats > 0, LIMIT_S)


@scenario("commands")
def doing_what_the_controller_asks_for_fails(fault: Fault) -> None:
    """It is told so, and the next command is done."""
    cache = FakeCache()
    cache.obey = fault(cache.obey)  # type: ignore[method-assign]
    ports = {"pull": 1, "reply": 1}
    with reporting(cache, ports) as reporter:
        reporter._take(Command("job 1", "clear", b"", b"", ""))
        until(lambda: len(reporter._results) == 1, LIMIT_S)
        assert not reporter._results[0].ok
        fault.over()
        reporter._take(Command("job 2", "clear", b"", b"", ""))
        until(lambda: len(reporter._results) == 2, LIMIT_S)
        assert reporter._results[1].ok


@scenario("commands")
def hearing_of_commands_fails(fault: Fault) -> None:
    cache = FakeCache()
    with reporting(cache, {"pull": 1, "reply": 1}) as reporter:
        get = reporter._commands.get
        reporter._commands.get = fault(get)  # type: ignore[method-assign]
        reporter._take(Command("job 1", "clear", b"", b"", ""))
        fault.met(2)
        fault.over()
        until(lambda: len(reporter._results) == 1, LIMIT_S)
        assert reporter._results[0].ok


@scenario("service", OSError)
def the_end_of_a_controller_fails(fault: Fault) -> None:
    """Whoever ends it is not kept, and it ends all the same."""
    one = Controller(config())
    one.start()
    close = one._ports._listener.close
    once = fault(close)
    one._ports._listener.close = once  # type: ignore[method-assign]
    stopping = threading.Thread(target=one.stop)
    stopping.start()
    fault.met()
    fault.over()
    stopping.join(LIMIT_S)
    assert not stopping.is_alive()
    assert not one._ports._service._thread.is_alive()


@scenario("service")
def the_clock_of_a_controller_fails(fault: Fault) -> None:
    cache = FakeCache()
    with controller() as one:
        one.jobs.tick = fault(one.jobs.tick)  # type: ignore[method-assign]
        fault.met(2)
        with reporting(cache, one):
            cache.add(hashes(4))
            until(lambda: [m.chunks for m in one.members.lookup(hashes(4))] == [4], LIMIT_S)


@scenario("directory")
def sharing_a_directory_fails(fault: Fault) -> None:
    fault.breaks(SharedDirectory, "_turn")
    one = Controller(config(directory=f"redis://{NOWHERE}"))
    one.start()
    try:
        assert one.shared is not None
        assert one.shared.problem
        fault.met(2)
        assert one.shared._thread.is_alive()
    finally:
        one.stop()


@scenario("http")
def answering_http_fails(fault: Fault) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        head: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
        await send(head)
        await send({"type": "http.response.body", "body": b"here"})

    fault.breaks(HttpListener, "_answer")
    listener = HttpListener(app, "127.0.0.1", 0, "")
    listener.start()
    try:
        fault.met(2)
        fault.over()
        with closing(urllib.request.urlopen(listener.url, timeout=LIMIT_S)) as reply:
            assert reply.read() == b"here"
    finally:
        listener.stop()
