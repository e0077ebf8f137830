"""What the two halves of a connector are written against, and what they tell each other.

A connector lives twice in an engine: one half beside the scheduler, which knows requests and block
ids and decides; one half in each worker, which has the tensors and moves bytes. Neither half knows
vLLM or torch, and both work with every `kvferry.cache.interface.Cache`.

- The scheduler half asks a `Finder` how much of a prompt *every* rank could load.
- The worker half brings chunks from a cache and has a `BlockCopier` put them into blocks, and back.
- What one tells the other is `Work`: plain numbers and bytes, which survive any pickling.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from kvferry.chunks.prompt import Prompt

__all__ = ["Finder", "LoadJob", "SaveJob", "Work"]


class Finder(Protocol):
    """Says how much of a prompt can be loaded, by all ranks of the engine."""

    def find(self, prompt: Prompt) -> int:
        """How many leading chunks every rank could load now and should; 0 if nobody can say.

        Called in a thread of the caller; it takes as long as waiting can pay, and no longer. Where
        a store is known not to answer it is not waited for.
        """

    def now(self, prompt: Prompt) -> int | None:
        """The same where the answer needs no waiting, as when no store is up; None: `find` it.

        Called in the engine's thread.
        """

    @property
    def shared(self) -> bytes:
        """The half of generations that all engines of the stores have in common, as the last answer
        said it. Prompts of another one find nothing."""

    def renewed(self, ended: bytes, own: bytes) -> None:
        """This engine has cleared: `own` is its half of generations, and not `ended` any more.

        Does not wait; see `kvferry.TieredCache.renewed`.
        """

    def close(self) -> object: ...


@dataclass(slots=True)
class LoadJob:
    """Chunks that are to come into blocks of a request that waits for them.

    Attributes:
        request_id: Of the request.
        prompt: With the chunks of which a block is wanted.
        block_ids: Where each block of them is to come; -1: that one is not wanted.
    """

    request_id: str
    prompt: Prompt
    block_ids: list[int]


@dataclass(slots=True)
class SaveJob:
    """Chunks that are complete when this step has been computed.

    Attributes:
        request_id: Of the request.
        prompt: All chunks from its beginning up to the last one to be saved.
        first_chunk: The first chunk to be saved.
        block_ids: The blocks of the chunks from `first_chunk` on.
    """

    request_id: str
    prompt: Prompt
    first_chunk: int
    block_ids: list[int]


@dataclass(slots=True)
class Work:
    """What a worker has to do in one step.

    Attributes:
        loads: To be started; each is reported exactly once, whatever becomes of it.
        saves: To be taken out of their blocks before anybody else gets those.
        given: Blocks that somebody was given in this step, and that may be written from now on.
        computes: Whether the engine computes anything in this step.
        new_tokens, pairs, decodes: How much of it; see `kvferry.cache.cost.prefill`.
        first_tokens: Of each request that had its first token since: how long it waited for the
            cache, and how long for the token, in seconds.
    """

    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    computes: bool = False
    new_tokens: int = 0
    pairs: int = 0
    decodes: int = 0
    first_tokens: list[tuple[float, float]] = field(default_factory=list)
