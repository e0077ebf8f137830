"""vLLM with a cache in its own processes: the connector `KvferryConnector`.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvferryConnector",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

Each worker has a cache (`kvferry.TieredCache`) with memory of its own, and the stores of the
settings (`settings`). The scheduler asks the workers what they could load (`ranks`), has them load
while the request waits, and has what was computed saved. The decisions are in `scheduler`, the
moves in `worker`; here is what connects them to vLLM, of any version from 0.22.1 on: hooks that a
version does not have are not called by it, and nothing newer than that is imported.

No request fails because of a cache: what cannot be loaded is computed. vLLM would let requests fail
unless ``kv_load_failure_policy`` is "recompute", so this connector sets it, and says so.

vLLM's manager for several kinds of layers (HMA) is not supported, so vLLM turns it off and keeps
layers with a sliding window whole. What cannot be cached correctly is refused; see `rank_identity`.

This module needs vLLM.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from kvferry.integrations.vllm.connector import factory
from kvferry.integrations.vllm.connector.factory import OpenRank
from kvferry.integrations.vllm.connector.interfaces import Work
from kvferry.integrations.vllm.connector.rank_identity import check_engine
from kvferry.integrations.vllm.connector.ranks import RankAnswers, RankFinder
from kvferry.integrations.vllm.connector.scheduler import SchedulerHalf
from kvferry.integrations.vllm.connector.settings import PREFIX, read_settings
from kvferry.integrations.vllm.connector.worker import WorkerHalf
from kvferry.integrations.vllm.plugin import show_logs
from kvferry.integrations.vllm.versions import need

__all__ = ["ConnectorMetadata", "KvferryConnector"]

_log = logging.getLogger("kvferry.integrations.vllm")


class ConnectorMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """What the scheduler's half tells the workers' in one step."""

    def __init__(self, work: Work) -> None:
        self.work = work


class KvferryConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """See the module. One object lives beside the scheduler, one in each worker.

    Raises:
        ConfigError, UsageError: Settings that cannot be, or an engine that cannot be cached.
    """

    _integration = "connector"
    _answers: RankAnswers
    _at_exit: Any  # closes the worker, if nobody else does

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        need(self._integration)
        show_logs()
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._spec = check_engine(vllm_config, kv_cache_config)
        self._block_size = int(self._spec.block_size)
        transfer = vllm_config.kv_transfer_config
        self._extra = transfer.kv_connector_extra_config or {}
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        self._computing = False
        self._read_settings(beside_scheduler=role == KVConnectorRole.SCHEDULER)
        if role == KVConnectorRole.SCHEDULER:
            if transfer.kv_load_failure_policy != "recompute":
                transfer.kv_load_failure_policy = "recompute"
                _log.info("kv_load_failure_policy is set to recompute: no request fails for KV")
            self._ranks, self._scheduler = self._open_scheduler(vllm_config, transfer)

    # --- What the connector over a cache server does in its own way ---

    def _read_settings(self, *, beside_scheduler: bool) -> None:
        self._settings = read_settings(self._extra, self._block_size, quiet=beside_scheduler)

    def _open_scheduler(self, vllm_config: Any, transfer: Any) -> tuple[RankFinder, SchedulerHalf]:
        settings, limit_s = self._settings, self._settings.cache.retrieve_timeout_s
        return factory.open_scheduler(vllm_config, transfer, settings, self._block_size, limit_s)

    def _open_worker(self, rank: OpenRank) -> tuple[RankAnswers, WorkerHalf]:
        return factory.open_worker(rank)

    # --- Beside the scheduler ---

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens behind these can be loaded, and whether the load is asynchronous."""
        assert self._scheduler is not None
        found = self._scheduler.matched(request, num_computed_tokens)
        return found, bool(found)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks were set aside for a request."""
        assert self._scheduler is not None
        ids = blocks.get_block_ids()[0] if num_external_tokens else ()
        self._scheduler.allocated(request, ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> ConnectorMetadata:
        """What the workers do in this step."""
        assert self._scheduler is not None
        return ConnectorMetadata(self._scheduler.work(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers have reported of the last step."""
        if self._scheduler is not None:
            self._scheduler.loaded(connector_output.finished_recving or ())

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Its blocks may be freed: what was to be saved has left them."""
        assert self._scheduler is not None
        self._scheduler.finished(request.request_id)
        return False, None

    def reset_cache(self) -> bool | None:
        """Forget everything of this model, in memory and in stores.

        vLLM calls this before it goes to sleep and unmaps its blocks, too: nobody may touch them
        from now on.
        """
        assert self._scheduler is not None
        if not self._ranks.release_blocks():
            _log.warning("a copy of blocks did not end in time; what it saves is dropped")
        return self._scheduler.clear()

    # --- In a worker ---

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The tensors exist now: open the cache. Called again: these replace the ones before."""
        before, self._worker = self._worker, None
        left = []
        if before is not None:
            self._answers.close()
            left = before.abandon()
            self._at_exit.detach()
        rank = factory.open_rank(
            self._vllm_config, self._kv_cache_config, self._spec, self._settings, kv_caches
        )
        self._answers, worker = self._open_worker(rank)
        self._worker = worker
        worker.inherit(left)  # the engine waits for each of them
        # An engine in the process of its user may end without a word.
        self._at_exit = weakref.finalize(self, worker.close)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Blocks may be written from now on; see `WorkerHalf.begin_step`."""
        if self._worker is not None:
            self._worker.begin_step(kv_connector_metadata.work)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin what this step loads."""
        if self._worker is not None:
            work = self._get_connector_metadata().work
            self._computing = work.computes
            self._worker.start_loads(work)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a request whose load is in flight is not computed."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """A layer is computed."""
        if self._worker is not None:
            self._worker.save_layer(layer_name)

    def wait_for_save(self) -> None:
        """All layers are computed."""
        if self._worker is not None:
            self._worker.end_step()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Which loads have ended. Saves keep no request: they have left its blocks."""
        if self._worker is None:
            return None, None
        computing, self._computing = self._computing, False
        return None, self._worker.finished(computing) or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that the loads which were just reported did not fill."""
        return self._worker.failed_blocks() if self._worker is not None else set()

    def get_kv_connector_stats(self) -> Any:
        """What was done since the last step."""
        if self._worker is None:
            return None
        deltas = self._worker.deltas()
        if not deltas:
            return None
        from kvferry.integrations.vllm.connector.stats import KvferryStats

        return KvferryStats(data=deltas)

    # --- Both ---

    def shutdown(self) -> None:
        """Save what waits, for some seconds at most, and close."""
        self._close_worker()
        if self._scheduler is not None:
            self._scheduler.close()

    def _close_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            self._answers.close()
            worker.close()
            self._at_exit.detach()

    @property
    def requires_kv_delivery(self) -> bool:
        """A save that is dropped is a miss later on, and no reason to compute something again."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Only if every layer is to be saved when it is computed; full graphs lose nothing else."""
        return bool(extra_config.get(f"{PREFIX}layerwise") == "always")

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """For vLLM's log."""
        from kvferry.integrations.vllm.connector.stats import KvferryStats

        return KvferryStats(data=data or {}).shown()

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Any:
        """For vLLM's ``/metrics``."""
        from kvferry.integrations.vllm.connector.stats import KvferryPromMetrics

        return KvferryPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
