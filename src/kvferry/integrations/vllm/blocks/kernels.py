"""What the engine's kernels make of the inside of a block, where its shape does not say.

The kernels of most attention backends keep a block as its axes say. Others order its numbers as
their instructions want them, whatever shape the tensor has. With vLLM's kernel "vec" for CPUs the
keys of a head are [dim, token] and behind them its values [token, dim], also where the tensor is
[B, H, N, 2D]; which kernel runs depends on the processor, the element type and the length of a
block. So bytes of one machine may mean something else on another one. The name of such a kernel is
therefore part of the name of a layout, and with it of the identity.

What is said here of CPUs is checked with real engines against KV that was computed without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvferry.integrations.vllm.versions import vllm_version

__all__ = ["kernel_name"]

# Backends that keep a block as its axes say; they can read what another one of them has written.
_PLAIN = frozenset(
    {
        "CPU_MLA",
        "CUTLASS_MLA",
        "FLASHINFER",
        "FLASHINFER_MLA",
        "FLASHMLA",
        "FLASH_ATTN",
        "FLASH_ATTN_MLA",
        "FLEX_ATTENTION",
        "TRITON_ATTN",
        "TRITON_MLA",
    }
)


def kernel_name(vllm_config: Any, spec: Any, layers: Iterable[str]) -> str:
    """The kernels that write the KV of some layers; "" if they do as the axes say.

    Args:
        vllm_config: Of the engine, whose model is loaded.
        spec: Of the layers: has ``block_size`` and ``head_size``.
        layers: Their names.
    """
    modules = getattr(vllm_config.compilation_config, "static_forward_context", {})
    backends: list[Any] = [getattr(modules.get(layer), "attn_backend", None) for layer in layers]
    if not backends or None in backends:
        return f"vllm-{vllm_version()}"  # not known: only engines of one version share
    names = {str(backend.get_name()) for backend in backends} - _PLAIN
    found = [_cpu_kernel(vllm_config, spec) if name == "CPU_ATTN" else name for name in names]
    return "+".join(sorted(found)).lower()


def _cpu_kernel(vllm_config: Any, spec: Any) -> str:
    try:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        return str(
            _get_attn_isa(
                vllm_config.model_config.dtype,
                spec.block_size,
                spec.head_size,
                vllm_config.cache_config.cache_dtype,
            )
        )
    except (ImportError, TypeError):  # a version that has another way to choose one
        import torch

        return f"cpu-{vllm_version()}-{torch.backends.cpu.get_cpu_capability()}"
