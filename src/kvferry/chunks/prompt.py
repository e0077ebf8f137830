"""A prompt as the cache knows it: one 16-byte hash for each full chunk of tokens.

Tokens behind the last full chunk have no hash: they are always computed, which keeps all values of
a store at one length. Engines that hash their blocks themselves hand over those hashes instead:

    cache.retrieve(Hashes([block.hash for block in blocks]))

A hash of theirs must chain over all tokens before it, and be the same in every process.

A `Prompt` is itself the message in which one process tells another of it: a field of it needs no
other encoding. Fields are only ever added at the end, with a default; a reader skips those that it
does not know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec.structs import replace

from kvferry import _native
from kvferry.base.errors import UsageError
from kvferry.base.field_types import Count, Host, Port, Seconds, Short
from kvferry.chunks.generation import FIRST, salted
from kvferry.chunks.keys import DIGEST_BYTES

__all__ = ["Hashes", "Prompt", "Tokens", "node_in", "read_prompt"]

_Node: TypeAlias = tuple[Host, Port]


class Hashes:
    """Hashes that an engine made of its blocks, one for each chunk, in the order of the prompt.

    Args:
        hashes: Each at least 16 bytes; of longer ones the first 16 count.
        tokens: How many tokens the prompt has; default: all of them lie in the chunks.

    Raises:
        UsageError: A hash is no bytes, or too short.
    """

    __slots__ = ("packed", "tokens")

    def __init__(self, hashes: Iterable[bytes], tokens: int | None = None) -> None:
        cut = []
        for index, digest in enumerate(hashes):
            if not isinstance(digest, bytes) or len(digest) < DIGEST_BYTES:
                raise UsageError(
                    f"hash {index} is no bytes object of at least {DIGEST_BYTES} bytes"
                )
            cut.append(digest[:DIGEST_BYTES])
        self.packed = b"".join(cut)
        self.tokens = tokens


class Prompt(msgspec.Struct, frozen=True, array_like=True):
    """The full chunks of a prompt; as msgpack an array of these fields.

    Attributes:
        hashes: 16 bytes for each chunk, one after the other.
        tokens: Tokens of the prompt, those behind the last full chunk included.
        chunk_size: Tokens per chunk.
        generation: Of its hashes, and part of the names of its chunks; see
            `kvferry.chunks.generation`.
        start_tokens: Tokens in front of the first chunk here, where these are a part of a prompt.
        computed_tokens: Leading tokens that the engine has itself, which cost nothing.
        queued: Tokens and pairs (see `kvferry.cache.cost.prefill`) that the engine computes before
            it turns to this prompt: while it does, waiting costs nothing.
        queued_at: The moment (``time.monotonic``) at which it was so much; 0: now. Means nothing in
            another process.
        source: Host and port of a node that is asked too; see `kvferry.sharing.peers.named_nodes`.

    Raises:
        ValueError: The hashes are cut. In a message that is a ``msgspec.ValidationError``, as is a
            number out of range.
    """

    hashes: bytes
    tokens: Count
    chunk_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 32)]
    generation: Short = FIRST
    start_tokens: Count = 0
    computed_tokens: Count = 0
    queued: tuple[Count, Count] = (0, 0)
    queued_at: Seconds = 0.0
    source: _Node | None = None

    def __post_init__(self) -> None:
        if len(self.hashes) % DIGEST_BYTES:
            raise ValueError(f"hashes of {len(self.hashes)} bytes, and not {DIGEST_BYTES} each")

    def encode(self) -> bytes:
        """As msgpack."""
        return _encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Prompt:
        """What `encode` wrote.

        Raises:
            msgspec.MsgspecError: It is no prompt, or one that cannot be.
        """
        return _decode(data)

    @property
    def chunks(self) -> int:
        """How many full chunks there are."""
        return len(self.hashes) // DIGEST_BYTES

    def first(self, chunks: int) -> bytes:
        """The hashes of the first chunks."""
        return self.hashes[: chunks * DIGEST_BYTES]

    def cut(self, chunks: int) -> Prompt:
        """The prompt with no more than so many of its leading chunks."""
        return self if self.chunks <= chunks else replace(self, hashes=self.first(chunks))

    def part(self, start: int, end: int) -> bytes:
        """The hashes of chunks `start` to `end`, that one not included."""
        return self.hashes[start * DIGEST_BYTES : end * DIGEST_BYTES]

    def digest(self, chunk: int) -> bytes:
        """The hash of one chunk."""
        return self.part(chunk, chunk + 1)

    def position(self, chunk: int) -> int:
        """Tokens of the whole prompt that are in front of a chunk, or that the engine has."""
        return max(self.start_tokens + chunk * self.chunk_size, self.computed_tokens)

    def behind_computed(self) -> tuple[int, Prompt]:
        """How many leading chunks the engine has itself, and the prompt from there on."""
        tokens = max(0, self.computed_tokens - self.start_tokens)
        first = min(self.chunks, tokens // self.chunk_size)
        if not first:
            return 0, self
        start_tokens = self.start_tokens + first * self.chunk_size
        return first, replace(self, hashes=self.part(first, self.chunks), start_tokens=start_tokens)

    def keys(self, start: int, end: int) -> list[str]:
        """The names of chunks in a store, without the prefix of their space."""
        text, size = self.part(start, end).hex(), 2 * DIGEST_BYTES
        tag = f"{self.generation.hex()}:" if self.generation else ""
        return [tag + text[i : i + size] for i in range(0, len(text), size)]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Prompt).decode

# Token ids, 0 to 2**32 - 1: a sequence of int, or a buffer of int32, uint32 or int64. Hashes of an
# engine. Or a prompt that was read already, with the salt of its tenant.
Tokens: TypeAlias = Sequence[int] | Hashes | Prompt


def read_prompt(
    tokens: Tokens,
    chunk_size: int,
    salt: bytes,
    limit_tokens: int | None = None,
    generation: bytes = FIRST,
) -> Prompt:
    """Hash the tokens, or take the hashes that were given.

    Args:
        tokens: Of the whole prompt.
        chunk_size: Tokens per chunk.
        salt: Of the tenant; of hashes that were given, new ones are made with it.
        limit_tokens: Chunks that end behind it are left out.
        generation: Of the hashes; a prompt that was read already has one.

    Raises:
        UsageError: They are no list, a token is out of range, or the limit is negative.
    """
    count: int | None
    salt = salted(salt, generation)
    if isinstance(tokens, Prompt):
        hashes = tokens.hashes
        if limit_tokens is not None:
            hashes = hashes[: _limit(limit_tokens) // chunk_size * DIGEST_BYTES]
        return replace(tokens, hashes=hashes, chunk_size=chunk_size)
    if isinstance(tokens, Hashes):
        hashes, count = tokens.packed, tokens.tokens
        chunks = len(hashes) // DIGEST_BYTES
        if count is None:
            count = chunks * chunk_size
        if count < chunks * chunk_size:
            raise UsageError(
                f"{chunks} hashes of chunks of {chunk_size} tokens, but {count} tokens"
            )
        if salt:
            parts = (hashes[i : i + DIGEST_BYTES] for i in range(0, len(hashes), DIGEST_BYTES))
            hashes = b"".join(hashlib.sha256(salt + p).digest()[:DIGEST_BYTES] for p in parts)
    else:
        if not hasattr(tokens, "__len__"):
            raise UsageError(f"tokens are a list of ids, not a {type(tokens).__name__}")
        hashes, count = _native.hash_chunks(tokens, chunk_size, salt), len(tokens)
    if limit_tokens is not None:
        hashes = hashes[: _limit(limit_tokens) // chunk_size * DIGEST_BYTES]
    return Prompt(hashes, count, chunk_size, generation)


def _limit(limit_tokens: int) -> int:
    if limit_tokens < 0:
        raise UsageError(f"limit_tokens must not be negative, got {limit_tokens}")
    return limit_tokens


def node_in(params: object) -> tuple[str, int] | None:
    """The node that a request names in its ``kv_transfer_params``, for `Prompt.source`; whether it
    may be asked is said by the settings."""
    source = params.get("remote_kv_source") if isinstance(params, Mapping) else None
    if not isinstance(source, Mapping):
        return None
    host, port = source.get("remote_host"), source.get("remote_port")
    if isinstance(port, str) and port.isascii() and port.isdigit() and len(port) < 6:
        port = int(port)
    host = host.lower() if isinstance(host, str) else host
    try:
        found: tuple[str, int] = msgspec.convert((host, port), _Node)
    except msgspec.ValidationError:
        return None
    return found
