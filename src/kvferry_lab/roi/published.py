"""Figures that others have published, with their set-ups: what `kvferry roi --validate` recomputes.

Nothing here is ours and nothing here is a prediction. Milliseconds are as printed.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BLOCKS", "DELAYS", "GLM", "P2P", "PODS", "TABLES", "VALUES", "Table"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """One prompt at a time, computed on one H200, or pulled from another pod."""

    name: str
    source: str
    tokens: tuple[int, ...]
    compute_ms: tuple[float, ...]
    pull_ms: tuple[float, ...]


# gpt-oss-120b (MXFP4), one H200 for each pod, NIXL over InfiniBand. Both say of the crossover that
# it lies below the smallest prefix that was measured.
TABLES = (
    Table(
        name="gpt-oss-120b, table 1",
        source="llm-d blog, 15 August 2026",
        tokens=(2048, 8192, 16384, 32768, 49152),
        compute_ms=(78, 250, 510, 1173, 1988),
        pull_ms=(35, 57, 86, 165, 235),
    ),
    Table(
        name="gpt-oss-120b, table 2",
        source="llm-d guide, another revision of the rig",
        tokens=(2048, 8192, 16384, 32768, 49152),
        compute_ms=(70.6, 205.4, 426.3, 983.0, 1695),
        pull_ms=(49.0, 120.1, 196.2, 376.3, 550.5),
    ),
)


class GLM:
    """GLM-5.2-FP8 on 32 H200, from the same post: tie near 8K tokens, crossover near 8.7K."""

    floor_s = (1.2, 1.3)  # of a pull, up to 2 GiB and more
    quicker = ((12 * 1024, 0.27), (24 * 1024, 0.61))  # tokens: how much sooner the pull is
    crossover_tokens = (8_000, 9_000)
    kv_gib = ((24 * 1024, 2.1), (70 * 1024, 6.2))


class PODS:
    """128 prefixes of 48K tokens, 16 pods of table 2, all offered more than they can compute."""

    count = 16
    prefix_tokens = 49_152
    requests_s = (9.01, 9.21)  # the least and the most that was reached at 24 and 30 offered


# Model of our table, tokens of a block, GPUs, MiB of a block on each. Source: vLLM blog, 8 January
# 2026 (blocks of 16 and 64); llm-d blog, 24 September 2025 (128).
BLOCKS = (
    ("llama-3.1-8b", 16, 1, 2.0),
    ("llama-3.2-1b", 16, 1, 0.5),
    ("llama-3.1-70b", 16, 4, 1.25),
    ("mistral-7b", 16, 1, 2.0),
    ("mistral-small-24b", 16, 1, 2.5),
    ("qwen2.5-3b", 16, 1, 0.56),
    ("qwen2.5-7b", 16, 1, 0.87),
    ("qwen2.5-1.5b", 16, 1, 0.44),
    ("qwen3-0.6b", 16, 1, 1.75),
    ("qwen3-1.7b", 16, 1, 1.75),
    ("qwen3-4b", 16, 1, 2.25),
    ("qwen3-32b", 16, 2, 2.0),
    ("r1-distill-qwen-32b", 16, 2, 2.0),
    ("deepseek-v2-lite", 64, 1, 1.9),
    ("deepseek-r1", 128, 1, 8.6),
    ("qwen3-8b", 16, 1, 1.97),
)


class VALUES:
    """GB/s of SET and GET by the size of a value in MB: LMCache's page on its RESP connector,
    Redis 8.2 with four I/O threads, eight workers, 500 keys (200 of 8 MB)."""

    set_gbps = ((1, 3.5), (4, 4.4), (8, 4.2))
    get_gbps = ((1, 5.2), (4, 5.9), (8, 1.4))


class P2P:
    """50 documents of 10,000 tokens on two engines with Llama-3.1-8B, whose GPU is not said.
    Source: LMCache's page on sharing between peers."""

    ttft_s = (2.286, 1.036, -0.547)  # without, with, published change
    round_s = (37.957, 13.814, -0.636)
    log = (1002, 0.1223, 60.3595, 2.0264)  # tokens, "gb", ms, "GB/s": both are of 2^30


class DELAYS:
    """Qwen3-0.6B with LMCache on Redis behind a delay: prompts of some 140 tokens, in chunks of
    256, none of which is ever found. Source: nadongjun/LMCache-Network-Perf."""

    chunks_asked = 1  # of a prompt, each in a round trip of its own
    # Round trip in ms: TTFT least, TTFT p50, end to end p50; in ms.
    rows = (
        (0, 12.3, 13.3, 257.0),
        (10, 22.0, 23.5, 266.6),
        (20, 33.2, 34.7, 282.0),
        (30, 42.7, 47.8, 295.5),
        (40, 51.2, 60.2, 315.0),
        (50, 63.2, 72.3, 320.3),
        (1000, 1018.9, 2307.9, 2573.6),
    )
