"""Opens the halves of the in-process connector.

This module needs vLLM.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kvferry.cache import TieredCache
from kvferry.cache.prefill import Coefficients
from kvferry.cache.status_socket import open_status_socket
from kvferry.config.integrations import VllmConnectorSettings
from kvferry.integrations.vllm.affinity import all_processors, thread_start
from kvferry.integrations.vllm.blocks import BlockCopier
from kvferry.integrations.vllm.explain import teller
from kvferry.integrations.vllm.finder import BackendFinder
from kvferry.integrations.vllm.identity import model_identity
from kvferry.integrations.vllm.kernels import kernel_name
from kvferry.integrations.vllm.ranks import RankAnswers, RankFinder, address
from kvferry.integrations.vllm.scheduler import SchedulerHalf
from kvferry.integrations.vllm.shard import Shard, identity_of, shard_layout
from kvferry.integrations.vllm.speed import device_name, device_ops_s, guess
from kvferry.integrations.vllm.steps import step_clock
from kvferry.integrations.vllm.versions import vllm_version
from kvferry.integrations.vllm.worker import WorkerHalf

__all__ = [
    "all_ranks",
    "computing_threads",
    "expect_speed",
    "open_copier",
    "open_scheduler",
    "open_worker",
    "save_bytes",
    "this_shard",
]

_log = logging.getLogger("kvferry.integrations.vllm")

# What an answer may take beyond the limit of stores, if a worker is busy.
_GRACE_S = 0.25


def open_scheduler(
    vllm_config: Any, transfer: Any, settings: VllmConnectorSettings, block_size: int
) -> tuple[RankFinder, SchedulerHalf]:
    """The half beside the scheduler, and what it asks the workers by.

    Args:
        vllm_config: Of the engine.
        transfer: Its ``kv_transfer_config``.
        settings: Of the connector.
        block_size: Tokens of a block.

    Raises:
        UsageError: A rank cannot be asked from here.
    """
    limit_s = settings.engine.retrieve_timeout_s
    ranks = all_ranks(vllm_config, transfer, limit_s)
    return ranks, SchedulerHalf(
        ranks,
        chunk_size=settings.engine.chunk_size,
        block_size=block_size,
        limit_s=limit_s + _GRACE_S,
        loads=transfer.is_kv_consumer,
        saves=transfer.is_kv_producer,
        save_generated=settings.save_generated,
        weights_version=settings.engine.weights_version,
    )


def all_ranks(vllm_config: Any, transfer: Any, limit_s: float) -> RankFinder:
    """Asks all workers of an engine, which are there when its scheduler is made.

    Raises:
        UsageError: One cannot be asked from here.
    """
    parallel = vllm_config.parallel_config
    count = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    names = [address(str(transfer.engine_id), rank) for rank in range(count)]
    ranks = RankFinder(names, limit_s)
    ranks.check()
    return ranks


def open_worker(
    vllm_config: Any,
    kv_cache_config: Any,
    spec: Any,
    settings: VllmConnectorSettings,
    kv_caches: dict[str, Any],
) -> tuple[RankAnswers, WorkerHalf]:
    """The half in a worker, and what answers for it.

    Args:
        vllm_config: Of the engine.
        kv_cache_config: Of its caches.
        spec: Of its layers.
        settings: Of the connector.
        kv_caches: The tensors by layer.

    Raises:
        UsageError: The tensors are not what a connector can cache.
    """
    config, shard = settings.engine, this_shard(vllm_config)
    copier = open_copier(vllm_config, kv_cache_config, spec, kv_caches)
    layout = shard_layout(vllm_config, spec, len(copier.layer_names), config.chunk_size, shard)
    identity = identity_of(
        model_identity(vllm_config), layout, spec.block_size, copier.name, copier.block_bytes
    )
    device = next(iter(kv_caches.values())).device
    threads = computing_threads()
    with all_processors():
        # What is looked up is loaded: so the reads leave with the question.
        engine = TieredCache(identity, config.replace(enable_async_loading=True))
        engine.learning.know_device(device_name(device, threads))
    expect_speed(engine.learning.expect, vllm_config, device, threads)
    rank = shard.pp_rank * vllm_config.parallel_config.tensor_parallel_size + shard.tp_rank
    _log.info(
        "kvferry: rank %d caches %s in chunks of %d tokens (%d bytes) as %s",
        rank,
        layout.shard,
        layout.chunk_size,
        layout.chunk_bytes,
        identity.digest.hex(),
    )
    for store in engine.tiers:
        where = next(each.address for each in config.stores if each.name == store.tier.name)
        reached = "reached" if store.tier.connector.available else "not reached yet"
        _log.info("kvferry: store %s at %s is %s", store.tier.name, where, reached)
    worker = WorkerHalf(
        engine,
        copier,
        chunk_size=config.chunk_size,
        chunk_blocks=config.chunk_size // spec.block_size,
        load_timeout_s=config.retrieve_timeout_s,
        load_threads=config.load_threads,
        save_bytes_max=settings.save_bytes_max or save_bytes(vllm_config, layout.token_bytes),
        thread_start=thread_start(),
        memory=[engine.memory.whole],
        steps=step_clock(device),
        rank=rank,
    )
    finder = BackendFinder([engine])
    name = address(str(vllm_config.kv_transfer_config.engine_id), rank)
    with all_processors():
        worker.status_socket = open_status_socket(
            engine, f"vLLM {vllm_version() or ''}, rank {rank}"
        )
        return RankAnswers(name, finder, teller(engine), worker.release_blocks), worker


def expect_speed(
    expect: Callable[[Coefficients, int], None], vllm_config: Any, device: Any, threads: int
) -> None:
    """Tell a cache what computing may take, until steps say otherwise."""
    gpu = device_name(device, threads) if device.type == "cuda" else ""
    guessed = guess(vllm_config, device_ops_s(gpu, threads)) or (0.0, 0.0, 0.0, 0.0)
    expect(guessed, int(vllm_config.scheduler_config.max_num_batched_tokens))


def computing_threads() -> int:
    """How many threads compute, on a CPU."""
    import torch

    return int(torch.get_num_threads())


def open_copier(
    vllm_config: Any, kv_cache_config: Any, spec: Any, kv_caches: dict[str, Any]
) -> BlockCopier:
    """The copier of the engine's tensors.

    Raises:
        UsageError: They have a layout that is not known.
    """
    heads = None if type(spec).__name__ == "MLAAttentionSpec" else spec.num_kv_heads
    return BlockCopier(
        kv_caches,
        spec.block_size,
        blocks=kv_cache_config.num_blocks,
        heads=heads,
        kernel=kernel_name(vllm_config, spec, kv_caches),
    )


def this_shard(vllm_config: Any) -> Shard:
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


def save_bytes(vllm_config: Any, token_bytes: int) -> int:
    """Room for the KV of two steps of the engine."""
    tokens = vllm_config.scheduler_config.max_num_batched_tokens
    return int(max(64 << 20, 2 * tokens * token_bytes))
