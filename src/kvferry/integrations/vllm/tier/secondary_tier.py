"""`KvferryTier`: a secondary tier of vLLM's ``OffloadingConnector`` in a store.

    --kv-transfer-config '{"kv_connector": "KvferryTierConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"cpu_bytes_to_use": 10737418240, "secondary_tiers": [
        {"type": "KvferryTier", "url": "redis://cache-1:6379"}]}}'

vLLM copies KV between the GPU and pinned memory, and decides what goes where. This tier moves
chunks between that memory and the store. It runs in vLLM's scheduler, so it never waits: questions
and transfers are native batches that threads without the GIL carry out, and their ends are looked
for once a step. What vLLM's key does not say (model, weights, layout, workers) is in the identity,
which is in every key and frame, and comes from the configuration that `tier_connector` hands on.
See docs/guides/vllm-tier.md; options: `tier_options`.

A store that is away, slow, full or wrong is a miss or a store less, never an error. vLLM knows the
name by the entry point (`plugin`).

Ownership: vLLM's rows belong to the store until `get_finished_jobs` has returned their job. The
memory is released by `shutdown`; if that raises, something still uses it and vLLM must keep it.
Threads: the scheduler's.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import time
from collections.abc import Collection, Iterable
from typing import Any

from kvferry.base.errors import UsageError
from kvferry.cache.results import RequestLog
from kvferry.cache.store.coding import Coding, coder_bytes_s
from kvferry.chunks.keys import identity_digest
from kvferry.config.remote_sources import Address, AllowedHosts
from kvferry.connectors.base import Connector, Space
from kvferry.connectors.redis import RedisConnector
from kvferry.integrations.vllm.device_speed import device_ops_s, guess
from kvferry.integrations.vllm.tier.core import TierCore
from kvferry.integrations.vllm.tier.sources import Sources
from kvferry.integrations.vllm.tier.store_channel import in_the_background
from kvferry.integrations.vllm.tier.tier_cost import Patience, TierSteps
from kvferry.integrations.vllm.tier.tier_identity import (
    TierEngine,
    chunk_tokens,
    describe_rows,
    refuse_other_connectors,
    warn_of_random_seed,
)
from kvferry.integrations.vllm.tier.tier_options import TierOptions, read_options
from kvferry.integrations.vllm.tier.tier_series import (
    AVAILABLE,
    SERIES,
    STORE_AVAILABLE,
    Observed,
    labels_of,
)
from kvferry.integrations.vllm.tier.transfers import FinishedTransfer
from kvferry.integrations.vllm.versions import need
from kvferry.metrics.collector import unregister_series
from kvferry.metrics.series import Family

need("tier")

from vllm.logger import init_logger  # noqa: E402  (after `need`, which says it better)
from vllm.v1.kv_offload import base as offload  # noqa: E402
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager  # noqa: E402

__all__ = ["KvferryTier"]

_log = init_logger("vllm.kvferry.tier")  # below vLLM's own, which is the one that is shown

_STATS_EVERY_S = 0.1

# Since 0.23 lookups answer with an enumeration, before that with True, False and None.
_LookupResult: Any = getattr(offload, "LookupResult", None)
_MISS: Any = _LookupResult.MISS if _LookupResult else False
_HIT: Any = _LookupResult.HIT if _LookupResult else True
_RETRY: Any = _LookupResult.RETRY if _LookupResult else None
_Medium: Any = getattr(offload, "Medium", None)
_RESULT_FIELDS = {field.name for field in dataclasses.fields(JobResult)}
_BASE_OPTIONS = inspect.signature(SecondaryTierManager.__init__).parameters


class KvferryTier(SecondaryTierManager):  # type: ignore[misc]  # vLLM is not there for mypy
    """See the head of this module.

    Args:
        offloading_spec: vLLM's.
        primary_kv_view: vLLM's pinned memory: rows of one chunk each.
        tier_type: The name that vLLM's metrics have for this tier.
        backpressure_detector: vLLM's; it decides what is not even offered to us.
        engine: From our connector; None: from another one, whose tier opens nothing.
        **options: See `kvferry.integrations.vllm.tier.tier_options`.

    Raises:
        ConfigError: An option is unknown or cannot be, or the connector is not ours.
        KVFerryError: The store cannot be opened. (One that is away can: it may come.)
    """

    if _Medium is not None:
        medium = _Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        engine: Any = None,
        **options: Any,
    ) -> None:
        if not isinstance(engine, TierEngine):
            refuse_other_connectors(offloading_spec, options)
        given = {"backpressure_detector": backpressure_detector}
        super().__init__(
            offloading_spec,
            primary_kv_view,
            tier_type,
            **{name: value for name, value in given.items() if name in _BASE_OPTIONS},
        )
        if not primary_kv_view.strides or not primary_kv_view.c_contiguous:
            raise UsageError("the memory of the primary tier is not contiguous, so no row is")
        options.pop("module_path", None)  # 0.22.1 leaves it to us
        row_bytes = primary_kv_view.strides[0]
        settings = read_options(options, primary_kv_view.nbytes)
        own = settings.own
        description = describe_rows(offloading_spec, row_bytes, engine, own.weights_version)
        identity = identity_digest(description)
        warn_of_random_seed(offloading_spec, engine.vllm_config)
        space = Space(f"kvf:{identity.hex()}:", identity, row_bytes, description)
        self.address = settings.store.address
        self.identity = identity
        with in_the_background():
            connector = settings.open(space)
        self.core = TierCore(
            connector,
            primary_kv_view,
            settings.limits,
            patience=_patience(offloading_spec, engine.vllm_config),
            coding=_coding(settings, connector),
        )
        self._open_source, self._space = settings.open_source, space
        self._sources: Sources | None = None
        if own.remote_kv_sources:
            allowed = AllowedHosts(own.remote_kv_sources)
            self._sources = Sources(self.core, self._source, allowed)
        self._all: TierCore | Sources = self._sources or self.core
        self._steps = TierSteps(self.core.patience.prefill)
        self._store = settings.store_name
        self._observed = Observed(self.address, self._store, self.core.patience.chunk_tokens)
        self._lines = RequestLog(_log)
        self._stats_at = 0.0
        self._events: list[Any] | None = _events(offloading_spec) if own.enable_kv_events else None
        _log.info(
            "KvferryTier at %s: %d bytes a chunk, identity %s, %s",
            *(self.address, row_bytes, identity.hex()),
            "connected" if self.core.available else "not connected yet",
        )

    # --- What a step asks ---

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """Whether the store has a chunk; the first time "ask again", while the store is asked."""
        if self._sources is None:
            found = self.core.lookup(req_context.req_id, key)
        else:
            params = getattr(req_context, "kv_transfer_params", None)
            found = self._sources.lookup(req_context.req_id, key, params)
        return _RETRY if found is None else _HIT if found else _MISS

    def submit_store(self, job_metadata: Any) -> None:
        """Begin to store chunks; what the store has is skipped."""
        keys = list(job_metadata.keys)
        self._computed(getattr(job_metadata, "req_context", None), keys)
        self.core.store(job_metadata.job_id, keys, _rows(job_metadata))

    def submit_load(self, job_metadata: Any) -> None:
        """Begin to load chunks."""
        self._all.load(job_metadata.job_id, list(job_metadata.keys), _rows(job_metadata))

    def get_finished_jobs(self) -> Iterable[Any]:
        """The jobs that are over; of a load that failed in part, the keys that came."""
        return [self._result(job) for job in self._all.finished()]

    get_finished = get_finished_jobs  # its name until 0.22

    def has_pending_work(self) -> bool:
        """Whether the next step has something to see here."""
        return self._all.busy

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        """Tell the store, sooner or later, that chunks are in use."""
        self.core.touch(keys)

    def on_new_request(self, req_context: Any) -> Any:
        """No wishes: every chunk is offered when it is new."""
        return offload.RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Forget what was asked for it."""
        self._steps.finished(req_context.req_id)
        self._all.forget(req_context.req_id)

    def on_schedule_end(self, context: Any = None) -> None:
        """The questions of this step go out: one batch for each request."""
        if context is not None:
            self._steps.ended(time.monotonic(), context.new_req_ids)
        self._all.end_step()

    # --- Life ---

    def drain_jobs(self) -> None:
        """Wait until no transfer touches vLLM's memory; bounded, see `TierCore.drain`.

        vLLM asks for this when it resets its cache, before it sleeps or after its weights have
        changed: so nothing that was stored before is found from now on.
        """
        self._all.drain()
        self._all.clear()

    def shutdown(self) -> None:
        """Finish stores, for a bounded time, and let go of vLLM's memory."""
        self._all.close()
        self._primary_kv_view = memoryview(b"")  # the base class keeps one too
        _log.info("KvferryTier at %s: %s", self.address, dict(self.core.counts))

    # --- What it tells ---

    def stats(self) -> dict[str, int]:
        """Counters since the beginning; see `TierCore`."""
        return dict(self.core.counts) | dict(self._sources.counts if self._sources else {})

    def take_events(self) -> Iterable[Any]:
        """What the store has acknowledged since the last call."""
        if self._events:
            events, self._events = self._events, []
            return events
        return ()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """The series of `get_stats`, which vLLM makes now."""
        unregister_series()
        return {name: _definition(family) for name, family in SERIES.items()}

    def get_stats(self) -> Any:
        """What is new since the last call, as vLLM collects it; None if that was just now."""
        now = time.monotonic()
        if now - self._stats_at < _STATS_EVERY_S:
            return None
        self._stats_at = now
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading import metrics

        stats = metrics.OffloadingConnectorStats()
        for name, labels, value in self._observed.new_values(self.core.counts):
            if SERIES[name].kind == "histogram":
                stats.observe_histogram(name, value, labels)
            else:
                stats.increase_counter(name, value, labels)
        stats.set_gauge(AVAILABLE, int(self.core.available), (self.address,))
        stats.set_gauge(STORE_AVAILABLE, int(self.core.available), (self._store,))
        return stats

    # --- Inside ---

    def _source(self, address: Address) -> TierCore:
        """A node that a request names, over the same rows."""
        patience = Patience(
            chunk_tokens=self.core.patience.chunk_tokens, prefill=self.core.patience.prefill
        )
        with in_the_background():
            connector = self._open_source(self._space, address)
        return TierCore(connector, self._primary_kv_view, self.core.limits, patience=patience)

    def _computed(self, request: Any, keys: list[bytes]) -> None:
        """Learn from a step in which these chunks were computed."""
        position_of = getattr(request, "get_offload_key_position", None)
        if position_of is None or not self.core.patience.chunk_tokens:
            return
        ends = [end for key in keys if (end := position_of(key)) is not None]
        if ends and len(ends) == len(keys):
            start = min(ends) - self.core.patience.chunk_tokens
            self._steps.stored(request.req_id, start, max(ends))

    def _result(self, job: FinishedTransfer) -> Any:
        self._tell(job)
        if job.took_s:
            self._observed.seconds["load" if job.is_load else "store"].append(job.took_s)
        if self._events is not None and not job.is_load and job.done:
            self._events.append(self._stored(job.done))
        told: dict[str, Any] = {
            "transfer_time": job.took_s,
            "transfer_bytes": job.size_bytes,
            "successful_keys": tuple(job.done) if job.is_load and not job.success else None,
        }
        known = {name: value for name, value in told.items() if name in _RESULT_FIELDS}
        return JobResult(job_id=job.job, success=job.success, **known)

    def _tell(self, job: FinishedTransfer) -> None:
        size = self.core.patience.chunk_tokens
        tokens, came = len(job.keys) * size, {self._store: len(job.done) * size}
        if job.is_load and size:
            reason = "" if job.success else "not in time, gone or damaged"
            self._lines.retrieved(tokens, came, job.size_bytes, job.took_s, reason)
        elif (job.done or job.refused) and size:
            done, why = len(job.done) * size, job.why or "it did not answer in time"
            refused = {self._store: (job.refused * size, why)} if job.refused else {}
            self._lines.stored(tokens, done, came, job.size_bytes, job.took_s, refused=refused)

    def _stored(self, keys: Iterable[bytes]) -> Any:
        return offload.OffloadingEvent(
            keys=list(keys), medium=_Medium.STORAGE, removed=False, locality=self.locality
        )


def _patience(spec: Any, vllm_config: Any) -> Patience:
    """How long waiting for the store may pay, by what computing may take on this device."""
    made = Patience()
    made.chunk_tokens = chunk_tokens(spec)
    coefficients = guess(vllm_config, _ops_s())
    if coefficients is not None:
        made.prefill.step_tokens = int(vllm_config.scheduler_config.max_num_batched_tokens)
        made.prefill.expect(coefficients)
    return made


def _coding(settings: TierOptions, connector: Connector) -> Coding | None:
    if settings.own.remote_serde != "auto" or not isinstance(connector, RedisConnector):
        return None
    with in_the_background():
        coder_bytes_s()  # now, because no step waits for it
    return Coding(settings.store_name, connector.write_as)


def _ops_s() -> float:
    from vllm.platforms import current_platform

    is_cpu = current_platform.device_type == "cpu"
    gpu = "" if is_cpu else str(current_platform.get_device_name())
    return device_ops_s(gpu, os.cpu_count() or 1)


def _rows(job: Any) -> list[int]:
    rows = getattr(job, "chunk_ids", None)  # block_ids until 0.22
    return [int(row) for row in (job.block_ids if rows is None else rows)]


def _events(spec: Any) -> list[Any] | None:
    """A place for events, if this vLLM takes events from tiers and was told to publish them."""
    if getattr(getattr(spec, "kv_events_config", None), "enable_kv_cache_events", False):
        return []
    _log.warning("enable_kv_events: this vLLM publishes no KV events of tiers, so none are made")
    return None


def _definition(family: Family) -> Any:
    kinds = {"counter": "Counter", "gauge": "Gauge", "histogram": "Histogram"}
    kind = getattr(offload, f"Offloading{kinds[family.kind]}Metadata")
    more = {"buckets": family.bounds} if family.bounds else {}
    return kind(documentation=family.help, labelnames=labels_of(family), **more)
