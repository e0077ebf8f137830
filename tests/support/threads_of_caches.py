"""Threads of a cache, of its stores and its clients, when their work raises."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, cast

import pytest

from kvferry import TieredCache
from kvferry.base.credentials import Credentials
from kvferry.base.errors import DeadlineExceeded, UnavailableError
from kvferry.base.threads import Guarded
from kvferry.cache.cost.learning import Speeds
from kvferry.cache.cost.prefill import Coefficients
from kvferry.cache.load.retriever import Retriever
from kvferry.cache.steps import finish
from kvferry.cache.store import process_breaks
from kvferry.cache.store.generations import NewestMark, StoreGenerations
from kvferry.cache.store.writer import Writer
from kvferry.chunks.generation import Mark
from kvferry.client.batch import BatchResult, Status
from kvferry.client.native import provide_to
from kvferry.client.pure import tls
from kvferry.connectors.base import Space
from kvferry.connectors.calls import CallJob, CallQueue
from kvferry.connectors.file import FileConnector
from kvferry.connectors.native_calls import Calls
from kvferry.connectors.one_sided import reads
from kvferry.sharing.peers import named_nodes as named
from kvferry.sharing.peers.instance import Sharing
from support import clock
from support.dict_store import DictStore
from support.engines import CHUNK, check, expected, open_engine, prompt
from support.sharing import instances, running_controller, told
from support.stamps import until
from support.thread_faults import LIMIT_S, Fault, scenario

TOKENS = prompt(4 * CHUNK, seed=1)
SOON_S = 5.0


class Marks:
    """A store as `StoreGenerations` sees it."""

    def __init__(self, read: Callable[[float], bytes | None]) -> None:
        self.available = True
        self.read_mark = read
        self.value: bytes | None = None
        self.deleted = 0

    def write_mark(self, value: bytes, timeout_s: float, *, absent: bool) -> None:
        self.value = value

    def delete_generations(self, which: Callable[[bytes], bool]) -> Iterator[int]:
        self.deleted += 1
        yield 0


def followed(store: Marks) -> StoreGenerations:
    return StoreGenerations("store", cast(Any, store), NewestMark(int))


def misses_then_knows(generations: StoreGenerations, fault: Fault) -> None:
    """While it fails nothing is known, and nobody waits for it; afterwards it is known."""
    with closing(generations):
        fault.met(3)
        began = clock.now_s()
        assert not finish(generations.waiting(time.monotonic() + 60))
        assert clock.now_s() - began < SOON_S
        assert not generations.known
        fault.over()
        until(lambda: generations.known, LIMIT_S)


@scenario("generations")
def a_plug_in_that_does_not_say_its_mark(fault: Fault) -> None:
    misses_then_knows(followed(Marks(fault(lambda timeout_s: None))), fault)


@scenario("generations")
def following_fails(fault: Fault) -> None:
    fault.breaks(StoreGenerations, "_ask_if_due")
    misses_then_knows(followed(Marks(lambda timeout_s: None)), fault)


@scenario("generations")
def deleting_what_a_clear_has_left_fails(fault: Fault) -> None:
    store = Marks(lambda timeout_s: Mark(7, b"7" * 8).encode())
    newest = NewestMark(int)
    with closing(StoreGenerations("store", cast(Any, store), newest)) as generations:
        generations.delete(lambda generation: True, fault(lambda: True))
        fault.met()
        until(lambda: generations.known, LIMIT_S)  # it goes on to follow
        assert newest.mark.half == b"7" * 8
        fault.over()
        until(lambda: not generations._deletions and store.deleted == 1, LIMIT_S)


@scenario("awake")
def ticking_fails(fault: Fault) -> None:
    """Whoever does not tick is taken for somebody who was stopped: others are asked once more."""
    process_breaks._after_fork_in_child()  # another one begins
    fault.breaks(process_breaks._BreakWatch, "tick")
    process_breaks.watch_breaks()
    fault.met(2)
    assert process_breaks._watch is not None
    process_breaks._watch.ticked -= 60
    before = time.monotonic()
    assert process_breaks.since() >= before
    fault.over()


@scenario("mark", OSError)
def reading_the_mark_of_a_folder_fails(fault: Fault) -> None:
    space = Space("kvf:t:", b"t" * 16, 4096)
    with FileConnector(space, path=str(fault.folder)) as store:
        fault.breaks(FileConnector, "_read_mark")
        with pytest.raises(UnavailableError):
            store.read_mark(LIMIT_S)
        fault.over()
        assert store.read_mark(LIMIT_S) is None


def stores_behind(fault: Fault, *, lost: bool) -> None:
    store = DictStore()
    with open_engine(store) as engine:
        engine.store(TOKENS, expected(TOKENS))
        fault.met(2 if not lost else 1)
        check(engine, TOKENS, want=4 * CHUNK)  # from memory
        if lost:
            assert engine.flush(LIMIT_S)  # they are given up
            assert engine.stats()["metrics"]["kvferry_shed_chunks_total"]["error"] >= 4
            assert not store.held
        fault.over()
        engine.store(TOKENS, expected(TOKENS))
        assert engine.flush(LIMIT_S)
        assert len(store.held) == 4
        assert engine.tiers[0].writer.queue_bytes == 0
        engine.clear(stores=False)
        check(engine, TOKENS)


@scenario("write")
def taking_a_batch_fails(fault: Fault) -> None:
    fault.breaks(Writer, "_next")
    stores_behind(fault, lost=False)


@scenario("write")
def a_batch_fails(fault: Fault) -> None:
    fault.breaks(Writer, "_write")
    stores_behind(fault, lost=True)


@scenario("write")
def letting_go_of_pages_fails(fault: Fault) -> None:
    """The next batch is written, and nobody waits for ever for this one."""
    store = DictStore()
    with open_engine(store) as engine:
        writer = engine.tiers[0].writer
        offer = writer.offer

        def offered(job: Any) -> bool:
            object.__setattr__(job, "release", fault(job.release))
            return offer(job)

        writer.offer = offered  # type: ignore[method-assign]
        engine.store(TOKENS, expected(TOKENS))
        assert engine.flush(LIMIT_S)
        assert writer.queue_bytes == 0
        fault.over()
        other = prompt(2 * CHUNK, seed=2)
        engine.store(other, expected(other))
        assert engine.flush(LIMIT_S)
        assert len(store.held) == 6


class Notes:
    """A store that keeps notes, of which one may not be read."""

    def __init__(self, notes: Callable[[], dict[str, str]]) -> None:
        self.available = True
        self.notes = notes
        self.kept: dict[str, str] = {}

    def note(self, name: str, text: str) -> None:
        self.kept[name] = text


def learnt() -> tuple[int, Coefficients]:
    return 100, (0.1, 1e-3, 0.0, 0.0)


@scenario("speeds")
def a_store_whose_notes_cannot_be_read(fault: Fault) -> None:
    """The next one is asked, and what was learnt is kept."""
    heard: list[Coefficients] = []
    other = Notes(lambda: {"gpu": '{"prefill": [0.1, 0.2, 0.3, 0.4]}'})
    stores = cast(Any, [Notes(fault(dict)), other])
    speeds = Speeds(stores, "gpu", heard.append, learnt)
    fault.met()
    until(lambda: heard == [(0.1, 0.2, 0.3, 0.4)], LIMIT_S)
    speeds.close(LIMIT_S)
    assert "gpu" in other.kept


@scenario("speeds")
def keeping_what_was_learnt_fails(fault: Fault) -> None:
    store = Notes(dict)
    speeds = Speeds(cast(Any, [store]), "gpu", lambda _: None, fault(learnt))
    speeds.close(0.2)
    fault.met()
    fault.over()
    until(lambda: "gpu" in store.kept, LIMIT_S)


@scenario("sharing")
def telling_what_memory_holds_fails(fault: Fault) -> None:
    with running_controller() as controller, instances(controller) as opened:
        fault.breaks(Sharing, "_tell")
        one = opened("one")
        fault.met(2)
        one.store(TOKENS, expected(TOKENS))
        check(one, TOKENS, want=4 * CHUNK)
        fault.over()
        until(lambda: told(controller) == 4, LIMIT_S)


@scenario("named")
def the_end_of_a_named_node_fails(fault: Fault) -> None:
    class Node:
        close = staticmethod(fault())

    named._close_some_time(cast(Any, Node()))
    fault.met()


@scenario("load")
def a_load_in_the_background_fails(fault: Fault) -> None:
    with open_engine(DictStore()) as engine:
        engine.store(TOKENS, expected(TOKENS))
        fault.breaks(Retriever, "gathering")
        assert isinstance(engine.prefetch(TOKENS).exception(LIMIT_S), type(fault.error()))
        fault.over()
        assert engine.prefetch(TOKENS).result(LIMIT_S) == 4 * CHUNK
        assert isinstance(engine, TieredCache)


# --- Connectors ---


def answered(job: CallJob, left_s: float) -> BatchResult:
    return BatchResult(bytes([Status.OK]), [1], 0.0)


def queue_goes_on(fault: Fault, kind: str) -> None:
    """What was asked for has an answer, and the next one too."""
    queue = CallQueue(10)
    fault.breaks(queue, "_announce")
    thread = Guarded(queue.work, "store") if kind == "store" else Guarded(queue.work, "read")
    thread.start()
    for _ in range(3):
        job = CallJob(answered, 1, LIMIT_S)
        queue.put(job, False)
        result = job.wait(LIMIT_S)
        assert result is not None
        assert result.ok
    fault.over()
    queue.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


@scenario("store")
def telling_that_a_job_is_done_fails(fault: Fault) -> None:
    queue_goes_on(fault, "store")


@scenario("read")
def telling_that_a_read_is_done_fails(fault: Fault) -> None:
    queue_goes_on(fault, "read")


@scenario("meet", OSError)
def meeting_a_peer_fails(fault: Fault) -> None:
    """It is read over a socket, and met again later."""

    class Agent:
        near, way = False, "over nothing"

    class Address:
        address = "nowhere"

    connector = reads.OneSidedConnector.__new__(reads.OneSidedConnector)
    vars(connector).update(
        _lock=threading.Lock(), _agent=Agent(), config=Address(), _contact=None, _meeting=False,
        _closed=False, _node=lambda until: Address(), _again_at=0.0, _again_s=0.05,
        _counts={"fallbacks": 0}, _name="a peer",
    )  # fmt: skip
    fault.breaks(reads, "meet")
    connector._begin_to_meet()
    until(lambda: not connector._meeting and connector._again_at > 0, LIMIT_S)
    assert connector._counts["fallbacks"] == 1
    assert connector._contact is None


class Completing:
    """A client of LMCache's native contract."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.done: list[tuple[int, bool, str, None]] = []
        self.closed = False

    def event_fd(self) -> int:
        return self.fd

    def submit(self) -> int:
        self.done.append((1, True, "", None))
        os.eventfd_write(self.fd, 1)
        return 1

    def drain_completions(self) -> list[tuple[int, bool, str, None]]:
        done, self.done = self.done, []
        return done

    def close(self) -> None:
        self.closed = True
        os.close(self.fd)


@scenario("drain")
def asking_a_client_what_is_done_fails(fault: Fault) -> None:
    client = Completing()
    client.drain_completions = fault(client.drain_completions)  # type: ignore[method-assign]
    calls = Calls(client)
    with suppress(DeadlineExceeded):
        calls.run(client.submit, None, time.monotonic() + 0.2)
    fault.met()
    fault.over()
    until(lambda: calls.missing == 0, LIMIT_S)
    assert calls.run(client.submit, None, time.monotonic() + LIMIT_S)[0]
    assert calls.close()


@scenario("drain")
def waiting_for_a_client_fails(fault: Fault) -> None:
    client = Completing()
    fault.breaks(Calls, "_drain")
    calls = Calls(client)
    fault.met(2)
    fault.over()
    assert calls.run(client.submit, None, time.monotonic() + LIMIT_S)[0]
    assert calls.close()


@scenario("close")
def the_end_of_a_client_fails(fault: Fault) -> None:
    client = Completing()
    close = client.close

    def closes() -> None:
        close()
        fault()()

    client.close = closes  # type: ignore[method-assign]
    assert Calls(client).close()
    assert client.closed


# --- Clients ---


class Source:
    """What asks for credentials."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.told: list[str] = []
        self.given: list[str] = []
        self.closed = False

    def wait(self, limit_s: float) -> int:
        if self.closed:
            return -1
        return int(self.asked.wait(0.02))

    def refuse(self, why: str) -> None:
        self.told.append(why)

    def provide(self, username: str, password: str) -> None:
        self.asked.clear()
        self.given.append(username)


@scenario("credentials")
def handing_over_credentials_fails(fault: Fault) -> None:
    source = Source()
    source.provide = fault(source.provide)  # type: ignore[method-assign]
    source.asked.set()
    provide_to(cast(Any, source), lambda: Credentials("ada", "a secret"))
    until(lambda: bool(source.told), LIMIT_S)  # who asked is told, and of what kind it was
    assert all(type(fault.error()).__name__ in why for why in source.told)
    fault.over()
    until(lambda: source.given == ["ada"], LIMIT_S)
    source.closed = True


@scenario("credentials")
def asking_for_credentials_fails(fault: Fault) -> None:
    source = Source()
    source.wait = fault(source.wait)  # type: ignore[method-assign]
    source.asked.set()
    provide_to(cast(Any, source), lambda: Credentials("ada", "a secret"))
    fault.met(2)
    fault.over()
    until(lambda: source.given == ["ada"], LIMIT_S)
    source.closed = True


@scenario("handshake")
def ending_a_handshake_fails(fault: Fault) -> None:
    one, other = socket.socketpair()
    with one, other:
        fault.breaks(tls, "_shut_down")
        late = threading.Event()
        Guarded(tls._end_late, "handshake", one, late, 0.0, errand=True).start()
        fault.met()
