"""What of the machine decides how vLLM lays KV out inside a block, beyond what its settings say.

vLLM's CPU kernels pack keys for the instructions that they use (AMX, AVX-512, NEON ...), so blocks
of the same shape from two kinds of CPU are not the same bytes. Versions that do not name the layout
of their cache let the attention backend choose it, and that depends on the kind of GPU.
"""

from __future__ import annotations

import logging
import os
import platform
from typing import Any

__all__ = ["platform_fields"]

_log = logging.getLogger("kvferry.integrations")


def platform_fields(vllm_config: Any = None, layout_named: bool = True) -> dict[str, str]:
    """Fields of an identity: ``device``, and ``attention`` where a backend was asked for.

    Without vLLM there is no device.

    Args:
        vllm_config: To see which attention backend was asked for; None: unknown.
        layout_named: Whether vLLM names the layout of its cache. If not, the exact device counts.
    """
    device = _device(layout_named)
    fields = {"device": device} if device else {}
    backend = getattr(getattr(vllm_config, "attention_config", None), "backend", None)
    asked = getattr(backend, "name", backend) or os.getenv("VLLM_ATTENTION_BACKEND", "")
    if asked:
        fields["attention"] = str(asked)
    if not layout_named and os.getenv("VLLM_KV_CACHE_LAYOUT"):
        fields["kv_order"] = os.environ["VLLM_KV_CACHE_LAYOUT"]
    return fields


def _device(layout_named: bool) -> str:
    try:
        from vllm.platforms import current_platform
    except ImportError:
        return ""
    kind = str(getattr(current_platform, "device_type", "") or "unknown")
    if kind == "cpu":
        return f"cpu {platform.machine()} {_instructions()}".strip()
    if layout_named:
        return kind
    try:
        return f"{kind} {current_platform.get_device_name()}"
    except Exception:  # a driver that does not tell must not keep the engine from starting
        _log.warning("the name of the device is unknown", exc_info=True)
        return kind


def _instructions() -> str:
    """What the kernels ask about the CPU."""
    try:
        import torch
    except ImportError:
        return ""
    found = []
    for name in ("amx_tile", "avx512", "avx2"):
        supported = getattr(getattr(torch, "cpu", None), f"_is_{name}_supported", None)
        if supported is not None and supported():
            found.append(name)
    return "+".join(found)
