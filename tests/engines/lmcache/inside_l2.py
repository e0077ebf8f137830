"""Run by LMCache's interpreter: what our L2 adapter does beyond LMCache's tests of adapters.

KVFERRY_TEST_SERVER is host:port of a real server, KVFERRY_TEST_PID its process, to stop and resume.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry
from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import _object_key_to_string
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd

from kvferry.base.errors import ConfigError
from kvferry.integrations.lmcache import KvferryL2Adapter, l2
from kvferry.integrations.lmcache.l2 import key_text

HOST, _, PORT = os.environ["KVFERRY_TEST_SERVER"].partition(":")
PID = int(os.environ["KVFERRY_TEST_PID"])
WHERE = {"host": HOST, "port": int(PORT), "num_workers": 2}


def key(number: int, **more: Any) -> ObjectKey:
    return ObjectKey(ObjectKey.IntHash2Bytes(number), "test_model", 0x01000100, **more)


def memory(size: int, fill: float = 1.0) -> TensorMemoryObj:
    shape = torch.Size([size])
    about = MemoryObjMetadata(
        shape=shape,
        dtype=torch.float32,
        address=0,
        phy_size=size * 4,
        ref_count=1,
        fmt=MemoryFormat.KV_2LTD,
    )
    return TensorMemoryObj(torch.full((size,), float(fill)), about, parent_allocator=None)


def told(fd: int, limit_s: float = 20) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    assert poller.poll(limit_s * 1e3), "no completion"
    consume_fd(fd)


class Listener:
    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.deleted: list[Any] = []

    def on_l2_keys_stored(self, keys: Any, sizes: Any) -> None:
        self.stored += keys

    def on_l2_keys_accessed(self, keys: Any) -> None: ...

    def on_l2_keys_deleted(self, keys: Any) -> None:
        self.deleted += keys


class Rig:
    def __init__(self, **params: Any) -> None:
        config = PluginL2AdapterConfig(
            "kvferry.integrations.lmcache", "KvferryL2Adapter", {**WHERE, **params}
        )
        self.adapter: Any = create_l2_adapter_from_registry(config)
        self.listener = Listener()
        self.adapter.register_listener(self.listener)

    def store(self, keys: list[Any], objects: list[Any]) -> Any:
        task = self.adapter.submit_store_task(keys, objects)
        told(self.adapter.get_store_event_fd())
        return self.adapter.pop_completed_store_tasks()[task]

    def lookup(self, keys: list[Any]) -> list[bool]:
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        told(self.adapter.get_lookup_and_lock_event_fd())
        found = self.adapter.query_lookup_and_lock_result(task)
        assert self.adapter.query_lookup_and_lock_result(task) is None
        return [found.test(i) for i in range(len(keys))]

    def load(self, keys: list[Any], objects: list[Any]) -> list[bool]:
        task = self.adapter.submit_load_task(keys, objects)
        told(self.adapter.get_load_event_fd())
        found = self.adapter.query_load_result(task)
        return [found.test(i) for i in range(len(keys))]


def server(*words: str) -> bytes:
    with socket.create_connection((HOST, int(PORT)), 5) as talk:
        talk.sendall(" ".join(words).encode() + b"\r\n")
        return talk.recv(65536)


@pytest.fixture(autouse=True)
def _an_empty_server() -> None:
    assert server("FLUSHALL").startswith(b"+OK")


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.adapter.close()


def test_keys_are_those_of_lmcache() -> None:
    for more in ({}, {"object_group_id": 12}, {"cache_salt": "tenant"}):
        assert key_text(key(5, **more)) == _object_key_to_string(key(5, **more))


def test_a_forked_child_is_refused(rig: Rig) -> None:
    """Its tasks would complete for nobody: the thread that tells is in the parent."""
    child = os.fork()
    if child == 0:
        refused = 0
        calls: list[Any] = [
            rig.adapter.get_store_event_fd,
            rig.adapter.get_lookup_and_lock_event_fd,
            rig.adapter.get_load_event_fd,
            lambda: rig.adapter.submit_lookup_and_lock_task([key(0)], {}),
        ]
        for call in calls:
            try:
                call()
            except RuntimeError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    assert rig.lookup([key(0)]) == [False]


def test_lengths_of_object_groups_may_differ(rig: Rig) -> None:
    keys = [key(i, object_group_id=i) for i in range(4)]
    sizes = [10, 300_000, 20, 300_000]
    assert rig.store(keys, [memory(n, i) for i, n in enumerate(sizes)]).is_successful()
    targets = [memory(n, -1) for n in sizes]
    assert rig.load(keys, targets) == [True] * 4
    assert all(bool(torch.all(each.tensor == float(i))) for i, each in enumerate(targets))


def test_what_landed_is_counted_when_something_did_not(rig: Rig) -> None:
    objects = [memory(50_000, i) for i in range(30)]
    rig.store([key(i) for i in range(3)], objects[:3])
    used = int(server("INFO", "memory").split(b"used_memory:")[1].split()[0])
    server("CONFIG", "SET", "maxmemory", str(used + 1_500_000))
    try:
        result = rig.store([key(i) for i in range(3, 30)], objects[3:])
    finally:
        server("CONFIG", "SET", "maxmemory", "0")
    assert not result.is_successful()
    there = rig.lookup([key(i) for i in range(30)])
    assert 3 < sum(there) < 30
    assert sorted(map(key_text, rig.listener.stored)) == sorted(
        key_text(key(i)) for i, known in enumerate(there) if known
    )
    assert rig.adapter.get_usage().total_bytes_used == 200_000 * sum(there)


def test_what_is_locked_is_not_deleted(rig: Rig) -> None:
    keys = [key(1), key(2)]
    rig.store(keys, [memory(10), memory(10)])
    assert rig.lookup([key(1)]) == [True]
    rig.adapter.delete(keys)
    assert rig.lookup(keys) == [True, False]
    rig.adapter.submit_unlock([key(1)])
    rig.adapter.delete(keys)
    assert rig.lookup([key(1)]) == [True], "one lock of two was taken back"
    rig.adapter.submit_unlock([key(1), key(1)])
    rig.adapter.delete(keys)
    assert rig.lookup([key(1)]) == [False]
    assert rig.adapter.get_usage().total_bytes_used == 0


def test_what_the_server_evicted_leaves_the_accounts(rig: Rig) -> None:
    rig.store([key(1), key(2)], [memory(10), memory(10)])
    server("DEL", key_text(key(1)))
    assert rig.lookup([key(1), key(2)]) == [False, True]
    assert rig.listener.deleted == [key(1)]
    assert rig.adapter.get_usage().total_bytes_used == 40


def test_full_accounts_are_as_quick_as_empty_ones(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find the oldest of them took milliseconds once many had gone before it."""
    monkeypatch.setattr(l2, "SIZES_MAX", 1 << 17)
    took = []
    for first in range(0, 2 << 17, 64):
        keys = [(first + index).to_bytes(32, "little") for index in range(64)]
        each = SimpleNamespace(statuses=bytes(64), batch_id=0)
        began = time.thread_time()
        rig.adapter._complete_store(each, keys, [40] * 64)
        took.append(time.thread_time() - began)
    half = len(took) // 2
    assert sum(took[half:]) < 10 * sum(took[:half])
    assert len(rig.adapter._sizes) == 1 << 17


def test_a_lookup_refreshes(rig: Rig) -> None:
    rig.store([key(1)], [memory(10)])
    time.sleep(2.1)  # the server's clock of idleness has seconds
    assert rig.lookup([key(1)]) == [True]
    assert int(server("OBJECT", "IDLETIME", key_text(key(1))).strip()[1:]) < 2


def test_usage_of_the_server() -> None:
    server("CONFIG", "SET", "maxmemory", "500mb")
    rig = Rig(server_usage=True)
    try:
        before = rig.adapter.get_usage()
        assert before.total_capacity_bytes == 500 << 20
        server("SET", "of-somebody-else", "x" * 20_000)
        rig.store([key(1)], [memory(1_000_000)])
        until = time.monotonic() + 10
        # What connections of others need comes and goes meanwhile: tens of kilobytes.
        while rig.adapter.get_usage().total_bytes_used < before.total_bytes_used + 3_900_000:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert rig.adapter.report_status()["is_healthy"]
    finally:
        rig.adapter.close()
        server("CONFIG", "SET", "maxmemory", "0")


def test_a_silent_server() -> None:
    """Everything completes, as failed or missing; so does what is in flight when it is closed."""
    rig = Rig(timeout_s=0.5, connect_timeout_s=0.5)
    rig.store([key(1)], [memory(10)])
    os.kill(PID, signal.SIGSTOP)
    try:
        assert rig.lookup([key(1)]) == [False]
        assert rig.load([key(1)], [memory(10)]) == [False]
        assert not rig.store([key(2)], [memory(10)]).is_successful()
        rig.adapter.delete([key(1)])
        last = rig.adapter.submit_load_task([key(1)], [memory(10)])
        start = time.monotonic()
        rig.adapter.close()
        rig.adapter.close()
        assert time.monotonic() - start < 10
        assert rig.adapter.query_load_result(last).test(0) is False
        assert not rig.adapter.report_status()["is_healthy"]
    finally:
        os.kill(PID, signal.SIGCONT)


def test_a_wrong_key_is_named() -> None:
    for params, words in (
        ({"num_worker": 1}, "num_workers"),
        ({"max_capacity_gb": -1}, "max_capacity_gb"),
        ({"server_usage": "yes"}, "server_usage"),
    ):
        with pytest.raises(ConfigError, match=words):
            KvferryL2Adapter({**WHERE, **params})


def test_the_line_of_the_guide_is_understood() -> None:
    import argparse
    import json

    line = {
        "type": "plugin",
        "module_path": "kvferry.integrations.lmcache",
        "class_name": "KvferryL2Adapter",
        "adapter_params": WHERE,
    }
    parsed = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(line)]))
    adapter = create_l2_adapter_from_registry(parsed.adapters[0])
    assert isinstance(adapter, KvferryL2Adapter)
    adapter.close()
