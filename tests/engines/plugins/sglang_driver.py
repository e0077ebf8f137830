"""SGLang's own factory, host pools and cache controller, driven over lines of JSON.

Runs in SGLang's environment, without its engine, which needs a GPU: ``python sglang_driver.py``.
Each line names a method of `Driver`: ``{"do": "get", "name": "a", ...}``; see
support/line_process.py. What a name stands for is made by "open" and lives until "close".
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import statistics
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache.device_pool_info import (
    KVBufferLayout,
    KVBuffers,
    MHABufferInfo,
    MLABufferInfo,
)
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolTransfer
from sglang.srt.mem_cache.pool_host import base
from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

from support.line_process import serve

base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # the pools here are small, and so are test machines
BACKEND = {
    "backend_name": "kvferry",
    "module_path": "kvferry.integrations.sglang",
    "class_name": "KvferryHiCache",
    "interface_v1": 1,
}
CPU = torch.device("cpu")


def mha_pool(
    layout: str, pages: int, page_size: int, layers: int, heads: int, dim: int, v_dim: int = 0
) -> Any:
    """A host pool of keys and values in bfloat16, as SGLang's assembler would make it."""
    v_dim, dtype = v_dim or dim, torch.bfloat16
    keys, values = (
        tuple(torch.empty(page_size, heads, width, dtype=dtype) for _ in range(layers))
        for width in (dim, v_dim)
    )
    tables = [
        torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64)
        for tensors in (keys, values)
    ]
    info = MHABufferInfo(
        buffers=KVBuffers(
            k=keys,
            v=values,
            k_data_ptrs=tables[0],
            v_data_ptrs=tables[1],
            layout=next(iter(KVBufferLayout)),
        ),
        page_size=page_size,
        head_num=heads,
        head_dim=dim,
        v_head_dim=v_dim,
        dtype=dtype,
        device=CPU,
    )
    return get_mha_host_pool_cls(info)(info, layout=layout, **_size(pages, page_size, layers))


def mla_pool(layout: str, pages: int, page_size: int, layers: int, rank: int, rope: int) -> Any:
    """A host pool of latent vectors in bfloat16."""
    dtype = torch.bfloat16
    rows = tuple(torch.empty(page_size, 1, rank + rope, dtype=dtype) for _ in range(layers))
    info = MLABufferInfo(
        buffers=rows,
        data_ptrs=torch.tensor([t.data_ptr() for t in rows], dtype=torch.uint64),
        layer_indices=tuple(range(layers)),
        device_layer_num=layers,
        page_size=page_size,
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        kv_cache_dim=rank + rope,
        dtype=dtype,
        device=CPU,
    )
    return MLATokenToKVPoolHost(
        info, layout=layout, target_layer_num=layers, **_size(pages, page_size, layers)
    )


def _size(pages: int, page_size: int, layers: int) -> dict[str, Any]:
    return {
        "host_to_device_ratio": 1.0,
        "host_size": 0,
        "page_size": page_size,
        "pin_memory": False,
        "device": "cpu",
        "device_capacity_tokens": page_size,
        "start_layer": 0,
        "end_layer": layers,
        "host_token_capacity": pages * page_size,
    }


def make_pool(kind: str, **shape: Any) -> Any:
    return mla_pool(**shape) if kind == "mla" else mha_pool(**shape)


def buffers_of(pool: Any) -> list[torch.Tensor]:
    found = pool.kv_buffer
    return list(found) if isinstance(found, tuple | list) else [found]


def fill(pool: Any, seed: int) -> None:
    """Random bits everywhere."""
    generator = torch.Generator().manual_seed(seed)
    for buffer in buffers_of(pool):
        bits = buffer.view(torch.int16)
        bits.random_(-(1 << 15), 1 << 15, generator=generator)


def number(pool: Any) -> None:
    """A number in each place that tells which kv, layer, token, head and dim it is of."""
    layers, heads, dim = pool.layer_num, pool.head_num, pool.head_dim
    tokens = pool.page_num * pool.page_size
    kv, layer, token, head, column = torch.meshgrid(
        *(torch.arange(count) for count in (2, layers, tokens, heads, dim)), indexing="ij"
    )
    told = (kv * 7919 + layer * 1009 + token * 101 + head * 13 + column) % 32749
    target = pool.kv_buffer.view(torch.int16)
    told = told.to(torch.int16)
    if pool.layout == "page_first":
        told = told.permute(0, 2, 1, 3, 4)
    elif pool.layout != "layer_first":
        told = told.unflatten(2, (pool.page_num, pool.page_size))  # kv layer page token head dim
        order = {"page_first_direct": (0, 2, 1, 3, 4, 5), "page_head": (0, 2, 4, 3, 1, 5)}
        told = told.permute(order[pool.layout])
    target.copy_(told)


def page_digest(pool: Any, page: int) -> str:
    """Of the bytes of a page, found by SGLang's own addresses."""
    digest = hashlib.sha256()
    for address, size in zip(*pool.get_page_buffer_meta(rows(pool, [page])), strict=True):
        digest.update(ctypes.string_at(address, size))
    return digest.hexdigest()


def rows(pool: Any, pages: list[int]) -> torch.Tensor:
    """Host indices of pages."""
    size = pool.page_size
    return torch.cat([torch.arange(page * size, (page + 1) * size) for page in pages])


class Opened:
    """A main pool, its backend, and what was registered beside it."""

    def __init__(
        self,
        kind: str,
        shape: dict[str, Any],
        extra: dict[str, Any],
        config: dict[str, Any],
        environment: dict[str, str],
    ) -> None:
        self.pool = make_pool(kind, **shape)
        self.pools: dict[str, Any] = {"kv": self.pool}
        told: dict[str, Any] = {
            "tp_rank": 0,
            "tp_size": 1,
            "pp_rank": 0,
            "pp_size": 1,
            "attn_cp_rank": 0,
            "attn_cp_size": 1,
            "is_mla_model": kind == "mla",
            "enable_storage_metrics": True,
            "is_page_first_layout": True,
            "model_name": "tiny",
            **config,
        }
        settings = HiCacheStorageConfig(extra_config={**BACKEND, **extra}, **told)
        with ExitStack() as stack:
            for name, value in environment.items():
                os.environ[name] = value
                stack.callback(os.environ.pop, name)
            self.backend = StorageBackendFactory.create_backend("dynamic", settings, self.pool)
        self.backend.register_mem_pool_host(self.pool)
        self.backend.on_host_pools_registered()


class Driver:
    """The commands; each method is one."""

    def __init__(self) -> None:
        self.opened: dict[str, Opened] = {}

    def open(
        self,
        name: str,
        kind: str,
        shape: dict[str, Any],
        extra: dict[str, Any],
        config: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
    ) -> str:
        self.opened[name] = made = Opened(kind, shape, extra, config or {}, environment or {})
        return type(made.backend).__name__

    def add_pool(self, name: str, pool: str, kind: str, shape: dict[str, Any]) -> None:
        here = self.opened[name]
        here.pools[pool] = make_pool(kind, **shape)
        here.backend.register_mem_host_pool_v2(here.pools[pool], pool)

    def fill(self, name: str, seed: int, pool: str = "kv") -> None:
        fill(self.opened[name].pools[pool], seed)

    def number(self, name: str) -> None:
        number(self.opened[name].pool)

    def digests(self, name: str, pages: list[int], pool: str = "kv") -> list[str]:
        return [page_digest(self.opened[name].pools[pool], page) for page in pages]

    def exists(self, name: str, keys: list[str]) -> int:
        return int(self.opened[name].backend.batch_exists(keys))

    def get(self, name: str, keys: list[str], pages: list[int]) -> Any:
        here = self.opened[name]
        return here.backend.batch_get_v1(keys, rows(here.pool, pages))

    def set(self, name: str, keys: list[str], pages: list[int]) -> Any:
        here = self.opened[name]
        return here.backend.batch_set_v1(keys, rows(here.pool, pages))

    def set_flat(self, name: str, keys: list[str], pages: list[int]) -> Any:
        here = self.opened[name]
        data = [here.pool.get_data_page(page * here.pool.page_size) for page in pages]
        return here.backend.batch_set(keys, data)

    def get_flat(self, name: str, keys: list[str], pages: list[int]) -> list[bool]:
        here = self.opened[name]
        targets = [here.pool.get_dummy_flat_data_page() for _ in keys]
        found = here.backend.batch_get(keys, targets)
        for page, data in zip(pages, found, strict=True):
            if data is not None:
                here.pool.set_from_flat_data_page(page * here.pool.page_size, data)
        return [data is not None for data in found]

    def exists_v2(self, name: str, keys: list[str], needs: list[dict[str, Any]]) -> dict[str, Any]:
        transfers = [
            PoolTransfer(
                name=need["pool"],
                keys=need.get("keys"),
                hit_policy=PoolHitPolicy(need["policy"]),
            )
            for need in needs
        ]
        told = self.opened[name].backend.batch_exists_v2(keys, transfers)
        return {
            "pages": told.kv_hit_pages,
            "pools": {str(k): v for k, v in told.extra_pool_hit_pages.items()},
            "lengths": told.restorable_prefix_pages,
        }

    def move_v2(self, name: str, store: bool, moves: list[dict[str, Any]]) -> dict[str, Any]:
        here = self.opened[name]
        transfers = [
            PoolTransfer(
                name=move["pool"],
                keys=move["keys"],
                host_indices=rows(here.pools[move["pool"]], move["pages"]),
            )
            for move in moves
        ]
        told = (here.backend.batch_set_v2 if store else here.backend.batch_get_v2)(transfers)
        return {str(pool): good for pool, good in told.items()}

    def stats(self, name: str) -> dict[str, Any]:
        backend = self.opened[name].backend
        told, ours = backend.get_stats(), backend.stats()
        return {
            "prefetch_pgs": told.prefetch_pgs,
            "backup_pgs": told.backup_pgs,
            "rates": len(told.prefetch_bandwidth) + len(told.backup_bandwidth),
            "pools": ours["pools"],
        }

    def identities(self, name: str) -> dict[str, str]:
        """The description of the main pool's identity, by its digest."""
        store = self.opened[name].backend._pools["kv"].store
        return {
            group.connector.space.identity.hex(): group.connector.space.description
            for group in store._groups
        }

    def clear(self, name: str) -> Any:
        return self.opened[name].backend.clear()

    def close(self, name: str) -> None:
        self.opened.pop(name).backend.close()

    def controller(self, shape: dict[str, Any], extra: dict[str, Any], pages: int) -> list[Any]:
        """Store and prefetch a prompt through SGLang's controller and its threads."""
        from sglang.srt.managers.cache_controller import HiCacheController
        from sglang.srt.mem_cache.radix_cache import RadixKey
        from sglang.srt.mem_cache.utils import get_storage_hash_str
        from sglang.srt.runtime_context import get_parallel

        pool = mha_pool(**shape)
        fill(pool, 5)
        device = SimpleNamespace(
            device="cpu",
            layer_num=pool.layer_num,
            register_layer_transfer_counter=lambda counter: None,
        )
        allocator = SimpleNamespace(get_kvcache=lambda: device)
        ranks = dict.fromkeys(("attn_dcp_rank", "tp_rank", "pp_rank", "attn_tp_rank"), 0)
        sizes = dict.fromkeys(("attn_dcp_size", "tp_size", "pp_size", "attn_tp_size"), 1)
        seen: list[Any] = []
        with get_parallel().override(**ranks, **sizes):
            here = HiCacheController(
                allocator,
                pool,
                pool.page_size,
                None,
                threading.Event(),
                storage_backend="dynamic",
                model_name="tiny",
                storage_backend_extra_config={**BACKEND, **extra},
            )
            tokens = RadixKey(list(range(pages * pool.page_size)), None)
            hashes = get_storage_hash_str(tokens, None, page_size=pool.page_size)
            source = pool.alloc(pages * pool.page_size)
            here.write_storage(source, tokens, hash_value=hashes)
            seen.append(here.ack_backup_queue.get(timeout=30).completed_tokens)
            here.prefetch("request", tokens, None)
            found = here.prefetch_hit_queue.get(timeout=30)
            seen.append(found.storage_hit_count)
            found.host_indices = pool.alloc(found.storage_hit_count)
            here.prefetch_buffer.put(found)
            while not (ack := here.ack_prefetch_queue.get(timeout=30)).completed_req:
                seen.append(ack.completed_tokens)
            pairs = zip(
                source[:: pool.page_size], found.host_indices[:: pool.page_size], strict=True
            )
            seen.append(all(_same(pool, int(a), int(b)) for a, b in pairs))
            here.detach_storage_backend()
        return seen

    def rates(self, name: str, pages: int, rounds: int) -> dict[str, Any]:
        """GB/s of the backend, and how many times that of its client alone, without frames.

        In turn, over the same connections; what is told are medians over the rounds.
        """
        here = self.opened[name]
        client = here.backend.client
        keys = [hashlib.sha256(b"%d" % page).hexdigest() for page in range(pages)]
        source = rows(here.pool, list(range(pages)))
        target = rows(here.pool, list(range(pages, 2 * pages)))
        views = []
        for indices in (source, target):
            addresses, sizes = here.pool.get_page_buffer_meta(indices)
            views.append(
                [
                    (ctypes.c_ubyte * n).from_address(a)
                    for a, n in zip(addresses, sizes, strict=True)
                ]
            )
        names = [f"raw:{index}" for index in range(len(sizes))]
        told: dict[str, list[float]] = {"set": [], "get": [], "ours_set": [], "ours_get": []}

        def raw() -> tuple[float, float]:
            client.batch_delete(names)
            began = time.perf_counter()
            good = client.batch_set(names, views[0]).ok
            between = time.perf_counter()
            good &= client.batch_get(names, views[1]).ok
            assert good
            return between - began, time.perf_counter() - between

        def ours() -> tuple[float, float]:
            here.backend.clear()
            began = time.perf_counter()
            good = all(here.backend.batch_set_v1(keys, source))
            between = time.perf_counter()
            good &= all(here.backend.batch_get_v1(keys, target))
            assert good
            return between - began, time.perf_counter() - between

        for turn in range(rounds + 1):
            if turn % 2:
                first, second = raw(), ours()
            else:
                second, first = ours(), raw()
            if turn:  # the first one warms up
                told["set"].append(first[0] / second[0])
                told["get"].append(first[1] / second[1])
                told["ours_set"].append(sum(sizes) / second[0] / 1e9)
                told["ours_get"].append(sum(sizes) / second[1] / 1e9)
        return {what: statistics.median(values) for what, values in told.items()}


def _same(pool: Any, first: int, second: int) -> bool:
    a, b = (pool.get_data_page(index).view(torch.int16) for index in (first, second))
    return bool(torch.equal(a, b))


if __name__ == "__main__":
    driver = Driver()
    serve(lambda do, **request: getattr(driver, do)(**request))
