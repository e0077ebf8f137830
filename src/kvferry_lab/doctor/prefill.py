"""Can this store beat the GPU? Loading a prefix against computing it.

Loading takes a round trip and bytes / rate. Computing takes the FLOPs of the prompt at a share of
the GPU's peak, or the prefill rate that was measured on the user's own engine, which is better.

Source: NVIDIA and AMD data sheets, dense figures without sparsity; a utilisation of 50 %
reproduces published prefill times within some percent (docs/guides/doctor.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvferry.base.errors import UsageError
from kvferry_lab.doctor.facts import Finding, TrafficFacts, info, ok, size_text, warn
from kvferry_lab.doctor.model import ModelShape, chunk_tokens

__all__ = ["GPUS", "UTILISATION", "Engine", "examine_model"]

# Name: peak of 16-bit matrix work, in TFLOP/s.
GPUS = {
    "a10": 125,
    "a10g": 70,
    "a100": 312,
    "b200": 2250,
    "h100": 989,
    "h100-pcie": 756,
    "h20": 148,
    "h200": 989,
    "l4": 121,
    "l40s": 362,
    "mi300x": 1307,
    "rtx4090": 165,
}
UTILISATION = 0.5
_STRIPE_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What computes the prompt.

    Attributes:
        gpu: A name of `GPUS`; ``None`` leaves the comparison out.
        gpus: How many share the model, tensor-parallel.
        prefill_tokens_s: Measured; wins over `gpu`.
        prefix_tokens: Length of the prefix that is loaded or computed.
    """

    gpu: str | None = None
    gpus: int = 1
    prefill_tokens_s: float | None = None
    prefix_tokens: int = 8192

    def compute_s(self, model: ModelShape) -> float | None:
        """Time to compute the prefix; `None` if nothing says how fast."""
        if self.prefill_tokens_s:
            return self.prefix_tokens / self.prefill_tokens_s
        if self.gpu is None:
            return None
        if self.gpu not in GPUS:
            raise UsageError(f"--gpu {self.gpu} is unknown; known are {', '.join(GPUS)}")
        rate = GPUS[self.gpu] * 1e12 * self.gpus * UTILISATION
        return model.prefill_flops(self.prefix_tokens) / rate

    def made_bytes_s(self, model: ModelShape) -> float | None:
        """KV computed in a second: a slower store does not pay; `None` if nothing says so."""
        compute_s = self.compute_s(model)
        return self.prefix_tokens * model.bytes_per_token / compute_s if compute_s else None


def examine_model(model: ModelShape, engine: Engine, traffic: TrafficFacts) -> Iterator[Finding]:
    """Bytes per token, tokens per chunk, and who wins."""
    for finding in (kv_size(model), chunking(model, engine), contest(model, engine, traffic)):
        if finding is not None:
            yield replace(finding, scope="model")


def kv_size(model: ModelShape) -> Finding:
    """How much KV a token has."""
    seen = (
        f"{model.name}: {model.bytes_per_token:,} bytes of KV per token "
        f"({model.kv_layers} layers x {model.kv_values:,} x {model.value_bytes} bytes)"
    )
    if model.sliding_layers:
        why = f"{model.sliding_layers} of the layers look at a window only and need no more of it"
        return info("kv-size", seen, why)
    return ok("kv-size", seen)


def chunking(model: ModelShape, engine: Engine) -> Finding:
    """How many tokens a chunk should hold."""
    per_token = model.shard_bytes_per_token(engine.gpus)
    tokens = chunk_tokens(per_token)
    size = tokens * per_token
    seen = f"chunk_size {tokens}: {size_text(size)} for each of {engine.gpus} GPUs"
    if engine.gpus == 1:
        seen = f"chunk_size {tokens}: {size_text(size)}"
    if size > _STRIPE_BYTES:
        return ok("chunk-tokens", f"{seen}, in {-(-size // _STRIPE_BYTES)} stripes")
    return ok("chunk-tokens", seen)


def contest(model: ModelShape, engine: Engine, traffic: TrafficFacts) -> Finding | None:
    """Loading against computing."""
    compute_s, rate = engine.compute_s(model), traffic.best_bytes_s
    tokens, size = engine.prefix_tokens, engine.prefix_tokens * model.bytes_per_token
    wanted = engine.made_bytes_s(model)
    if compute_s is None or wanted is None:
        return info("beats-prefill", "not compared: give --gpu NAME or --prefill-tokens-s RATE")
    who = f"{engine.gpus} x {engine.gpu}" if engine.gpu else "the engine"
    if engine.prefill_tokens_s:
        who = "the engine"
    made = f"{who} makes {wanted / 1e9:.2f} GB of KV per second"
    if not rate:
        return info("beats-prefill", f"{made}; this store's rate was not measured")
    load_s = size / rate + (traffic.rtt_s or 0.0)
    seen = (
        f"{tokens:,} tokens: loaded in {load_s:.3g} s at {rate / 1e9:.2f} GB/s, computed in "
        f"{compute_s:.3g} s ({made})"
    )
    if load_s < compute_s:
        return ok("beats-prefill", f"{seen}: {compute_s / load_s:.1f} times sooner")
    why = "with this store each hit makes the first token later, not sooner"
    fix = f"a store of at least {wanted / 1e9:.1f} GB/s: see `bandwidth` and `connections`"
    return warn("beats-prefill", seen, why, fix)
