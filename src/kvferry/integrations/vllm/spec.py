"""`KvferryTieringSpec`: what vLLM 0.22.1 needs for `KvferryTier`.

`KvferryTierConnector` takes it where vLLM's own is not enough. It is vLLM's
``TieringOffloadingSpec`` with the tier registered. Where vLLM does not tell tiers that a step has
ended, it does that too, so that the questions of a step go out at once and not in the next one. It
works with later versions as well, and adds nothing there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvferry.integrations.vllm.plugin import enter_tier
from kvferry.integrations.vllm.versions import need

need("tier")

from vllm.v1.kv_offload.tiering import factory  # noqa: E402
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec  # noqa: E402

__all__ = ["KvferryTieringSpec", "end_steps", "register"]


def register() -> None:
    """Make the tier known by its name; may be called twice."""
    enter_tier(factory)


def end_steps(manager: Any) -> Any:
    """Let a manager that does not do it tell our tiers that a step has ended."""
    if hasattr(manager, "on_schedule_end") or getattr(manager, "_kvferry_ends_steps", False):
        return manager
    taken = manager.take_events  # 0.22.1 calls it once, at the end of a step

    def take_events() -> Iterable[Any]:
        yield from taken()
        for tier in manager.secondary_tiers:
            if hasattr(tier, "on_schedule_end"):
                tier.on_schedule_end()

    manager.take_events = take_events
    manager._kvferry_ends_steps = True
    return manager


class KvferryTieringSpec(TieringOffloadingSpec):  # type: ignore[misc]  # no vLLM for mypy
    """See the head of this module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        register()
        super().__init__(*args, **kwargs)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """vLLM's and the tier's; 0.22.1 asks nobody for these."""
        register()
        above = getattr(super(), "build_metric_definitions", None)
        return {} if above is None else dict(above(extra_config))

    def get_manager(self) -> Any:
        """vLLM's, whose steps end."""
        return end_steps(super().get_manager())
