"""`KvferryTierConnector`: vLLM's ``OffloadingConnector``, whose tiers know what computes the KV.

    --kv-transfer-config '{"kv_connector": "KvferryTierConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"cpu_bytes_to_use": 10737418240, "secondary_tiers": [
        {"type": "KvferryTier", "url": "redis://cache-1:6379"}]}}'

vLLM's connector tells a tier the model's name and little more. This one gives `KvferryTier` the
whole configuration, of which its identity is made (`tier_identity`). What else it does:

- Requests with a LoRA adapter have names of their own for their blocks, here and in every tier, by
  what the adapter holds (`lora_adapters`). One of which nobody knows what is loaded is computed.
- The spec is vLLM's tiering one, or `spec.KvferryTieringSpec` where that does not end steps.
- KV events say of chunks which tokens they are (``self_describing_kv_events``).
- No request fails because of a load (``kv_load_failure_policy``).

All else is vLLM's. This module needs vLLM.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from kvferry.base.errors import ConfigError
from kvferry.integrations.vllm.lora_adapters import Adapters, LoadedAdapter, watch
from kvferry.integrations.vllm.plugin import show_logs
from kvferry.integrations.vllm.tier.tier_identity import TierEngine
from kvferry.integrations.vllm.versions import need

need("tier")

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import (  # noqa: E402
    OffloadingConnector,
)

__all__ = ["KvferryTierConnector"]

_log = logging.getLogger("kvferry.integrations.vllm")


class KvferryTierConnector(OffloadingConnector):  # type: ignore[misc]  # no vLLM for mypy
    """See the module. One object lives beside the scheduler, one in each worker.

    Raises:
        ConfigError: There is no `KvferryTier` among the tiers.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        show_logs()
        beside_scheduler = role == KVConnectorRole.SCHEDULER
        engine = TierEngine(vllm_config) if beside_scheduler else None
        super().__init__(_completed(vllm_config, engine), role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        if beside_scheduler and transfer.kv_load_failure_policy != "recompute":
            transfer.kv_load_failure_policy = "recompute"
            _log.info("kv_load_failure_policy is set to recompute: no request fails for KV")
        has_adapters = beside_scheduler and getattr(vllm_config, "lora_config", None) is not None
        self._adapters = watch(Adapters()) if has_adapters else None
        self._adapted: dict[str, _Adapted] = {}

    def on_new_request(self, request: Any) -> None:
        """A request waits now."""
        super().on_new_request(self._named(request))

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens behind those can be loaded, and whether that takes a while."""
        named = self._named(request)
        if isinstance(named, _Adapted):
            named.see(num_computed_tokens)
        found: tuple[int | None, bool] = super().get_num_new_matched_tokens(
            named, num_computed_tokens
        )
        return found

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks were set aside for a request."""
        super().update_state_after_alloc(self._named(request), blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """What the workers do in this step; nothing of what is computed with unknown weights."""
        if self._adapted:
            self._stop_unknown(scheduler_output.num_scheduled_tokens)
        return super().build_connector_meta(scheduler_output)

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """For vLLM's ``/metrics``."""
        return super().build_prom_metrics(_completed(vllm_config), *args, **kwargs)

    # --- Inside ---

    def _max_loadable_tokens(self, request: Any, num_computed_tokens: int) -> int | None:
        """vLLM asks its own cache here, where blocks have its own names."""
        plain = request.plain if isinstance(request, _Adapted) else request
        limit: int | None = super()._max_loadable_tokens(plain, num_computed_tokens)
        return limit

    def _named(self, request: Any) -> Any:
        lora = getattr(request, "lora_request", None)
        if lora is None or self._adapters is None:
            return request
        known = self._adapted.get(request.request_id)
        if known is None:
            known = self._adapted[request.request_id] = _Adapted(request, self._adapters.of(lora))
        return known

    def _stop_unknown(self, scheduled: dict[str, int]) -> None:
        """What was computed since its adapter changed is offloaded under no name."""
        states = self.connector_scheduler._req_status
        held: dict[LoadedAdapter | None, bool] = {None: False}
        for request_id, adapted in list(self._adapted.items()):
            state = states.get(request_id)
            if state is None:  # it has ended
                del self._adapted[request_id]
            elif request_id in scheduled:
                load = adapted.load
                if load not in held:
                    held[load] = load is not None and load.holds()
                if not held[load]:
                    _offload_no_more(state)


class _Adapted:
    """A request of vLLM's, whose blocks are named by what its adapter holds."""

    def __init__(self, request: Any, load: LoadedAdapter | None) -> None:
        self.plain, self.load = request, load
        self._salt = os.urandom(16) if load is None else load.digest.encode()
        self._hashes: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def see(self, local_tokens: int) -> None:
        """vLLM has so many of its tokens itself."""
        if self.load is not None and not self.load.is_fit(local_tokens):
            self.load = None
            self._salt = os.urandom(16)
            self._hashes.clear()

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """Nobody has what no name leads to."""
        return self.load is None or bool(getattr(self.plain, "skip_reading_prefix_cache", False))

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """Of its full blocks, as far as vLLM has named them."""
        for named in self.plain.block_hashes[len(self._hashes) :]:
            self._hashes.append(hashlib.sha256(b"kvferry lora\0" + self._salt + named).digest())
        return self._hashes


def _offload_no_more(state: Any) -> None:
    """Of a request as vLLM's offloading knows it."""
    if hasattr(state, "max_offload_tokens"):
        state.max_offload_tokens = 0
        return
    for group in state.group_states:  # 0.22.1: as if it were offloaded; counted anew in each step
        group.next_stored_block_idx = sys.maxsize


def _completed(vllm_config: Any, engine: TierEngine | None = None) -> Any:
    """The configuration for vLLM's connector: what it leaves out, and what our tiers need.

    Raises:
        ConfigError: None of them is ours.
    """
    transfer = copy.copy(vllm_config.kv_transfer_config)
    extra = dict(transfer.kv_connector_extra_config or {})
    given = {"engine": engine} if engine is not None else {}
    tiers, told = [], extra.get("secondary_tiers")
    for tier in told if isinstance(told, list) else ():
        tiers.append({**tier, **given} if _is_ours(tier) else tier)
    if not any(map(_is_ours, tiers)):
        raise ConfigError(
            'KvferryTierConnector needs "secondary_tiers" in kv_connector_extra_config, with one '
            'of {"type": "KvferryTier", "url": ...}'
        )
    extra["secondary_tiers"] = tiers
    extra.setdefault("self_describing_kv_events", True)
    if "spec_name" not in extra:
        extra |= _spec()
    transfer.kv_connector_extra_config = extra
    made = copy.copy(vllm_config)
    made.kv_transfer_config = transfer
    return made


def _is_ours(tier: Any) -> bool:
    return isinstance(tier, dict) and tier.get("type") == "KvferryTier"


def _spec() -> dict[str, str]:
    """vLLM's own where its tiers hear that a step has ended."""
    from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager

    if hasattr(TieringOffloadingManager, "on_schedule_end"):
        return {"spec_name": "TieringOffloadingSpec"}
    return {
        "spec_name": "KvferryTieringSpec",
        "spec_module_path": "kvferry.integrations.vllm.spec",
    }
