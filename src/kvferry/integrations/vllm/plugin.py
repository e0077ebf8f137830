"""kvferry as a plug-in of vLLM: its names in vLLM's registries, its log lines among vLLM's.

`register` is the entry point of the group ``vllm.general_plugins``. With it vLLM knows these names
without module paths:

    --kv-transfer-config '{"kv_connector": "KvferryConnector", "kv_role": "kv_both"}'
    --kv-transfer-config '{"kv_connector": "KvferryMPConnector", "kv_role": "kv_both"}'
    --kv-transfer-config '{"kv_connector": "KvferryTierConnector", "kv_role": "kv_both", ...}'
    "secondary_tiers": [{"type": "KvferryTier", "url": "redis://cache-1:6379"}]

vLLM calls `register` in each of its processes, most of which never open a connector. So nothing is
imported here, neither vLLM nor torch: the names are entered when vLLM itself has imported the
registry that they belong to, and what they stand for is imported when vLLM asks for one of them.
What goes wrong is logged and keeps no vLLM from starting. Module paths still work.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["enter_connectors", "enter_tier", "register", "show_logs"]

_log = logging.getLogger("kvferry.integrations.vllm")

_OURS = "kvferry.integrations.vllm"
_CONNECTORS = {
    "KvferryConnector": "connector",
    "KvferryMPConnector": "mp",
    "KvferryTierConnector": "tier",
}


def enter_connectors(module: Any) -> None:
    """Our connectors, into the module of vLLM's ``KVConnectorFactory``."""
    for name, place in _CONNECTORS.items():
        if name not in module.KVConnectorFactory._registry:
            module.KVConnectorFactory.register_connector(name, f"{_OURS}.{place}", name)


def enter_tier(module: Any) -> None:
    """The tier, into the module of vLLM's ``SecondaryTierFactory``."""
    if "KvferryTier" not in module.SecondaryTierFactory._registry:
        module.SecondaryTierFactory.register_tier("KvferryTier", f"{_OURS}.tier", "KvferryTier")


# vLLM's registries, and what is to be entered there. The same names since 0.22.1.
_REGISTRIES: dict[str, Callable[[Any], None]] = {
    "vllm.distributed.kv_transfer.kv_connector.factory": enter_connectors,
    "vllm.v1.kv_offload.tiering.factory": enter_tier,
}


def register() -> None:
    """Enter our names where vLLM's registries are, or as soon as they are; may be called again."""
    for name in _REGISTRIES:
        if name in sys.modules:
            _enter(sys.modules[name])
    if not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def show_logs() -> None:
    """Have the loggers of kvferry write as vLLM's do, if nobody has told them where to write."""
    ours, theirs = logging.getLogger("kvferry"), logging.getLogger("vllm")
    if ours.hasHandlers() or not theirs.handlers:
        return
    for handler in theirs.handlers:
        ours.addHandler(handler)
    if ours.level == logging.NOTSET:
        ours.setLevel(theirs.getEffectiveLevel())
    ours.propagate = False


def _enter(module: ModuleType) -> None:
    try:
        _REGISTRIES[module.__name__](module)
    except Exception:  # a vLLM that has another registry: a module path still works
        _log.exception("kvferry's names are not known to this vLLM; give it a module path")


class _Watch(MetaPathFinder):
    """Sees the registries being imported, and finds nothing by itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _REGISTRIES:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ThenEnter(spec.loader)
                return spec
        return None


class _ThenEnter(Loader):
    """The loader of a registry, which enters our names when it has done its work."""

    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        _enter(module)
