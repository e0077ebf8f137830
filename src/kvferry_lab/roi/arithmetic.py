"""The arithmetic of a cache for KV: what it takes to compute a prompt, to load it, and what pays.

Computing ``n`` tokens behind ``m`` that are there takes ``a + c (n - m) + d (n^2 - m^2)``, the form
that the engine learns (`kvferry.cache.cost.prefill`). Loading ``b`` bytes takes ``f + b / B``: a
fixed part and a bandwidth. A hit loads the full chunks of a prompt and computes the rest of it, at
least one token, so ``a`` is paid in both cases.

What is assumed: requests do not wait for each other; loading and computing one request do not
overlap; while a request loads, its GPUs compute others; a miss waits for nothing but what
`Store.miss_s` says; and what does not pay is computed, as the engine decides too.

`arithmetic.js` says the same for the page; the tests compare them.

Units: seconds, bytes, tokens. GB are 10^9 bytes.
Source: FlashAttention-2, arXiv:2307.08691, for 4 n^2 operations of attention per head and value,
half of it where causal; https://docs.nvidia.com/deeplearning/performance for 2 per parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvferry.base.errors import UsageError
from kvferry.cache.cost.prefill import PrefillModel
from kvferry_lab.doctor.model import ModelShape

__all__ = ["Case", "Kv", "Prefill", "Store", "crossover", "fit_line", "fit_prefill"]

# Prompts that no engine takes: a store that has not won by then never wins.
TOKENS_MAX = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Kv:
    """The KV of a prompt, all shards together.

    Attributes:
        whole_bytes: Of one token in the layers that are kept whole.
        window_bytes: Of one token in the layers of which only a window is kept.
        window_tokens: Of that window.
    """

    whole_bytes: float
    window_bytes: float = 0
    window_tokens: int = 0

    @classmethod
    def of(cls, model: ModelShape, *, cut_windows: bool = False) -> Kv:
        """Of a model.

        Args:
            cut_windows: Layers with a window keep no more than it. Not so in kvferry, which stores
                them whole, so that any prefix of a prompt can be found.
        """
        layer = model.kv_values * model.value_bytes
        cut = model.sliding_layers if cut_windows and model.window_tokens else 0
        return cls(
            whole_bytes=(model.kv_layers - cut) * layer,
            window_bytes=cut * layer,
            window_tokens=model.window_tokens if cut else 0,
        )

    def prompt_bytes(self, tokens: float) -> float:
        """Of a prompt of so many tokens."""
        return self.whole_bytes * tokens + self.window_bytes * min(tokens, self.window_tokens)


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """How long an engine computes, and on how many GPUs.

    Attributes:
        source: Where the numbers are from, for people.
    """

    a_s: float
    c_s_per_token: float
    d_s_per_token2: float
    gpus: int = 1
    source: str = ""

    def compute_s(self, tokens: float, cached: float = 0) -> float:
        """Seconds for the tokens behind those that are cached."""
        if tokens <= cached:
            return 0.0
        pairs = tokens * tokens - cached * cached
        return self.a_s + self.c_s_per_token * (tokens - cached) + self.d_s_per_token2 * pairs


@dataclass(frozen=True, kw_only=True)
class Store:
    """What a store gives to one request.

    Attributes:
        bytes_s: Payload per second, all of its servers together.
        fixed_s: Of a load, whatever its size: the round trip, and what the engine adds.
        miss_s: What a request waits for to learn that nothing is there; 0 with the presence view.
    """

    bytes_s: float
    fixed_s: float = 0.0
    miss_s: float = 0.0
    source: str = ""

    def load_s(self, size_bytes: float) -> float:
        """Seconds to load so much."""
        return self.fixed_s + size_bytes / self.bytes_s if size_bytes > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model on one engine with one store.

    Attributes:
        chunk_tokens: Only full chunks are kept.
    """

    kv: Kv
    prefill: Prefill
    store: Store
    chunk_tokens: int = 256

    def kept_tokens(self, tokens: int) -> int:
        """Of a prompt that was there before: its full chunks, but for the last token, which every
        engine computes."""
        return (tokens - 1) // self.chunk_tokens * self.chunk_tokens

    def miss_s(self, tokens: int) -> float:
        """Time to the first token where nothing is there."""
        return self.store.miss_s + self.prefill.compute_s(tokens)

    def loaded_s(self, tokens: int, cached: int) -> float:
        """Time to the first token where so many tokens are loaded."""
        load_s = self.store.load_s(self.kv.prompt_bytes(cached))
        return load_s + self.prefill.compute_s(tokens, cached)

    def pays(self, tokens: int, cached: int) -> bool:
        """Whether the first token comes sooner by loading what is there."""
        return cached > 0 and self.loaded_s(tokens, cached) < self.prefill.compute_s(tokens)

    def ttft_s(self, tokens: int, cached: int) -> float:
        """Time to the first token of a request, by the way that is sooner."""
        if not cached:
            return self.miss_s(tokens)
        return min(self.loaded_s(tokens, cached), self.prefill.compute_s(tokens))

    def saved_s(self, tokens: int, cached: int) -> float:
        """Seconds that the engine does not compute."""
        if not self.pays(tokens, cached):
            return 0.0
        return self.prefill.compute_s(tokens) - self.prefill.compute_s(tokens, cached)

    def break_even_bytes_s(self, tokens: int) -> float:
        """A store of this bandwidth is as quick as computing; infinite where none can be."""
        cached = self.kept_tokens(tokens)
        if not cached:
            return math.inf
        saved_s = self.prefill.compute_s(tokens) - self.prefill.compute_s(tokens, cached)
        left_s = saved_s - self.store.fixed_s
        return self.kv.prompt_bytes(cached) / left_s if left_s > 0 else math.inf

    def crossover_tokens(self) -> float:
        """Prefixes longer than this are loaded sooner than computed; infinite: none is."""
        return crossover(self.prefill, self.kv, self.store.fixed_s, self.store.bytes_s)


def crossover(prefill: Prefill, kv: Kv, fixed_s: float, bytes_s: float) -> float:
    """Where loading begins to be sooner: the root of ``c n + d n^2 - f - bytes(n) / B``.

    The left side is convex and begins at ``-f``, so it has one root or none above zero. Where a
    published time to load includes the step behind it, `fixed_s` is that time less ``a``: it may
    be negative, and then the answer is 0, for always.
    """

    def won_s(tokens: float) -> float:
        computed = prefill.c_s_per_token * tokens + prefill.d_s_per_token2 * tokens * tokens
        return computed - fixed_s - kv.prompt_bytes(tokens) / bytes_s

    if won_s(1.0) >= 0:
        return 0.0
    low, high = 1.0, 2.0
    while won_s(high) < 0:
        low, high = high, high * 2
        if high > TOKENS_MAX:
            return math.inf
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if won_s(middle) < 0 else (low, middle)
    return high


def fit_prefill(rows: Sequence[tuple[int, float]], gpus: int = 1, source: str = "") -> Prefill:
    """``a + c n + d n^2`` by the fit that an engine learns with: no coefficient is negative.

    Args:
        rows: Tokens of a prompt, and the seconds that it took.

    Raises:
        UsageError: Nothing can be fitted: all prompts are of one length, or no time is positive.
    """
    if len({tokens for tokens, _ in rows}) < 2:
        raise UsageError("a fit needs prompts of two lengths at least, three for its curve")
    model = PrefillModel()
    for tokens, took_s in rows:
        model.observe(tokens, 0, took_s)
    a, c, d, _ = model.coefficients
    if c == d == 0:
        raise UsageError("longer prompts took no longer: nothing can be fitted")
    return Prefill(a_s=a, c_s_per_token=c, d_s_per_token2=d, gpus=gpus, source=source)


def fit_line(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """``f + k x``: minimises the sum of the squares of (predicted / seen - 1)."""
    weights = [1 / seen**2 for _, seen in rows]
    w = sum(weights)
    x = sum(weight * at for weight, (at, _) in zip(weights, rows, strict=True)) / w
    y = sum(weight * seen for weight, (_, seen) in zip(weights, rows, strict=True)) / w
    both = zip(weights, rows, strict=True)
    across = [(weight * (at - x), at - x, seen - y) for weight, (at, seen) in both]
    slope = sum(a * seen for a, _, seen in across) / sum(a * at for a, at, _ in across)
    return y - slope * x, slope
