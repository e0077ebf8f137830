"""What vLLM 0.22.1 finds out about a model's class by a process of its own, told beforehand.

That process takes twenty seconds of a machine that is lent for minutes. What it finds follows from
the source of the class; vLLM looks whether it is still the same, and asks itself otherwise.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path

__all__ = ["keep_model_info"]

_NAME = "vllm-model_executor-models-llama-LlamaForCausalLM.json"
_SOURCE = "model_executor/models/llama.py"
_SOURCE_MD5 = "e443b9a5c887ad17d9aee9313a75a29e"
_INFO = {
    "architecture": "LlamaForCausalLM",
    "is_text_generation_model": True,
    "is_pooling_model": False,
    "attn_type": "decoder",
    "default_seq_pooling_type": "LAST",
    "default_tok_pooling_type": "ALL",
    "score_type": "bi-encoder",
    "supports_multimodal": False,
    "supports_multimodal_raw_input_only": False,
    "requires_raw_input_tokens": False,
    "supports_multimodal_encoder_tp_data": False,
    "supports_pp": True,
    "has_inner_state": False,
    "is_attention_free": False,
    "is_hybrid": False,
    "has_noops": False,
    "supports_mamba_prefix_caching": False,
    "supports_transcription": False,
    "supports_transcription_only": False,
}


def keep_model_info(environment: Mapping[str, str]) -> bool:
    """Write it to ``VLLM_CACHE_ROOT``, where that is set and vLLM is the version it is of."""
    root, vllm = environment.get("VLLM_CACHE_ROOT"), importlib.util.find_spec("vllm")
    if not root or vllm is None or not vllm.origin:
        return False
    source = Path(vllm.origin).parent / _SOURCE
    if hashlib.md5(source.read_bytes(), usedforsecurity=False).hexdigest() != _SOURCE_MD5:
        return False
    folder = Path(root, "modelinfos")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _NAME).write_text(json.dumps({"hash": _SOURCE_MD5, "modelinfo": _INFO}))
    return True
