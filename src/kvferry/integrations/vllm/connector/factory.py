"""Makes the halves of the connectors: beside the scheduler, and in a worker over a cache.

This module needs vLLM.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvferry.cache.interface import Cache
from kvferry.chunks.identity import Identity
from kvferry.chunks.layout import KVLayout
from kvferry.client.buffers import BufferLike
from kvferry.config.integrations import VllmConnectorSettings
from kvferry.integrations.vllm.blocks.copier import BlockCopier
from kvferry.integrations.vllm.blocks.layouts import kernel_name
from kvferry.integrations.vllm.connector.affinity import (
    all_processors,
    thread_start,
    warn_of_no_processor_left,
)
from kvferry.integrations.vllm.connector.explain import status_of, teller
from kvferry.integrations.vllm.connector.lookup_threads import CacheFinder
from kvferry.integrations.vllm.connector.rank_identity import Shard, identity_of, shard_layout
from kvferry.integrations.vllm.connector.ranks import RankAnswers, RankFinder, address
from kvferry.integrations.vllm.connector.request_hashes import request_hashes
from kvferry.integrations.vllm.connector.scheduler import SchedulerHalf
from kvferry.integrations.vllm.connector.step_times import step_clock
from kvferry.integrations.vllm.connector.worker import WorkerHalf
from kvferry.integrations.vllm.device_speed import device_name, device_ops_s, guess
from kvferry.integrations.vllm.identity import model_identity
from kvferry.integrations.vllm.lora_adapters import Adapters, watch
from kvferry.integrations.vllm.versions import vllm_version
from kvferry.sharing import TieredCache

__all__ = ["OpenRank", "open_rank", "open_scheduler", "open_worker", "rank_names", "worker_half"]

_log = logging.getLogger("kvferry.integrations.vllm")

# What an answer may take beyond its limit, if a worker is busy.
_GRACE_S = 0.25
# What a rank waits at its start for a store to say whether it can be used.
_CONTACT_S = 1.0


def open_scheduler(
    vllm_config: Any,
    transfer: Any,
    settings: VllmConnectorSettings,
    block_size: int,
    limit_s: float,
    agreed: bool = True,
) -> tuple[RankFinder, SchedulerHalf]:
    """The half beside the scheduler, and what it asks the workers by.

    Args:
        vllm_config: Of the engine.
        transfer: Its ``kv_transfer_config``.
        settings: Of the connector.
        block_size: Tokens of a block.
        limit_s: Of an answer.
        agreed: Whether all workers have these settings; else nothing is cached.

    Raises:
        UsageError: A worker cannot be asked from here.
    """
    ranks = RankFinder(rank_names(vllm_config), limit_s)
    ranks.check()
    adapters = watch(Adapters()) if getattr(vllm_config, "lora_config", None) else None
    return ranks, SchedulerHalf(
        ranks,
        chunk_size=settings.cache.chunk_size,
        block_size=block_size,
        limit_s=limit_s + _GRACE_S,
        loads=transfer.is_kv_consumer and agreed,
        saves=transfer.is_kv_producer and agreed,
        save_generated=settings.save_generated,
        weights_version=settings.cache.weights_version,
        hasher=partial(request_hashes, adapters=adapters),
    )


def rank_names(vllm_config: Any) -> list[str]:
    """The sockets of all workers of an engine, which are there when its scheduler is made."""
    parallel = vllm_config.parallel_config
    count = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    engine_id = str(vllm_config.kv_transfer_config.engine_id)
    return [address(engine_id, rank) for rank in range(count)]


@dataclass(frozen=True)
class OpenRank:
    """A worker, before it has a cache: its number and socket, and what its chunks are."""

    vllm_config: Any
    settings: VllmConnectorSettings
    copier: BlockCopier
    layout: KVLayout
    identity: Identity
    device: Any
    number: int
    name: str
    chunk_blocks: int


def open_rank(
    vllm_config: Any,
    kv_cache_config: Any,
    spec: Any,
    settings: VllmConnectorSettings,
    kv_caches: dict[str, Any],
) -> OpenRank:
    """This worker.

    Args:
        vllm_config: Of the engine.
        kv_cache_config: Of its caches.
        spec: Of its layers.
        settings: Of the connector.
        kv_caches: The tensors by layer.

    Raises:
        UsageError: The tensors are not what a connector can cache.
    """
    chunk_size, shard = settings.cache.chunk_size, _this_shard(vllm_config)
    heads = None if type(spec).__name__ == "MLAAttentionSpec" else spec.num_kv_heads
    copier = BlockCopier(
        kv_caches,
        spec.block_size,
        blocks=kv_cache_config.num_blocks,
        heads=heads,
        kernel=kernel_name(vllm_config, spec, kv_caches),
    )
    layout = shard_layout(vllm_config, spec, copier.layers, chunk_size, shard)
    identity = identity_of(
        model_identity(vllm_config), layout, spec.block_size, copier.name, copier.block_bytes
    )
    number = shard.pp_rank * vllm_config.parallel_config.tensor_parallel_size + shard.tp_rank
    _log.info(
        "kvferry: rank %d caches %s in chunks of %d tokens (%d bytes) as %s",
        number,
        layout.shard,
        layout.chunk_size,
        layout.chunk_bytes,
        identity.digest.hex(),
    )
    return OpenRank(
        vllm_config,
        settings,
        copier,
        layout,
        identity,
        next(iter(kv_caches.values())).device,
        number,
        rank_names(vllm_config)[number],
        chunk_size // spec.block_size,
    )


def worker_half(
    rank: OpenRank,
    backend: Cache,
    *,
    memory: Sequence[BufferLike] = (),
    shown: Collection[str] | None = None,
) -> WorkerHalf:
    """The half of a worker over its cache, which is told how long computing may take.

    Args:
        rank: The worker.
        backend: Its cache.
        memory: Of the cache, for a device to pin.
        shown: The series that vLLM shows of the cache; None: all.
    """
    threads = _computing_threads()
    if rank.number == 0:
        warn_of_no_processor_left(threads)
    gpu = device_name(rank.device, threads) if rank.device.type == "cuda" else ""
    guessed = guess(rank.vllm_config, device_ops_s(gpu, threads)) or (0.0, 0.0, 0.0, 0.0)
    step_tokens = int(rank.vllm_config.scheduler_config.max_num_batched_tokens)
    backend.expect_prefill(guessed, step_tokens)
    config = rank.settings.cache
    # Room for the KV of two steps of the engine.
    save_bytes = max(64 << 20, 2 * step_tokens * rank.layout.token_bytes)
    return WorkerHalf(
        backend,
        rank.copier,
        chunk_blocks=rank.chunk_blocks,
        load_timeout_s=config.retrieve_timeout_s,
        save_bytes_max=int(save_bytes),
        thread_start=thread_start(),
        memory=memory,
        steps=step_clock(rank.device),
        rank=rank.number,
        shown=shown,
    )


def open_worker(rank: OpenRank) -> tuple[RankAnswers, WorkerHalf]:
    """The half in a worker with a cache of its own, and what answers for it."""
    config = rank.settings.cache
    with all_processors():
        cache = TieredCache(rank.identity, config)
        cache.learning.know_device(device_name(rank.device, _computing_threads()))
    for store in cache.tiers:
        where = next(each.address for each in config.stores if each.name == store.tier.name)
        _log.info("kvferry: store %s at %s %s", store.tier.name, where, store.contact(_CONTACT_S))
    worker = worker_half(rank, cache, memory=[cache.memory.whole])
    with all_processors():
        answers = RankAnswers(
            rank.name,
            CacheFinder(cache),
            teller(cache),
            worker.release_blocks,
            status=status_of(cache, f"vLLM {vllm_version() or ''}, rank {rank.number}"),
        )
        return answers, worker


def _computing_threads() -> int:
    """How many threads compute, on a CPU."""
    import torch

    return int(torch.get_num_threads())


def _this_shard(vllm_config: Any) -> Shard:
    """Which part of the model this process has."""
    from vllm.distributed import parallel_state

    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    pp_size = parallel.pipeline_parallel_size
    pp_layers: tuple[int, ...] = ()
    pp_rank = 0
    if pp_size > 1:
        from vllm.distributed.utils import get_pp_indices

        pp_rank = parallel_state.get_pp_group().rank_in_group
        total = model.get_total_num_hidden_layers()
        ends = [get_pp_indices(total, rank, pp_size) for rank in range(pp_size)]
        pp_layers = tuple(end - start for start, end in ends)
    tp_rank = parallel_state.get_tensor_model_parallel_rank()
    return Shard(tp_rank=tp_rank, pp_rank=pp_rank, pp_layers=pp_layers)
