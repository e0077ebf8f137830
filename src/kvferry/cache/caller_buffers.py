"""The buffers of a caller, checked before anything is done with them."""

from __future__ import annotations

from collections.abc import Sequence

from kvferry.base.errors import BadBufferError, UsageError
from kvferry.chunks.prompt import Prompt
from kvferry.client.buffers import check_targets, writable
from kvferry.connectors.base import BufferLike

__all__ = ["check_lengths", "targets", "wanted_chunks"]


def wanted_chunks(prompt: Prompt, chunks: Sequence[BufferLike], first_chunk: int) -> int:
    """How many chunks are to be stored from `first_chunk` on: one for each buffer.

    Raises:
        UsageError: The number of buffers is another one.
    """
    if not first_chunk >= 0:
        raise UsageError(f"first_chunk must not be negative, got {first_chunk}")
    wanted = max(0, prompt.chunks - first_chunk)
    if len(chunks) != wanted:
        raise UsageError(
            f"{len(chunks)} buffers for {wanted} full chunks of {prompt.chunk_size} tokens"
        )
    return wanted


def targets(prompt: Prompt, into: Sequence[BufferLike], chunk_bytes: int) -> list[memoryview]:
    """A writable buffer for each chunk of a prompt.

    Raises:
        UsageError: There are too few.
        BadBufferError: One is read-only, not contiguous, or of another length, or two overlap.
    """
    if len(into) < prompt.chunks:
        raise UsageError(
            f"into has {len(into)} buffers; the prompt has {prompt.chunks} full chunks"
        )
    views = check_lengths([writable(buffer) for buffer in into[: prompt.chunks]], chunk_bytes)
    check_targets(views)
    return views


def check_lengths(views: list[memoryview], chunk_bytes: int) -> list[memoryview]:
    """The same buffers, each as long as a chunk.

    Raises:
        BadBufferError: One is not.
    """
    for index, view in enumerate(views):
        if view.nbytes != chunk_bytes:
            raise BadBufferError(
                f"buffer {index} has {view.nbytes} bytes; a chunk has {chunk_bytes}"
            )
    return views
