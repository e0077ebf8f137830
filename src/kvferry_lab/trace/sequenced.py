"""A request as every format of traces knows it, and how to read one."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

__all__ = ["Sequenced", "TraceOptions"]


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """How to read a trace.

    Attributes:
        block_tokens: Tokens of a block of the file; None: as its format says.
        chunk_tokens: Tokens of a chunk of the cache, a multiple of that; None: one block, and 512
            for agentic traces, 256 for text.
        limit: Read this many requests at most.
        users: Sessions that run at the same time, where the file has sessions without a common
            clock.
        warm: Part of the tool and system prompt that sessions of one model share, where the file
            does not say.
    """

    block_tokens: int | None = None
    chunk_tokens: int | None = None
    limit: int | None = None
    users: int = 40
    warm: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Sequenced:
    """One request as a format knows it: numbers that stand for blocks, below 2**32, and a salt."""

    blocks: array[int]
    salt: bytes = b""
