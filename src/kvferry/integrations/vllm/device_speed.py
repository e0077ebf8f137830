"""How long a model's prefill may take on a device of which nothing is known yet: its operations
over what the device can do.

A token takes two operations for each weight that it passes, and each pair of tokens four for each
element of a head's key, in every layer. Devices reach some of their peak. All of this is rough: the
shape of the curve is used, and its height only until the first steps were measured.

This module needs torch for names of GPUs, and nothing else of vLLM.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from kvferry.cache.cost.prefill import Coefficients

__all__ = ["device_name", "device_ops_s", "guess"]

# Dense operations per second at 16 bits, in 1e12, by what a GPU's name contains; the first counts.
_GPUS = (
    *(("GB200", 2500), ("B200", 2250), ("B300", 2250), ("H200", 989), ("H100", 989), ("H800", 989)),
    *(("H20", 148), ("GH200", 989), ("A100", 312), ("A800", 312), ("L40S", 362), ("L40", 181)),
    *(("L4", 121), ("A10G", 70), ("A10", 125), ("A30", 165), ("A40", 150), ("T4", 65)),
    *(("V100", 112), ("RTX 6000 Ada", 364), ("5090", 210), ("4090", 165), ("3090", 71)),
    *(("MI355", 2300), ("MI325", 1307), ("MI300", 1307), ("MI250", 362)),
)
_OTHER_GPU = 200.0  # one that the table does not name
# Two multiply-adds of a vector at a time, 32 bits an element: what a core does in a cycle.
_VECTOR_BITS = {"avx512f": 512, "avx2": 256}
_CPU_HZ = 2.5e9  # where the kernel does not say the clock
# Of the peak, what a prefill is guessed to reach, until steps were measured.
_PEAK_SHARE = 0.4


def device_name(device: Any, threads: int) -> str:
    """What a ``torch.device`` is, so that the same text means the same speed.

    Args:
        device: Which.
        threads: How many compute, on a CPU.
    """
    if device.type == "cuda":
        import torch

        return str(torch.cuda.get_device_name(device))
    return f"{_cpu().get('model name') or os.uname().machine} x {threads}"


def device_ops_s(gpu: str, threads: int) -> float:
    """Operations per second that a device reaches, roughly.

    Args:
        gpu: Its name; "": it is a CPU.
        threads: How many compute, on a CPU.
    """
    if gpu:
        return _PEAK_SHARE * next((ops for part, ops in _GPUS if part in gpu), _OTHER_GPU) * 1e12
    cpu = _cpu()
    flags = cpu.get("flags", "").split()
    bits = next((width for flag, width in _VECTOR_BITS.items() if flag in flags), 128)
    hz = float(cpu.get("cpu MHz") or 0) * 1e6 or _CPU_HZ
    return _PEAK_SHARE * threads * hz * (bits / 32) * 2 * 2


def guess(vllm_config: Any, ops_s: float) -> Coefficients | None:
    """What computing with a model takes; None: its configuration does not say how large it is."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    config = getattr(model, "hf_text_config", None) or getattr(model, "hf_config", None)
    ranks = max(1, int(getattr(parallel, "tensor_parallel_size", 1)))

    def number(*names: str) -> float:
        for name in names:
            value = getattr(config, name, None)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                return float(value)
        return 0.0

    layers, hidden = number("num_hidden_layers", "n_layer"), number("hidden_size", "n_embd")
    heads = number("num_attention_heads", "n_head")
    if not (layers and hidden and heads):
        return None
    head_dim = number("head_dim") or hidden / heads
    kv_heads = number("num_key_value_heads") or heads
    inner = number("intermediate_size", "n_inner") or 4 * hidden
    if number("num_experts_per_tok"):
        inner = number("num_experts_per_tok") * (number("moe_intermediate_size") or inner)
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    weights = layers * (attention + 3 * hidden * inner)
    pairs = 2 * layers * heads * head_dim  # of (m + n)**2 - m**2, which counts each pair twice
    return (0.0, 2 * weights / ops_s / ranks, pairs / ops_s / ranks, 0.0)


def _cpu() -> dict[str, str]:
    """What the kernel says of the first processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    return {
        key: value.strip()
        for key, value in re.findall(r"^(.+?)\s*:\s*(.*)$", first, flags=re.MULTILINE)
    }
