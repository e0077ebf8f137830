"""A small, real decoder-only transformer in NumPy, with its KV cache in the open.

RMSNorm, rotary positions, grouped-query attention, SwiGLU, greedy decoding. The weights are random
numbers from a seed, so the text it writes means nothing; what it shows is real: KV that was stored
and loaded must lead to the same tokens, bit for bit, as KV that was computed here.

    >>> model = Transformer(TransformerConfig(layers=2, d_model=64, page_tokens=8), seed=1)
    >>> prompt = encode("the same beginning, again and again")
    >>> computed = model.new_cache(64)
    >>> tokens, _ = model.generate(prompt, computed, 4)
    >>> loaded = model.new_cache(64)
    >>> loaded.pages[:4] = computed.pages[:4]        # a store would do this
    >>> loaded.length = 4 * 8
    >>> model.generate(prompt, loaded, 4)[0] == tokens
    True

Why bits can be equal: a prompt is always computed in blocks that end at page boundaries, attention
reads K and V from the pages (after rounding, if they hold bfloat16) and page by page. So a run that
continues behind loaded pages makes the same BLAS calls with the same shapes and numbers as a run
that computed them. That holds on one machine with one BLAS and one thread count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeIs

__all__ = ["BOS", "VOCABULARY", "KVCache", "Transformer", "TransformerConfig", "encode"]

F32: TypeAlias = npt.NDArray[np.float32]
U16: TypeAlias = npt.NDArray[np.uint16]

BOS = 256
VOCABULARY = 258  # 256 bytes, begin of sequence, end of sequence


def encode(text: str | bytes) -> list[int]:
    """Turn text into tokens: the begin-of-sequence token, then one token per byte of UTF-8."""
    return [BOS, *(text.encode() if isinstance(text, str) else text)]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The shape of the model. `page_tokens` is also the block in which prompts are computed.

    With `window_pages`, tokens attend to so many pages back, their own included; 0: to all of them.
    """

    layers: int = 8
    d_model: int = 512
    heads: int = 8
    kv_heads: int = 4
    d_ff: int = 1024
    page_tokens: int = 128
    window_pages: int = 0
    rope_base: float = 10_000.0
    tied_head: bool = False
    kv_dtype: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if self.d_model % (2 * self.heads) or self.heads % self.kv_heads:
            raise ValueError("d_model must divide into heads of even size, heads into kv_heads")

    @property
    def head_dim(self) -> int:
        """Numbers per head."""
        return self.d_model // self.heads

    @property
    def page_shape(self) -> tuple[int, int, int, int, int]:
        """One chunk as it is stored: [layers, K and V, page_tokens, kv_heads, head_dim]."""
        return (self.layers, 2, self.page_tokens, self.kv_heads, self.head_dim)

    @property
    def page_bytes(self) -> int:
        """Bytes of one chunk."""
        return int(np.prod(self.page_shape)) * (4 if self.kv_dtype == "float32" else 2)


class KVCache:
    """The keys and values of one sequence, in pages: the unit that is stored and loaded.

    Attributes:
        pages: [n_pages, layers, 2, page_tokens, kv_heads, head_dim], each page contiguous; float32,
            or bfloat16 as uint16. Whoever loads a page writes it here and then moves `length`.
        length: Tokens whose K and V are valid.
    """

    def __init__(self, config: TransformerConfig, capacity_tokens: int) -> None:
        n_pages = -(-capacity_tokens // config.page_tokens)
        shape = (n_pages, *config.page_shape)
        self.pages: F32 | U16  # filled below, not np.zeros: no page faults while we are timed
        if config.kv_dtype == "float32":
            self.pages = np.full(shape, 0, np.float32)
        else:
            self.pages = np.full(shape, 0, np.uint16)
        self.length = 0

    @property
    def capacity_tokens(self) -> int:
        """How many tokens the pages can hold."""
        return int(self.pages.shape[0] * self.pages.shape[3])

    def read(self, page: int, layer: int, tokens: int) -> F32:
        """K and V of the first `tokens` of a page, as [2, tokens, kv_heads, head_dim]."""
        part = self.pages[page, layer, :, :tokens]
        return from_bfloat16(part) if _is_bfloat16(part) else part

    def write(self, start: int, layer: int, kv: F32) -> None:
        """Put K and V of a block, [2, tokens, kv_heads, head_dim], at token `start`."""
        page, offset = divmod(start, self.pages.shape[3])
        target = self.pages[page, layer, :, offset : offset + kv.shape[1]]
        target[...] = to_bfloat16(kv) if _is_bfloat16(target) else kv


def _is_bfloat16(pages: F32 | U16) -> TypeIs[U16]:
    return pages.dtype == np.uint16


def to_bfloat16(values: F32) -> U16:
    """Round finite float32 to bfloat16, to nearest and ties to even, as its upper 16 bits."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: U16) -> F32:
    """Widen bfloat16 (upper 16 bits) to float32; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class _Layer:
    qkv: F32  # [d_model, (heads + 2 * kv_heads) * head_dim]
    out: F32  # [heads * head_dim, d_model]
    gate_up: F32  # [d_model, 2 * d_ff]
    down: F32  # [d_ff, d_model]


class Transformer:
    """Weights and the forward pass. Holds no sequence state: that is all in `KVCache`."""

    def __init__(self, config: TransformerConfig, seed: int) -> None:
        self.config = c = config
        self.seed = seed
        rng = np.random.default_rng(seed)

        def weights(rows: int, columns: int, gain: float = 1.0) -> F32:
            scale = np.float32(gain / rows**0.5)
            return np.multiply(rng.standard_normal((rows, columns), np.float32), scale)

        self.embedding = weights(VOCABULARY, c.d_model, gain=VOCABULARY**0.5)
        self.head = self.embedding.T if c.tied_head else weights(c.d_model, VOCABULARY)
        qkv_columns = (c.heads + 2 * c.kv_heads) * c.head_dim
        self.layers = [
            _Layer(
                qkv=weights(c.d_model, qkv_columns, gain=1.5),  # > 1: attention that picks tokens
                out=weights(c.d_model, c.d_model),
                gate_up=weights(c.d_model, 2 * c.d_ff),
                down=weights(c.d_ff, c.d_model),
            )
            for _ in range(c.layers)
        ]

    @cached_property
    def parameters(self) -> int:
        """How many weights the model has."""
        stacks = sum(w.size for layer in self.layers for w in vars(layer).values())
        return int(stacks + self.embedding.size * (1 if self.config.tied_head else 2))

    def new_cache(self, capacity_tokens: int) -> KVCache:
        """Pages for a sequence of up to `capacity_tokens`, all memory touched."""
        return KVCache(self.config, capacity_tokens)

    def prefill(self, prompt: Sequence[int], kv: KVCache) -> F32:
        """Compute what `kv` does not hold of the prompt yet, block by block.

        Returns:
            The logits [VOCABULARY] of the last token. At least one token must be left to compute;
            bits repeat only when `kv.length` is a whole number of pages.
        """
        if not kv.length < len(prompt) <= kv.capacity_tokens:
            raise ValueError(
                f"prompt of {len(prompt)} tokens: {kv.length} are cached, "
                f"{kv.capacity_tokens} fit; one at least must be left to compute"
            )
        page_tokens = self.config.page_tokens
        while kv.length < len(prompt):
            stop = min(kv.length - kv.length % page_tokens + page_tokens, len(prompt))
            hidden = self.forward(prompt[kv.length : stop], kv)
        last: F32 = self.logits(hidden[-1:])[0]
        return last

    def decode(self, logits: F32, kv: KVCache, new_tokens: int) -> tuple[list[int], F32]:
        """Decode greedily, beginning with the logits that `prefill` returned.

        Returns:
            The new tokens, and the logits [new_tokens, VOCABULARY] that chose them.
        """
        tokens, rows = [int(logits.argmax())], [logits]
        while len(tokens) < new_tokens:
            rows.append(self.logits(self.forward(tokens[-1:], kv))[0])
            tokens.append(int(rows[-1].argmax()))
        return tokens, np.stack(rows)

    def generate(
        self, prompt: Sequence[int], kv: KVCache, new_tokens: int
    ) -> tuple[list[int], F32]:
        """Prefill and decode; see there."""
        return self.decode(self.prefill(prompt, kv), kv, new_tokens)

    def forward(self, tokens: Sequence[int], kv: KVCache) -> F32:
        """Run one block, which must not cross a page boundary, and append its K and V.

        Returns:
            The last hidden states, [tokens, d_model].
        """
        c, start = self.config, kv.length
        rotation = _rotation(start, len(tokens), c.head_dim, c.rope_base)
        x: F32 = self.embedding[np.asarray(tokens, np.intp)]
        for index, layer in enumerate(self.layers):
            qkv = (_rms_norm(x) @ layer.qkv).reshape(len(tokens), -1, c.head_dim)
            q, k, v = np.split(qkv, [c.heads, c.heads + c.kv_heads], axis=1)
            kv.write(start, index, np.stack([_rotate(k, rotation), v]))
            x = x + self._attend(_rotate(q, rotation), kv, index) @ layer.out
            gate, up = np.split(_rms_norm(x) @ layer.gate_up, 2, axis=1)
            x = x + (_silu(gate) * up) @ layer.down
        kv.length += len(tokens)
        return x

    def logits(self, hidden: F32) -> F32:
        """Logits of hidden states: [tokens, d_model] to [tokens, VOCABULARY]."""
        logits: F32 = _rms_norm(hidden) @ self.head
        return logits

    def _attend(self, q: F32, kv: KVCache, layer: int) -> F32:
        """Causal attention of a block, [tokens, heads, head_dim], over the pages up to its own.

        One pass over the pages with a running maximum and sum, so that scores stay in the CPU's
        cache. Source: Milakov and Gimelshein, Online normalizer calculation for softmax (2018).
        """
        c, tokens = self.config, q.shape[0]
        rows = c.heads // c.kv_heads * tokens  # the query heads of a group share K and V
        q = q.transpose(1, 0, 2).reshape(c.kv_heads, rows, c.head_dim)
        q = q * np.float32(c.head_dim**-0.5)
        peak: F32 = np.full((c.kv_heads, rows, 1), -np.inf, np.float32)
        total: F32 = np.zeros((c.kv_heads, rows, 1), np.float32)
        mixed: F32 = np.zeros((c.kv_heads, rows, c.head_dim), np.float32)
        last, offset = divmod(kv.length, c.page_tokens)
        first = max(0, last + 1 - c.window_pages) if c.window_pages else 0
        for page in range(first, last + 1):
            held = offset + tokens if page == last else c.page_tokens
            k, v = kv.read(page, layer, held)
            scores = q @ k.transpose(1, 2, 0)
            if page == last:
                future = np.arange(held) > offset + np.arange(tokens)[:, None]
                scores.reshape(c.kv_heads, -1, tokens, held)[:, :, future] = -np.inf
            new_peak = np.maximum(peak, scores.max(-1, keepdims=True))
            scores -= new_peak
            np.exp(scores, out=scores)
            fade = np.exp(peak - new_peak)
            total = total * fade + scores.sum(-1, keepdims=True)
            mixed = mixed * fade + scores @ v.transpose(1, 0, 2)
            peak = new_peak
        mixed = (mixed / total).reshape(c.heads, tokens, c.head_dim)
        return mixed.transpose(1, 0, 2).reshape(tokens, c.d_model)


def _rms_norm(x: F32) -> F32:
    normed: F32 = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(1e-5))
    return normed


def _silu(x: F32) -> F32:
    half = x * np.float32(0.5)
    result: F32 = half + half * np.tanh(half)  # x times the sigmoid of x, without overflow
    return result


def _rotation(start: int, tokens: int, head_dim: int, base: float) -> tuple[F32, F32]:
    """Cosine and sine of each position and pair of numbers: two [tokens, 1, head_dim / 2]."""
    frequency = base ** (-np.arange(0, head_dim, 2) / head_dim)
    angle = (np.arange(start, start + tokens)[:, None] * frequency)[:, None, :]
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _rotate(x: F32, rotation: tuple[F32, F32]) -> F32:
    """Rotary position embedding of [tokens, heads, head_dim]. Source: Su et al., RoFormer."""
    cos, sin = rotation
    a, b = np.split(x, 2, axis=-1)
    rotated: F32 = np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    return rotated
