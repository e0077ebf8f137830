"""What a test of the cost model asks inside an engine of one process: `EngineProcess.call`."""

from __future__ import annotations

from typing import Any

from kvferry.cache.cost.load_or_compute import Account, LoadModel, Odds
from kvferry.cache.cost.prefill import PrefillModel


def _cache(llm: Any) -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()._worker.backend


def believe(llm: Any, s_per_token: float) -> None:
    """Reckon with so slow an engine, whatever steps take; 0: with what they take again."""
    engine = _cache(llm)
    told = PrefillModel(0.0, s_per_token, 0.0, fixed=True) if s_per_token else engine.prefill
    engine._retriever._prefill = told


def forget_stores(llm: Any) -> None:
    """Know as little of the stores, and of what waiting for them has cost, as at the start."""
    engine = _cache(llm)
    engine._retriever.account = Account()
    for store in engine.tiers:
        tier = store.tier
        tier._load, tier._odds = LoadModel(), Odds()
        tier._answers, tier.measured, tier._measure_at = 0, False, 0.0


def prefill(llm: Any) -> dict[str, float]:
    """What was learnt of computing."""
    found: dict[str, float] = _cache(llm).stats()["prefill"]
    return found
