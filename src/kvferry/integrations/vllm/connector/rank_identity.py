"""What one rank of a vLLM engine keeps: the layout and the identity of its chunks.

Everything that a connector cannot do is refused here, each with one sentence, before the engine
serves: a wrong answer is worse than none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvferry.base.errors import UsageError
from kvferry.chunks.identity import Identity
from kvferry.chunks.layout import KVLayout
from kvferry.integrations.vllm.identity import DRAFTS_WITHOUT_KV

__all__ = ["Shard", "check_engine", "identity_of", "shard_layout"]

# Attention that keeps every token of a request, each in the block that its position says.
_PLAIN = ("FullAttentionSpec", "MLAAttentionSpec")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Which part of the model a rank has.

    Attributes:
        tp_rank, pp_rank: Of this process.
        pp_layers: How many layers each rank of the pipeline has; empty without one.
    """

    tp_rank: int = 0
    pp_rank: int = 0
    pp_layers: tuple[int, ...] = ()


def check_engine(vllm_config: Any, kv_cache_config: Any) -> Any:
    """Refuse what a connector cannot do; returns the spec of the layers.

    Raises:
        UsageError: One sentence that says what, and what to do.
    """
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        kinds = ", ".join(sorted({type(group.kv_cache_spec).__name__ for group in groups}))
        raise UsageError(
            f"this model keeps KV in {len(groups)} groups ({kinds}), and kvferry's connector can "
            "cache one; try --disable-hybrid-kv-cache-manager, or run it without the connector"
        )
    spec = groups[0].kv_cache_spec
    if type(spec).__name__ not in _PLAIN:
        raise UsageError(
            f"this model keeps KV as {type(spec).__name__}, of which blocks are dropped or "
            "rewritten, so kvferry's connector cannot cache it; run it without the connector"
        )
    parallel = vllm_config.parallel_config
    for name in ("prefill_context_parallel_size", "decode_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise UsageError(
                f"{name} is {getattr(parallel, name)}: kvferry's connector cannot cache blocks "
                "whose tokens are spread over ranks; set it to 1"
            )
    speculation = getattr(vllm_config, "speculative_config", None)
    method = getattr(speculation, "method", None)
    if speculation is not None and method not in DRAFTS_WITHOUT_KV:
        raise UsageError(
            f"speculative decoding by {method!r} keeps KV of drafts beside the model's, which "
            "kvferry's connector cannot cache; use 'ngram', or leave the connector out"
        )
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise UsageError(
            "calculate_kv_scales makes the scales of KV in each process anew, so KV of another "
            "one means something else; leave it out, or the connector"
        )
    return spec


def shard_layout(
    vllm_config: Any, spec: Any, layers: int, chunk_size: int, shard: Shard
) -> KVLayout:
    """The layout of the chunks of a rank.

    Args:
        vllm_config: Of the engine.
        spec: Of its layers; has ``dtype``, ``num_kv_heads`` and ``head_size``.
        layers: How many this rank has.
        chunk_size: Tokens of a chunk.
        shard: Which rank it is.

    Raises:
        UsageError: The parts do not make a whole.
    """
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    pp_layers = shard.pp_layers or (layers,)
    if pp_layers[shard.pp_rank] != layers:
        raise UsageError(
            f"rank {shard.pp_rank} of the pipeline keeps KV of {layers} layers and not of "
            f"{pp_layers[shard.pp_rank]}; kvferry's connector cannot tell which"
        )
    common: dict[str, Any] = {
        "layers": sum(pp_layers),
        "dtype": str(spec.dtype).removeprefix("torch."),
        "chunk_size": chunk_size,
        "pp_size": len(pp_layers),
        "pp_rank": shard.pp_rank,
        "pp_layers": pp_layers if len(pp_layers) > 1 else (),
    }
    if type(spec).__name__ == "MLAAttentionSpec":
        return KVLayout(kind="mla", latent_dim=spec.head_size, **common)
    layout = KVLayout(
        kv_heads=model.get_total_num_kv_heads(),
        head_dim=spec.head_size,
        tp_size=parallel.tensor_parallel_size,
        tp_rank=shard.tp_rank,
        **common,
    )
    if len(layout.head_range) != spec.num_kv_heads:
        raise UsageError(
            f"rank {shard.tp_rank} of {parallel.tensor_parallel_size} keeps {spec.num_kv_heads} "
            f"KV heads and not {len(layout.head_range)}; kvferry's connector cannot tell which"
        )
    return layout


def identity_of(
    fields: dict[str, Any], layout: KVLayout, block_size: int, bytes_name: str, block_bytes: int
) -> Identity:
    """The identity of the chunks of a rank.

    Args:
        fields: From `identity.model_identity`.
        layout: From `shard_layout`.
        block_size: Tokens of a block.
        bytes_name: How the bytes of a chunk lie, e.g. "LBHNC".
        block_bytes: Of one block, all layers of the rank.

    Raises:
        UsageError: The engine keeps more for a token than the layout says, or less.
    """
    chunk_bytes = layout.chunk_size // block_size * block_bytes
    if chunk_bytes != layout.chunk_bytes:
        raise UsageError(
            f"vLLM keeps {block_bytes} bytes in a block of {block_size} tokens, and "
            f"{layout.kind} KV of {layout.dtype} has {layout.token_bytes * block_size}: kvferry's "
            "connector does not know this layout"
        )
    engine = f"vllm {bytes_name} block={block_size}"
    return Identity(**fields, layout=layout, engine=engine)
