"""Threads beside inference engines, when their work raises."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from types import ModuleType
from typing import Any

from kvferry.base.threads import Workers
from kvferry.chunks.prompt import Prompt
from kvferry.integrations.vllm.blocks import cuda_blocks
from kvferry.integrations.vllm.connector.interfaces import Work
from kvferry.integrations.vllm.connector.lookup_threads import Questions
from kvferry.integrations.vllm.connector.ranks import RankAnswers, RankFinder, address
from kvferry.integrations.vllm.connector.saver import Saver
from kvferry.integrations.vllm.connector.worker import WorkerHalf
from kvferry.rpc import listener
from kvferry.rpc.local import ask_local
from kvferry.rpc.service import Service
from support.stamps import until
from support.thread_faults import LIMIT_S, Fault, scenario
from support.vllm_shapes import PlainCopier
from support.vllm_worker import (
    BLOCKS,
    LAYER_BYTES,
    LAYERS,
    Cache,
    half_of,
    load,
    opened_cache,
    plain,
    reported,
    save,
    step,
    stored,
)

HASH = b"0123456789abcdef"
PROMPT = Prompt(2 * HASH, 9, 4)


# --- A worker ---


@scenario("load-kv")
def a_load_fails(fault: Fault) -> None:
    """It is reported, so that its blocks are computed."""
    fault.breaks(WorkerHalf, "_bring")
    with opened_cache() as cache, closing(half_of(cache, plain())) as half:
        step(half, Work(saves=[save(0, [1, 2])]))
        stored(cache, 1)
        step(half, Work(loads=[load(0, [20, 21])]))
        assert reported(half) == ({"l"}, {20, 21})
        fault.over()
        step(half, Work(loads=[load(0, [20, 21])]))
        assert reported(half) == ({"l"}, set())


class Device(PlainCopier):
    """Blocks that are gathered behind the step."""

    def fence(self) -> Any:
        return "mark"


def saves_go_on(cache: Cache, copier: PlainCopier, fault: Fault) -> None:
    """What fails is not saved, its memory is free again, and what comes after it is saved."""
    with closing(half_of(cache, copier)) as half:
        step(half, Work(saves=[save(0, [1, 2, 3, 4])]))
        until(lambda: half.counts.read()["shed_chunks"] == 2, LIMIT_S)
        until(lambda: half._saver._waiting == 0, LIMIT_S)
        # Whoever is given these blocks waits for nobody.
        step(half, Work(given=[1, 2, 3, 4]))
        fault.over()
        step(half, Work(saves=[save(0, [1, 2, 3, 4])]))
        stored(cache, 2)
        until(lambda: half._saver._waiting == 0, LIMIT_S)


@scenario("gather-kv")
def waiting_for_room_fails(fault: Fault) -> None:
    fault.breaks(Saver, "_await_room")
    with opened_cache() as cache:
        saves_go_on(cache, Device(BLOCKS, LAYERS, LAYER_BYTES), fault)


@scenario("gather-kv")
def gathering_fails(fault: Fault) -> None:
    fault.breaks(PlainCopier, "gather")
    with opened_cache() as cache:
        saves_go_on(cache, Device(BLOCKS, LAYERS, LAYER_BYTES), fault)


@scenario("save-kv")
def handing_over_fails(fault: Fault) -> None:
    fault.breaks(Cache, "store")
    with opened_cache() as cache:
        saves_go_on(cache, plain(), fault)


@scenario("pin")
def pinning_memory_fails(fault: Fault) -> None:
    """It is copied once more then."""
    blocks = cuda_blocks.CudaBlocks.__new__(cuda_blocks.CudaBlocks)
    fault.breaks(cuda_blocks, "readable")
    blocks.pin([bytearray(8)])
    assert fault.raised == 1


# --- A scheduler ---


class Finder:
    """Has all chunks of any prompt."""

    shared = b"12345678"

    def __init__(self) -> None:
        self.heard = 0

    def now(self, prompt: Prompt) -> int | None:
        return None

    def find(self, prompt: Prompt) -> int:
        return prompt.chunks

    def renewed(self, ended: bytes, own: bytes) -> None:
        self.heard += 1

    def close(self) -> None: ...


@scenario("ask")
def a_question_fails(fault: Fault) -> None:
    """It is answered with nothing, and the next one with what there is."""
    finder = Finder()
    finder.find = fault(finder.find)  # type: ignore[method-assign]
    with closing(Questions(finder, LIMIT_S)) as questions:
        question = questions.ask(PROMPT)
        until(lambda: question.answer() == 0, LIMIT_S)
        fault.over()
        question = questions.ask(PROMPT)
        until(lambda: question.answer() == 2, LIMIT_S)


def named(fault: Fault, rank: int) -> str:
    return address(f"{os.getpid()}-{fault.folder.name}", rank)[-60:]


@scenario("service", OSError)
def accepting_a_scheduler_fails(fault: Fault) -> None:
    """The next one is accepted."""
    name = named(fault, 0)
    fault.breaks(listener, "is_own_process")
    with closing(RankAnswers(name, Finder(), lambda prompt: "a rank")):
        with suppress(OSError):
            ask_local(name, "explain", b"", LIMIT_S)
        fault.met()
        fault.over()
        assert ask_local(name, "explain", b"", LIMIT_S) == b"a rank"


@scenario("service")
def answering_a_scheduler_fails(fault: Fault) -> None:
    """Its connection ends, which it counts as nothing."""
    name, finder = named(fault, 0), Finder()
    finder.now = fault(lambda prompt: 3)  # type: ignore[method-assign]
    with closing(RankAnswers(name, finder)):
        with suppress(OSError):
            ask_local(name, "find", PROMPT.encode(), LIMIT_S)
        fault.met()
        fault.over()
        assert ask_local(name, "find", PROMPT.encode(), LIMIT_S)


@scenario("service")
def work_for_a_scheduler_fails(fault: Fault) -> None:
    name = named(fault, 0)
    explain = fault(lambda prompt: "a rank")
    with closing(RankAnswers(name, Finder(), explain)):
        with suppress(OSError):
            ask_local(name, "explain", b"", LIMIT_S)
        fault.met()
        fault.over()
        assert ask_local(name, "explain", b"", LIMIT_S) == b"a rank"


@scenario("service")
def the_loop_of_a_rank_fails(fault: Fault) -> None:
    """E.g. without descriptors, for a while: nothing of it is lost."""
    name = named(fault, 0)
    fault.breaks(Service, "_serve")
    with closing(RankAnswers(name, Finder(), chunk_size=8)):
        with suppress(OSError):
            ask_local(name, "size", b"", 0.2)
        fault.met()
        fault.over()
        assert ask_local(name, "size", b"", LIMIT_S)


@scenario("renewed")
def telling_a_rank_of_a_clear_fails(fault: Fault) -> None:
    """The others hear of it."""
    finders = [Finder(), Finder()]
    finders[0].renewed = fault()  # type: ignore[method-assign]
    names = [named(fault, rank) for rank in range(2)]
    sides = [RankAnswers(name, one) for name, one in zip(names, finders, strict=True)]
    ranks = RankFinder(names, LIMIT_S)
    ranks.renewed(HASH[:8], HASH[8:])
    until(lambda: finders[1].heard == 1, LIMIT_S)
    ranks.close()
    for side in sides:
        side.close()


# --- Others ---


@scenario("weights")
def hashing_a_piece_of_weights_fails(fault: Fault) -> None:
    """Whoever asked hears of it."""
    heard: list[Future[Any]] = []
    with Workers(2, "weights") as workers:
        heard = [workers.submit(fault()) for _ in range(3)]
    assert all(isinstance(one.exception(), type(fault.error())) for one in heard)


class Event:
    """LMCache's notifier."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self.fd

    def notify(self) -> None:
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        os.close(self.fd)


class Adapter:
    """LMCache's base of adapters; `listener` is told of keys."""

    listener = staticmethod(lambda *_: None)

    def __init__(self, max_capacity_bytes: int = 0) -> None: ...

    def _notify_keys_stored(self, *told: Any) -> None:
        type(self).listener(*told)

    _notify_keys_deleted = _notify_keys_accessed = _notify_keys_stored


class Bitmap(bytearray):
    """LMCache's."""

    def set(self, index: int) -> None:
        self[index] = 1


class Key:
    """LMCache's name of an object."""

    model_name, kv_rank, chunk_hash = "m", 1, HASH


@contextmanager
def l2_adapter() -> Iterator[Any]:
    """The adapter over a server that is away, with as much of LMCache as it needs."""
    given: dict[str, dict[str, Any]] = {
        "lmcache": {},
        "lmcache.lmcache_native": {"Bitmap": Bitmap},
        "lmcache.v1": {},
        "lmcache.v1.distributed": {},
        "lmcache.v1.distributed.internal_api": {"L2StoreResult": lambda *result: result},
        "lmcache.v1.distributed.l2_adapters": {},
        "lmcache.v1.distributed.l2_adapters.base": {
            "AdapterUsage": tuple,
            "L2AdapterInterface": Adapter,
        },
        "lmcache.v1.platform": {"create_event_notifier": Event},
    }
    before = set(sys.modules)
    for name, values in given.items():
        module = ModuleType(name)
        vars(module).update(values)
        sys.modules.setdefault(name, module)
    try:
        l2 = importlib.import_module("kvferry.integrations.lmcache.l2")
        adapter = l2.KvferryL2Adapter({"url": "redis://127.0.0.1:1"})
        try:
            yield adapter
        finally:
            adapter.close()
    finally:
        for name in [*given, "kvferry.integrations.lmcache.l2"]:
            if name not in before:
                sys.modules.pop(name, None)


@scenario("l2")
def completing_lmcaches_tasks_fails(fault: Fault) -> None:
    """Whoever waits for a task is told that it failed."""
    with l2_adapter() as adapter:
        fault.breaks(type(adapter), "_complete_one")
        task = adapter.submit_load_task([Key()], [type("Object", (), {"byte_array": bytearray(8)})])
        until(lambda: adapter.query_load_result(task) is not None, LIMIT_S)
        fault.over()
        task = adapter.submit_lookup_and_lock_task([Key()])
        until(lambda: adapter.query_lookup_and_lock_result(task) is not None, LIMIT_S)


@scenario("l2")
def waiting_for_completions_fails(fault: Fault) -> None:
    with l2_adapter() as adapter:
        fault.breaks(type(adapter), "_complete")
        first = adapter.submit_lookup_and_lock_task([Key()])
        fault.met()
        fault.over()
        second = adapter.submit_lookup_and_lock_task([Key()])
        until(lambda: adapter.query_lookup_and_lock_result(second) is not None, LIMIT_S)
        assert first != second
