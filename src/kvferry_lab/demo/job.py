"""What both processes of the demo must agree on: model, prompt, identity, cache."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from kvferry.chunks.identity import Identity
from kvferry.chunks.layout import KVLayout
from kvferry.config import CacheConfig
from kvferry.config.tuning import CacheTuning
from kvferry.sharing import TieredCache
from kvferry_lab.transformer import KVCache, Transformer, TransformerConfig

__all__ = ["DemoJob", "chunk_buffers", "open_cache", "warm_up"]

_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class DemoJob:
    """One demo run, as process 1 hands it to process 2. `run` is new in each."""

    url: str
    model: TransformerConfig
    seed: int
    prompt: list[int]
    new_tokens: int
    run: str

    @property
    def capacity_tokens(self) -> int:
        """Tokens of the finished sequence."""
        return len(self.prompt) + self.new_tokens

    @property
    def chunks(self) -> int:
        """Full chunks of the prompt, less one if nothing would be left to compute."""
        return (len(self.prompt) - 1) // self.model.page_tokens

    @property
    def chunk_tokens(self) -> list[int]:
        """The tokens of those chunks."""
        return self.prompt[: self.chunks * self.model.page_tokens]

    def identity(self) -> Identity:
        """The KV's identity. The run is part of it: old data cannot help, all goes at the end."""
        model = self.model
        layout = KVLayout(
            layers=model.layers,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            dtype=model.kv_dtype,
            chunk_size=model.page_tokens,
        )
        return Identity(
            model="numpy-transformer",
            revision=f"seed {self.seed}",
            layout=layout,
            rope=f"theta={model.rope_base:g}",
            extra={
                "d_model": model.d_model,
                "d_ff": model.d_ff,
                "heads": model.heads,
                "tied_head": str(model.tied_head),
                "run": self.run,
            },
        )

    def to_json(self) -> str:
        """Write the job down for the other process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DemoJob:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        fields["model"] = TransformerConfig(**fields["model"])
        return cls(**fields)


def chunk_buffers(kv: KVCache, chunks: int) -> list[memoryview]:
    """The first pages of a cache as writable bytes, in place: what is stored and loaded."""
    return [memoryview(page).cast("B") for page in kv.pages[:chunks]]


def warm_up(model: Transformer, job: DemoJob) -> None:
    """Let BLAS start its threads and size its buffers before anything is timed."""
    prompt = job.prompt[: model.config.page_tokens + 8]
    model.generate(prompt, model.new_cache(len(prompt) + 2), 2)


def open_cache(job: DemoJob) -> TieredCache:
    """The cache of one process: memory for the chunks of this prompt, and the store."""
    size_bytes = (job.chunks + 1) * (job.model.page_bytes + 4096)
    config = CacheConfig.load(
        environ={},
        chunk_size=job.model.page_tokens,
        max_local_cpu_size=size_bytes / _GIB,
        tuning=CacheTuning(write_queue_bytes_max=2 * size_bytes),
        remote_url=job.url,
    )
    return TieredCache(job.identity(), config)
