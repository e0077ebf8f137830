"""The connectors between vLLM's hooks and the halves: a second set of tensors, sleep, threads.

vLLM itself is played: a module with the names that a connector imports.
"""

from __future__ import annotations

import enum
import gc
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvferry import Identity, KVLayout
from kvferry.base.errors import UsageError
from kvferry.chunks.prompt import Prompt
from kvferry.integrations.vllm.connector.interfaces import LoadJob, Work
from support.servers import wait_for
from support.vllm_shapes import PlainCopier

CONNECTOR = "kvferry.integrations.vllm.connector"
OURS = {
    "in_process": f"{CONNECTOR}.in_process",
    "mp": "kvferry.integrations.vllm.mp",
    "factory": f"{CONNECTOR}.factory",
    "affinity": f"{CONNECTOR}.affinity",
}
LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="uint8", chunk_size=8)


class Base:
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._vllm_config, self._role = vllm_config, role
        self._kv_cache_config = kv_cache_config

    def get_block_ids_with_load_errors(self) -> None: ...

    def handle_preemptions(self) -> None: ...


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class FullAttentionSpec:
    block_size = 4


class Half:
    """A worker's half that notes what is done with it."""

    def __init__(self, left: list[LoadJob]) -> None:
        self.left = left
        self.inherited: list[LoadJob] | None = None
        self.closed = 0

    def abandon(self) -> list[LoadJob]:
        self.close()
        return self.left

    def inherit(self, jobs: list[LoadJob]) -> None:
        self.inherited = jobs

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Our modules, imported beside a vLLM that is played."""
    base: dict[str, Any] = {
        "KVConnectorBase_V1": Base,
        "KVConnectorMetadata": object,
        "KVConnectorRole": Role,
        "SupportsHMA": object,
    }
    platform = SimpleNamespace(is_cpu=lambda: True)
    for name, members in {
        "vllm.distributed.kv_transfer.kv_connector.v1.base": base,
        "vllm.platforms": {"current_platform": platform},
    }.items():
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            path = ".".join(parts[:length])
            if path not in sys.modules:
                monkeypatch.setitem(sys.modules, path, ModuleType(path))
            if length > 1:
                setattr(
                    sys.modules[".".join(parts[: length - 1])], parts[length - 1], sys.modules[path]
                )
        vars(sys.modules[name]).update(members)
    for path in OURS.values():
        monkeypatch.delitem(sys.modules, path, raising=False)
        monkeypatch.delattr(path, raising=False)
    ours = {"connector": CONNECTOR, **OURS}
    yield SimpleNamespace(**{name: importlib.import_module(path) for name, path in ours.items()})
    for path in OURS.values():  # they know the vLLM that was played
        del sys.modules[path]


def connector(vllm: Any, kind: str, role: Role, **extra: Any) -> Any:
    group = SimpleNamespace(kv_cache_spec=FullAttentionSpec())
    transfer = SimpleNamespace(
        kv_connector_extra_config={"kvferry.chunk_size": 8, **extra},
        kv_load_failure_policy="recompute",
        engine_id=f"hooks-{os.getpid()}",
        is_kv_producer=True,
        is_kv_consumer=True,
    )
    config = SimpleNamespace(
        kv_transfer_config=transfer,
        cache_config=SimpleNamespace(),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=16),
    )
    made = vllm.mp.KvferryMPConnector if kind == "mp" else vllm.connector.KvferryConnector
    return made(config, role, SimpleNamespace(kv_cache_groups=[group]))


def test_loads_that_were_not_reported_survive_a_second_set_of_tensors(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [LoadJob("r", Prompt(b"x" * 16, 4, 4), [1, 2])]
    halves = [Half(lost), Half([])]
    opened = list(reversed(halves))
    answers = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(vllm.factory, "open_rank", lambda *_: None)
    monkeypatch.setattr(vllm.factory, "open_worker", lambda *_: (answers, opened.pop()))
    made = connector(vllm, "connector", Role.WORKER)
    made.register_kv_caches({})
    made.register_kv_caches({})
    assert (halves[0].inherited, halves[0].closed) == ([], 1)
    assert (halves[1].inherited, halves[1].closed) == (lost, 0)
    first = weakref.ref(halves.pop(0))
    gc.collect()
    assert first() is None, "its memory is kept"
    made.shutdown()
    made.shutdown()
    assert halves[0].closed == 1


def test_a_connector_that_is_dropped_without_a_word_is_closed(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = Half([])
    answers = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(vllm.factory, "open_rank", lambda *_: None)
    monkeypatch.setattr(vllm.factory, "open_worker", lambda *_: (answers, half))
    made = connector(vllm, "connector", Role.WORKER)
    made.register_kv_caches({})
    del made
    gc.collect()
    assert half.closed == 1


def test_before_it_sleeps_vllm_has_every_rank_leave_its_blocks(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sleep begins with a reset of the caches, which is what a connector sees of it."""
    done: list[str] = []

    def noted(what: str) -> Any:
        return lambda: done.append(what) is None  # type: ignore[func-returns-value]

    ranks = SimpleNamespace(release_blocks=noted("let go"))
    half = SimpleNamespace(clear=noted("clear"), close=noted("close"))
    monkeypatch.setattr(vllm.factory, "open_scheduler", lambda *_: (ranks, half))
    made = connector(vllm, "connector", Role.SCHEDULER)
    assert made.reset_cache()
    assert done == ["let go", "clear"]


def test_an_engine_whose_worker_cannot_be_asked_does_not_start(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvferry.integrations.vllm.connector.ranks._CHECK_S", 0.05)
    for kind in ("connector", "mp"):
        with pytest.raises(UsageError, match=r"all tensor and pipeline parallel ranks .* one host"):
            connector(vllm, kind, Role.SCHEDULER)


def allowed(thread: threading.Thread) -> str:
    """The processors of a thread, as the kernel writes them."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("Cpus_allowed:"))


def test_threads_over_a_cache_server_are_not_bound_with_the_worker(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM on a CPU binds the worker to one processor, and threads inherit that."""
    everywhere = os.sched_getaffinity(0)
    if len(everywhere) < 2:
        pytest.skip("there is one processor")
    copier: Any = PlainCopier(4, 1, 64)
    copier.name, copier.layers = "LBHNC", 1
    identity = Identity(model="hooks", layout=LAYOUT)
    rank_of = vllm.factory.OpenRank
    for name, made in {
        "open_rank": lambda config, _, __, settings, caches: rank_of(
            config, settings, copier, LAYOUT, identity, caches["layer"].device, 0, "hooks", 1
        ),
        "guess": lambda *_: None,
        "_computing_threads": lambda: 1,
    }.items():
        monkeypatch.setattr(vllm.factory, name, made)
    before = set(threading.enumerate())
    expected = allowed(threading.main_thread())
    extra = {"kvferry.mp.host": "tcp://127.0.0.1", "kvferry.mp.port": 1}
    made = connector(vllm, "mp", Role.WORKER, **extra)
    os.sched_setaffinity(0, {min(everywhere)})
    try:
        made.register_kv_caches({"layer": SimpleNamespace(device=SimpleNamespace(type="cpu"))})
        half = made._worker
        half.start_loads(Work(loads=[LoadJob("r", Prompt(b"x" * 16, 4, 4), [1, 2])]))
        wait_for("a load", lambda: half.finished(computing=False))
        threads = [thread for thread in threading.enumerate() if thread not in before]
        assert {thread.name: allowed(thread) for thread in threads} == {
            thread.name: expected for thread in threads
        }
        assert any("load" in thread.name for thread in threads)
    finally:
        os.sched_setaffinity(0, everywhere)
        made.shutdown()


@pytest.mark.parametrize(
    ("threads", "processors", "cpu", "warned"),
    [(2, 2, 1, 1), (1, 2, 1, 0), (8, 8, 1, 1), (6, 8, 1, 0), (1, 1, 1, 0), (2, 2, 0, 0)],
)
def test_a_vllm_that_computes_on_every_processor_is_told_of(
    vllm: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    threads: int,
    processors: int,
    cpu: int,
    warned: int,
) -> None:
    """With any connector it wants to keep two free, and where there are two it keeps none."""
    affinity = vllm.affinity
    monkeypatch.setattr(affinity, "_binds", lambda: cpu)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    affinity.warn_of_no_processor_left(threads)
    said = [one for one in caplog.messages if "VLLM_CPU_NUM_OF_RESERVED_CPU=1" in one]
    assert len(said) == warned
