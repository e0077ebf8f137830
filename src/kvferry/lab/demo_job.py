"""What both processes of the demo must agree on: the model, the prompt, the keys, the client."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from kvferry.keys import chunk_keys, describe_identity, identity_digest
from kvferry.testing.transformer import KVCache, Transformer, TransformerConfig

if TYPE_CHECKING:
    from kvferry.client.pure import PureRedisClient
    from kvferry.client.sync import RedisClient

__all__ = ["Job", "chunk_buffers", "open_client", "warm_up"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One demo run, as process 1 hands it to process 2."""

    url: str
    model: TransformerConfig
    seed: int
    prompt: list[int]
    new_tokens: int
    salt: bytes

    @property
    def capacity_tokens(self) -> int:
        """Tokens of the finished sequence."""
        return len(self.prompt) + self.new_tokens

    @property
    def chunks(self) -> int:
        """Full chunks of the prompt, less one if nothing would be left to compute."""
        return (len(self.prompt) - 1) // self.model.page_tokens

    def keys(self) -> list[str]:
        """One key per full chunk. The salt is new in each run, so no old data can help."""
        description = describe_identity(
            model=f"numpy-transformer seed {self.seed}",
            layout="layer,kv,token,head,dim",
            **asdict(self.model),
        )
        identity = identity_digest(description)
        return chunk_keys(self.prompt, self.model.page_tokens, identity, self.salt)[: self.chunks]

    def to_json(self) -> str:
        """Write the job down for the other process."""
        return json.dumps({**asdict(self), "salt": self.salt.hex()})

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        fields["model"] = TransformerConfig(**fields["model"])
        fields["salt"] = bytes.fromhex(fields["salt"])
        return cls(**fields)


def chunk_buffers(kv: KVCache, chunks: int) -> list[memoryview]:
    """The first pages of a cache as writable bytes, in place: what is stored and loaded."""
    return [memoryview(page).cast("B") for page in kv.pages[:chunks]]


def warm_up(model: Transformer, job: Job) -> None:
    """Let BLAS start its threads and size its buffers before anything is timed."""
    prompt = job.prompt[: model.config.page_tokens + 8]
    model.generate(prompt, model.new_cache(len(prompt) + 2), 2)


def open_client(url: str) -> RedisClient | PureRedisClient:
    """The client of this package: native, or pure Python where the extension was not built."""
    try:
        from kvferry.client.sync import RedisClient
    except ImportError:
        from kvferry.client.pure import PureRedisClient

        return PureRedisClient.from_url(url)
    return RedisClient.from_url(url)
