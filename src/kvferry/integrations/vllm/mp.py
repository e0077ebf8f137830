"""vLLM with a cache server: the connector `KvferryMPConnector`.

    kvferry server --l1-size-gb 10 --port 6555
    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvferryMPConnector",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config":
            {"kvferry.mp.host": "tcp://localhost", "kvferry.mp.port": 6555}}'

Every worker maps the memory of the server and copies its blocks straight out of it; over the socket
go hashes and page numbers only. All engines of a host that run the same model share what any of
them computed, and what one stored stays when it ends. All else is as in `connector`: what a request
may load is found out while others are computed, and brought into the server's memory and held there
before it is promised (`held`).

Without a server vLLM runs as if there were no connector. A server that ends takes with it what is
being loaded, which is computed instead; one that comes back is used again.

This module needs vLLM.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from kvferry.integrations.vllm.affinity import all_processors, thread_start
from kvferry.integrations.vllm.held import HeldCache
from kvferry.integrations.vllm.held_finder import HeldFinder
from kvferry.integrations.vllm.held_meter import SHOWN
from kvferry.integrations.vllm.identity import model_identity
from kvferry.integrations.vllm.in_process import KvferryConnector
from kvferry.integrations.vllm.mp_settings import MpSettings, read_mp_settings
from kvferry.integrations.vllm.opening import (
    all_ranks,
    computing_threads,
    expect_speed,
    open_copier,
    save_bytes,
    this_shard,
)
from kvferry.integrations.vllm.ranks import RankAnswers, RankFinder, address
from kvferry.integrations.vllm.scheduler import SchedulerHalf
from kvferry.integrations.vllm.shard import identity_of, shard_layout
from kvferry.integrations.vllm.steps import step_clock
from kvferry.integrations.vllm.worker import WorkerHalf
from kvferry.server import Client
from kvferry.server.client.greet import greet

__all__ = ["KvferryMPConnector"]

_log = logging.getLogger("kvferry.integrations.vllm")

# What an answer may take beyond the limits of the server, if a worker is busy.
_GRACE_S = 0.25
# What a step without computing waits for an answer: else the engine turns in a circle.
_IDLE_S = 0.0005
# What the start of a rank waits for a server that may be there, to ask for its chunk size.
_GREET_S = 1.0


class KvferryMPConnector(KvferryConnector):
    """See the module, and `KvferryConnector`."""

    _integration = "mp"

    def _read_settings(self, *, beside_scheduler: bool) -> None:
        self._agreed = True
        self._mp: MpSettings = read_mp_settings(
            self._extra,
            self._block_size,
            quiet=beside_scheduler,
            chunk_size=self._size_of_ranks if beside_scheduler else _size_of_server,
        )
        self._settings = self._mp.connector
        self._held: HeldCache | None = None

    def _size_of_ranks(self, url: str, token_file: Path | None) -> int:
        """What the ranks took, which are there before the scheduler is."""
        ranks = RankFinder(self._names(), 0.0)
        size = ranks.chunk_size()
        ranks.close()
        self._agreed = size > 0
        if not size:
            _log.error(
                "kvferry: the ranks do not agree on a chunk size, because the server came or went "
                "while they started; nothing is cached. Start vLLM again, or set kvferry.chunk_size"
            )
        return size

    def _names(self) -> list[str]:
        parallel = self._vllm_config.parallel_config
        ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        engine_id = str(self._vllm_config.kv_transfer_config.engine_id)
        return [address(engine_id, rank) for rank in range(ranks)]

    def _open_scheduler(self, vllm_config: Any, transfer: Any) -> tuple[RankFinder, SchedulerHalf]:
        config = self._settings.engine
        # A server that is away or silent is given up much sooner, by the ranks themselves.
        limit_s = 2 * config.retrieve_timeout_s
        ranks = all_ranks(vllm_config, transfer, limit_s)
        return ranks, SchedulerHalf(
            ranks,
            chunk_size=config.chunk_size,
            block_size=self._block_size,
            limit_s=limit_s + _GRACE_S,
            loads=transfer.is_kv_consumer and self._agreed,
            saves=transfer.is_kv_producer and self._agreed,
            save_generated=self._settings.save_generated,
            weights_version=config.weights_version,
        )

    def _open_worker(self, kv_caches: dict[str, Any]) -> WorkerHalf:
        vllm_config, spec, config = self._vllm_config, self._spec, self._settings.engine
        shard = this_shard(vllm_config)
        copier = open_copier(vllm_config, self._kv_cache_config, spec, kv_caches)
        layout = shard_layout(vllm_config, spec, copier.layers, config.chunk_size, shard)
        identity = identity_of(
            model_identity(vllm_config), layout, spec.block_size, copier.name, copier.block_bytes
        )
        with all_processors():
            client = Client(
                identity,
                self._mp.url,
                retrieve_timeout_s=config.retrieve_timeout_s,
                token_file=self._mp.token_file,
                weights_version=config.weights_version or "",
            )
        rank = shard.pp_rank * vllm_config.parallel_config.tensor_parallel_size + shard.tp_rank
        _log.info(
            "kvferry: rank %d caches %s in chunks of %d tokens (%d bytes) as %s in the server at "
            "%s, which %s",
            rank,
            layout.shard,
            layout.chunk_size,
            layout.chunk_bytes,
            identity.digest.hex(),
            self._mp.url,
            "is there"
            if client.available
            else "refuses it"
            if client.refused
            else "is not there yet",
        )
        self._held = HeldCache(
            client,
            lookup_timeout_s=config.lookup_timeout_s,
            load_timeout_s=config.retrieve_timeout_s,
            thread_start=thread_start(),
            chunk_bytes=layout.chunk_bytes,
        )
        # The server's memory is not pinned: that would back the pages that it holds back.
        device = next(iter(kv_caches.values())).device
        expect_speed(self._held.expect_prefill, vllm_config, device, computing_threads())
        worker = WorkerHalf(
            self._held,
            copier,
            chunk_size=config.chunk_size,
            chunk_blocks=config.chunk_size // spec.block_size,
            load_timeout_s=config.retrieve_timeout_s,
            load_threads=config.load_threads,
            save_bytes_max=self._settings.save_bytes_max
            or save_bytes(vllm_config, layout.token_bytes),
            thread_start=thread_start(),
            steps=step_clock(device),
            rank=rank,
            shown=SHOWN,
        )
        name = address(str(vllm_config.kv_transfer_config.engine_id), rank)
        with all_processors():
            self._answers = RankAnswers(
                name,
                HeldFinder(self._held),
                release_blocks=worker.release_blocks,
                chunk_size=config.chunk_size,
            )
        return worker

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Which loads have ended; see `KvferryConnector`."""
        computing = self._computing
        sent, received = super().get_finished(finished_req_ids)
        if not computing and not received and self._held is not None:
            self._held.wait(_IDLE_S)
        return sent, received


def _size_of_server(url: str, token_file: Path | None) -> int:
    """What a server was started with; 0: nothing, or it is not there."""
    welcome = greet(url, token_file=token_file, timeout_s=_GREET_S)
    if welcome is None or not welcome.chunk_size:
        return 0
    _log.info("kvferry: chunk_size %d, as the server at %s says", welcome.chunk_size, url)
    return welcome.chunk_size
