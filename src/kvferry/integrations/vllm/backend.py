"""What the two halves of a connector are written against: a cache, a copier of blocks, a finder.

A connector lives twice in an engine: one half beside the scheduler, which knows requests and block
ids and decides; one half in each worker, which has the tensors and moves bytes. Neither half knows
vLLM or torch, and both work with every cache that has the shape of `Backend`: `kvferry.Engine` in
the process of the worker, `kvferry.server.Client` for the memory of a cache server.

- The scheduler half asks a `Finder` how much of a prompt *every* rank could load.
- The worker half brings chunks from a `Backend` and has a `Copier` put them into blocks, and back.
- What one tells the other is `Work`: plain numbers and bytes, which survive any pickling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvferry.client.buffers import BufferLike
from kvferry.engine import Lookup, Retrieved, Stored
from kvferry.engine.prompt import Prompt, Tokens

__all__ = ["Backend", "Copier", "Finder", "LoadJob", "SaveJob", "Work"]


class Backend(Protocol):
    """A cache as the worker half sees it; see `kvferry.Engine` for what each call promises."""

    @property
    def available(self) -> bool:
        """False: nothing can be had from it now, and nothing is taken."""

    def lookup(self, tokens: Tokens, *, timeout_s: float | None = None) -> Lookup: ...

    def retrieve(
        self,
        tokens: Tokens,
        into: Sequence[BufferLike] | None = None,
        *,
        limit_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Retrieved: ...

    def store(
        self, tokens: Tokens, chunks: Sequence[BufferLike], *, first_chunk: int = 0
    ) -> Stored: ...

    def clear(self, *, stores: bool = True) -> int: ...

    def stats(self) -> dict[str, Any]: ...

    def close(self) -> object: ...


class Finder(Protocol):
    """Says how much of a prompt can be loaded, by all ranks of the engine."""

    def find(self, prompt: Prompt) -> int:
        """How many leading chunks every rank could load now; 0 if nobody can say in time.

        Called in a thread of the caller; it may take as long as its own limit, and no longer. Where
        a store is known not to answer it is not waited for.
        """

    def now(self, prompt: Prompt) -> int | None:
        """The same where the answer needs no waiting, as when no store is up; None: `find` it.

        Called in the engine's thread.
        """

    def clear(self) -> bool:
        """Forget everything of this model; whether that was done."""

    def close(self) -> object: ...


class Copier(Protocol):
    """Moves blocks between an engine's tensors and chunks; see `blocks.BlockCopier`.

    A chunk is as many blocks as there are block ids for each page. In `scatter` an id below 0 says
    that this block of the chunk is not wanted.
    """

    @property
    def layer_names(self) -> tuple[str, ...]:
        """The layers, in the order of a chunk."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers."""

    def fence(self) -> Any:
        """A mark behind what the device was told to do so far; None: all of it is done."""

    def gather(
        self, block_ids: Sequence[int], pages: Sequence[BufferLike], *, after: Any = None
    ) -> None: ...

    def scatter(
        self, pages: Sequence[BufferLike], block_ids: Sequence[int], *, after: Any = None
    ) -> None: ...

    def gather_layer(
        self,
        layer_index: int,
        block_ids: Sequence[int],
        pages: Sequence[BufferLike],
        *,
        after: Any = None,
    ) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class LoadJob:
    """Chunks that are to come into blocks of a request that waits for them.

    Attributes:
        request_id: Of the request.
        hashes: Of the chunks of which a block is wanted, 16 bytes each.
        block_ids: Where each block of them is to come; -1: that one is not wanted.
    """

    request_id: str
    hashes: bytes
    block_ids: list[int]


@dataclass(slots=True)
class SaveJob:
    """Chunks that are complete when this step has been computed.

    Attributes:
        request_id: Of the request.
        hashes: Of all chunks from the beginning of the prompt up to the last one to be saved.
        first_chunk: The first chunk to be saved.
        block_ids: The blocks of the chunks from `first_chunk` on.
    """

    request_id: str
    hashes: bytes
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
    """

    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    computes: bool = False
