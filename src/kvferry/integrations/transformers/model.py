"""What the KV of a Transformers model is: its layout, a fingerprint of its weights, its devices.

The fingerprint is of the weights in memory and not of files: what was trained, merged or converted
after loading has other KV. Only caches of plain full attention have a prefix that can be kept, so
all others are refused here, each with one sentence that says why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from kvferry.base.errors import UsageError
from kvferry.chunks.identity import Identity
from kvferry.chunks.layout import KVLayout

__all__ = ["empty_cache", "fingerprint", "layer_devices", "model_identity", "need_full_attention"]

# Beyond so many bytes on a CPU, a part of each tensor is read; on accelerators reading is quick.
_READ_BYTES_MAX = 8 << 30
_RUNS = 256
_SAMPLES = 64
# They change no KV, or are in the identity by themselves.
_NOT_OF_KV = {"architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
# Of the rotary embedding: with these, the keys of a prefix depend on what follows it.
_GROWING_ROPE = ("dynamic", "longrope")


def model_identity(
    model: PreTrainedModel, chunk_size: int, revision: str = "", lora: str = ""
) -> Identity:
    """The identity of a model's KV.

    Args:
        model: With its weights; to be fingerprinted anew when they are changed.
        chunk_size: Tokens of a chunk.
        revision: Instead of the fingerprint of the weights; it must change when they do.
        lora: Name and revision of the adapter, for a model that has one.

    Raises:
        UsageError: Its KV cannot be kept as chunks of a prefix.
    """
    config = need_full_attention(model)
    if getattr(model, "peft_config", None) and not lora:
        raise UsageError("the model has an adapter; name it and its revision with lora=")
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None)
    layout = KVLayout(
        layers=len(empty_cache(config).layers),
        kv_heads=kv_heads or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=str(model.dtype).removeprefix("torch."),
        chunk_size=chunk_size,
    )
    return Identity(
        model=config.model_type,
        revision=revision or fingerprint(model),
        lora=lora,
        layout=layout,
        engine="transformers",
        extra={"config": _config_digest(config)},
    )


def need_full_attention(model: PreTrainedModel) -> Any:
    """The configuration of the decoder, or a refusal.

    Raises:
        UsageError: The cache of this model is none of plain full attention over text alone.
    """
    config = model.config
    kind = config.model_type
    if config.is_encoder_decoder:
        raise UsageError(f"{kind} has an encoder, and its KV depends on more than a prefix")
    for modality in ("vision", "audio", "speech"):
        if getattr(config, f"{modality}_config", None) is not None:
            raise UsageError(
                f"{kind} reads {modality}, which its tokens do not tell apart; only text is kept"
            )
    config = config.get_text_config(decoder=True)
    if getattr(config, "kv_lora_rank", None):
        raise UsageError(f"{kind} has latent attention (MLA), whose cache is not kept")
    if not hasattr(config, "num_hidden_layers") or not hasattr(config, "num_attention_heads"):
        raise UsageError(f"{kind} does not say how many layers and heads its attention has")
    layers = getattr(empty_cache(config), "layers", None)
    if not layers:
        raise UsageError("this Transformers has no layers in its caches; use 4.56 or newer")
    others = {type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer}
    if others:
        shown = ", ".join(sorted(others))
        raise UsageError(f"the cache of {kind} has {shown}; only full attention is kept")
    for rope in _ropes(config):
        if rope in _GROWING_ROPE:
            raise UsageError(
                f"{kind} has {rope} positions, with which a prefix depends on what follows it"
            )
    return config


def empty_cache(model_config: Any) -> DynamicCache:
    """A cache as `generate` would make it."""
    return DynamicCache(config=model_config)


def layer_devices(model: PreTrainedModel, layers: int) -> list[torch.device]:
    """Where the KV of each layer belongs.

    Raises:
        UsageError: Weights are not in memory, or it cannot be told which layer is where.
    """
    found = {parameter.device for parameter in model.parameters()}
    if torch.device("meta") in found:
        raise UsageError("weights of the model are offloaded; load it into memory to keep its KV")
    if len(found) == 1:
        return list(found) * layers
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == layers:
            return [next(layer.parameters()).device for layer in module]
    raise UsageError("it cannot be told on which devices the layers of the model are")


def fingerprint(model: PreTrainedModel) -> str:
    """A digest of all weights and buffers: names, shapes, and contents.

    Each tensor is read whole, as sums of runs of its bits and a few samples, up to 8 GiB on a CPU
    and without a limit elsewhere; of what is larger, runs spread over each tensor are read.

    Raises:
        UsageError: A weight has no plain memory.
    """
    state = list(_state(model))
    on_cpu = sum(t.nbytes for _, t in state if t.device.type == "cpu")
    step = max(1, -(-on_cpu // _READ_BYTES_MAX))
    digest = hashlib.sha256()
    for name, tensor in state:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        try:
            summary = _summary(tensor, step if tensor.device.type == "cpu" else 1)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise UsageError(
                f"{name} has no plain memory ({error}); name the weights with revision="
            ) from error
        digest.update(summary.cpu().numpy().tobytes())
    return digest.hexdigest()[:32]


def _state(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _summary(tensor: torch.Tensor, step: int) -> torch.Tensor:
    """Up to 256 sums and 64 samples of the words of a tensor, and the bytes behind them, int64."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    count = flat.numel() // 8
    if flat.storage_offset() % 8:
        flat = flat.clone()
    words = flat[: 8 * count].view(torch.int64)
    rest = flat[8 * count :].to(torch.int64)
    if not count:
        return rest
    rows = min(_RUNS, count)
    runs = words[: count // rows * rows].view(rows, -1)
    width = -(-runs.shape[1] // step)
    tail = words[count // rows * rows :].sum().view(1)
    spots = torch.linspace(0, count - 1, min(_SAMPLES, count), dtype=torch.float64).to(torch.int64)
    samples = words[spots.to(words.device)]
    return torch.cat([runs[:, :width].sum(1), tail, samples, rest])


def _config_digest(config: Any) -> str:
    fields = {
        name: value
        for name, value in config.to_dict().items()
        if name not in _NOT_OF_KV and not name.startswith("_")
    }
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _ropes(config: Any) -> Iterator[str]:
    """The kinds of rotary embeddings, also where each kind of layer has its own."""
    for name in ("rope_parameters", "rope_scaling"):
        told = getattr(config, name, None)
        if isinstance(told, dict):
            for part in (told, *(value for value in told.values() if isinstance(value, dict))):
                yield str(part.get("rope_type") or part.get("type") or "")
